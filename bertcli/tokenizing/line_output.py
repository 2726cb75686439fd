"""Records to lines of output, by the shortest way there is for each.

    scribe = Scribe(tokenizer, Task(Layout()))
    scribe([Record("I love NLP!")]).data   # b'{"input_ids":[101,1045,...'

Plain lines of text take a way without a record, a list of ids or a row between text and output.
All else goes through `tokenizing.row`. The bytes are the same either way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertcli.errors import InputError
from bertcli.files.streams import size_on_disk
from bertcli.files.writers import to_json, to_text
from bertcli.records.reader import Reader
from bertcli.records.records import Record, TextBlock
from bertcli.tokenizing.columns import SHARED, Encoded, Layout, Repeated
from bertcli.tokenizing.run import (
    WINDOW,
    TokenCounts,
    TokenizeRun,
    count_row,
    fields_written,
    header,
    row,
)
from bertcli.tokenizing.tokenizer import MEMO_COLUMNS, Tokenizer
from bertcli.tokenizing.word_cache import WordMemo

WORTH = 16 << 20  # bytes to come, or of a pipe those that came, that pay for starting processes
LINES, TABULAR = ("jsonl", "txt"), ("csv", "tsv", "parquet")
SIMPLE_CUTS = ("do_not_truncate", "longest_first", "only_first")  # the same for a single text


@dataclass(frozen=True)
class Task:
    """What is to be written of records. In ``form`` jsonl and txt it may be made as lines."""

    layout: Layout
    extra: tuple[str, ...] = ()
    form: str = "jsonl"
    only_count: bool = False

    @property
    def together(self) -> bool:
        """Whether the records of a window are padded to one length."""
        return self.layout.padding == "longest"

    @property
    def fields(self) -> frozenset[str]:
        """The names that are written, which no carried field may have."""
        return frozenset(fields_written(self.layout, self.extra, only_count=self.only_count))

    def run(self, reader: Reader, tokenizer: Tokenizer, window: int) -> TokenizeRun:
        """Return the run over these records; ``window`` of them are padded together."""
        size = window if self.together else WINDOW
        return TokenizeRun(reader, tokenizer, self.layout, size, full=self.together)

    @property
    def is_plain(self) -> bool:
        """Whether single texts may take the short way."""
        layout = self.layout
        return (
            MEMO_COLUMNS.issuperset(layout.columns)
            and {"length"}.issuperset(self.extra)
            and layout.padding == "do_not_pad"
            and layout.truncation in SIMPLE_CUTS
            and not layout.overflowing
        )


@dataclass
class OutputLines:
    """Lines of output, and what happened on the way."""

    data: bytes
    tally: TokenCounts
    problems: list[InputError] = field(default_factory=list)  # records that are left out

    def __len__(self) -> int:
        return self.tally.records


Window = OutputLines | list[Encoded]


class LineMaker:
    """Makes parts of records. ``first`` is the number of the first of them in the run."""

    def __init__(self, tokenizer: Tokenizer, task: Task) -> None:
        self.tokenizer, self.task = tokenizer, task
        self.render = to_json if task.form == "jsonl" else to_text
        self.short: ShortWay | None = None
        tokenizer.notice_changes()
        if tokenizer.memo and task.is_plain:
            self.short = ShortWay(tokenizer, tokenizer.memo, task, self.render)

    def __call__(self, records: Sequence[Record], first: int = 0) -> OutputLines:
        """Return the finished lines of some records."""
        if self.short and isinstance(records, TextBlock):
            return self._of_lines(records, self.short)
        part = OutputLines(b"", TokenCounts())
        found: list[str] = []
        for start in range(0, len(records), WINDOW):
            found += self._long_way(records[start : start + WINDOW], first + start, part)
        part.data = "".join(found).encode()
        return part

    def _of_lines(self, lines: TextBlock, short: ShortWay) -> OutputLines:
        part = OutputLines(b"", TokenCounts())
        strange = [at for at, text in enumerate(lines.texts) if not short.memo.knows(text)]
        others = self._long_way([lines[at] for at in strange], 0, part) if strange else []
        texts = list(lines.texts)
        for at in reversed(strange):
            del texts[at]
        found = short(texts, part.tally)
        for at, other in zip(strange, others, strict=True):
            found.insert(at, other)
        part.data = "".join(found).encode()
        return part

    def _long_way(self, records: Sequence[Record], first: int, part: OutputLines) -> list[str]:
        layout, tokenizer = self.task.layout, self.tokenizer
        part.tally.literals += tokenizer.count_literals(records)
        batch = tokenizer.encode(records, layout, skip=part.problems.append, first=first)
        part.tally.add(batch, tokenizer.limit)
        return [self.render(self._row(item)) for item in batch]

    def _row(self, item: Encoded) -> dict[str, Any]:
        if self.task.only_count:
            return count_row(item)
        return row(item, self.task.layout, extra=self.task.extra)


class ShortWay:
    """From texts that the memo knows to lines: the ids of words, between what never varies."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        memo: WordMemo,
        task: Task,
        render: Callable[[dict[str, Any]], str],
    ) -> None:
        self.memo, self.task, self.render = memo, task, render
        before, self.after = memo.around(special=task.layout.special_tokens)
        self.special = len(before) + len(self.after)
        self.limit, self.cut_at = tokenizer.limit, tokenizer.cut_at(task.layout)
        self.side = task.layout.truncation_side or tokenizer.truncation_side
        self.head = '{"input_ids":[' + ",".join(map(str, before))
        self.bare = not before  # ids begin with a comma, which then is one too many
        self.tails = _Tails(self)

    def __call__(self, texts: Sequence[str], tally: TokenCounts) -> list[str]:
        """Return the line of every text, and count them."""
        inner = self.memo.inner(texts)
        counts = [ids.count(",") for ids in inner]
        most = max(counts, default=0) + self.special
        cuts: dict[int, int] = {}
        if self.cut_at is not None and most > self.cut_at:
            room, most = self.cut_at - self.special, self.cut_at
            cuts = {at: count - room for at, count in enumerate(counts) if count > room}
            for at in cuts:
                inner[at], counts[at] = self._cut(inner[at], room), room
        tally.records += len(texts)
        tally.tokens += sum(counts) + self.special * len(texts)
        tally.longest = max(tally.longest, most if texts else 0)
        tally.truncated += len(cuts)
        tally.cut += sum(cuts.values())
        tally.empty += texts.count("")
        if self.limit is not None and most > self.limit:
            tally.too_long += sum(count + self.special > self.limit for count in counts)
        return self._lines(inner, counts, cuts)

    def _lines(self, inner: list[str], counts: list[int], cuts: dict[int, int]) -> list[str]:
        head, tails = self.head, self.tails
        if self.task.only_count:
            return [tails[count] for count in counts]
        if self.bare:
            inner = [ids[1:] for ids in inner]
        found = [head + ids + tails[count] for ids, count in zip(inner, counts, strict=True)]
        for at, cut in cuts.items():
            found[at] = head + inner[at] + self.tail(counts[at], cut)
        return found

    def _cut(self, ids: str, room: int) -> str:
        parts = ids.split(",")[1:]
        kept = parts[len(parts) - room :] if self.side == "left" else parts[:room]
        return "".join([f",{number}" for number in kept])

    def tail(self, count: int, cut: int = 0) -> str:
        """Return what follows the ids of a text in its line; all of it where only counts do."""
        length = count + self.special
        if self.task.only_count:
            return self.render({"length": length})
        fixed = {"token_type_ids": 0, "attention_mask": 1}
        rest: dict[str, Any] = {
            name: Repeated(fixed[name], length) for name in self.task.layout.columns[1:]
        }
        if "length" in self.task.extra:
            rest["length"] = length
        if cut:
            rest["truncated"] = cut
        closing = "".join([f",{number}" for number in self.after])
        if self.bare and not count:
            closing = closing[1:]
        return f"{closing}]" + (f",{to_json(rest)[1:]}" if rest else "}\n")


class _Tails(dict[int, str]):
    """Tails by the number of ids; those of very long texts are made anew each time."""

    def __init__(self, short: ShortWay) -> None:
        super().__init__()
        self.short = short

    def __missing__(self, count: int) -> str:
        tail = self.short.tail(count)
        if count < SHARED:
            self[count] = tail
        return tail


@dataclass
class TokenOutput:
    """What a run writes, window by window: finished lines where that is possible, else rows.

    output = TokenOutput(task.run(reader, tokenizer, window), task)
    with open_writer(path, output.form) as put:
        output.write(output, put)
    """

    run: TokenizeRun
    task: Task
    workers: int = 0  # processes that may share the work

    @property
    def _in_lines(self) -> bool:
        return self.task.form in LINES and not self.task.together

    @property
    def form(self) -> str:
        """The format of the writer."""
        return "finished" if self._in_lines else self.task.form

    def __iter__(self) -> Iterator[Window]:
        """Yield what was made of the records, a window at a time."""
        return transcribe(self.run, self.task, self.workers) if self._in_lines else iter(self.run)

    def write(self, windows: Iterable[Window], put: Callable[..., None]) -> None:
        """Write windows, and what begins a table that has no rows."""
        for window in windows:
            if rows := self._rows(window):
                put(rows)
        if self.task.form not in LINES and not self.run.tally.records:
            put([header(self.run, self.task.extra, only_count=self.task.only_count)])

    def _rows(self, window: Window) -> list[Any]:
        task = self.task
        if isinstance(window, OutputLines):
            return [window.data] if window.data else []
        if task.only_count:
            return [count_row(item) for item in window]
        sparse = task.form not in TABULAR
        return [row(item, task.layout, extra=task.extra, sparse=sparse) for item in window]


def transcribe(run: TokenizeRun, task: Task, workers: int = 0) -> Iterator[OutputLines]:
    """Yield the output of a run, block by block as it was read; the run keeps the counts.

    An input that is large enough is shared among ``workers`` processes.
    """
    for part in _parts(run, task, workers):
        for problem in part.problems:
            run.reader.skip(problem)
        run.tally.merge(part.tally)
        yield part


def _parts(run: TokenizeRun, task: Task, workers: int) -> Iterator[OutputLines]:
    scribe, blocks = LineMaker(run.tokenizer, task), _numbered(run.reader)
    shareable = workers > 0 and sys.executable and run.tokenizer.folder
    total = size_on_disk(run.reader.source.paths) if shareable else None
    for first, block in blocks:
        yield scribe(block, first)
        read = run.reader.bytes_read
        if shareable and (read if total is None else total - read) > WORTH:
            break
    else:
        return
    from bertcli.tokenizing import worker_processes as others

    yield from others.parts(blocks, run.tokenizer, task, workers)


def _numbered(reader: Reader) -> Iterator[tuple[int, Sequence[Record]]]:
    first = 0
    for block in reader.blocks():
        yield first, block
        first += len(block)
