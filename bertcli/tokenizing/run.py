"""Runs over records: tokenizing in windows, the output of `tokenize`, and decoding.

    task = Task(Layout())
    run = task.run(reader, tokenizer)
    with streamed_rows(path, task.writer) as put:
        task.write(run, run, put)

Many records go as arrays from the tokenizer to the file (`ragged` formats the lines), few records
as rows. The output bytes are identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import repeat
from typing import Any

from bertcli.errors import InputError, counted
from bertcli.formats.jsonl import to_lines
from bertcli.formats.plain_text import to_text
from bertcli.formats.registry import BINARY, FINISHED, FORMATS, JSONL, LINES, TABULAR, TXT
from bertcli.formats.tables import (
    FlatLists,
    Table,
    TableHeader,
    fields_of,
)
from bertcli.io.streams import size_on_disk
from bertcli.io.system_calls import cores
from bertcli.records.batch import CHARACTERS, RecordBatch, record_windows
from bertcli.records.reader import Reader
from bertcli.records.record import Record, row_of
from bertcli.tokenizing.batch import Layout, TokenBatch
from bertcli.tokenizing.tokenizer import Tokenizer

Prepare = Callable[[Sequence[Record]], Sequence[Record]]
WINDOW = 1024  # records tokenized together; enough to keep every core busy
BLOCKS = 8  # blocks of a file tokenized ahead of the writer, about 1 MB each
THREADS = 8  # that create arrays; the GIL limits the gain from more


_Group = tuple[Sequence[Record], int]
COUNTED = ("length", "truncated")
SOME = {"pair", "truncated"}  # fields that only some records have


@dataclass
class TokenCounts:
    """Counts over a run, reported at its end."""

    records: int = 0
    tokens: int = 0
    truncated: int = 0  # records
    cut: int = 0  # tokens
    too_long: int = 0  # records longer than the model's limit, not truncated
    longest: int = 0
    literals: int = 0  # special tokens written in the text
    empty: int = 0  # texts without a character

    def summary(self) -> dict[str, Any]:
        """Return the number of texts and the number of their tokens."""
        return {"texts": self.records, "tokens": self.tokens}

    def add(self, batch: TokenBatch, limit: int | None = None) -> None:
        """Count the records of one batch."""
        self.records += len({*batch.samples})
        self.tokens += len(batch.ids)
        self.longest = max(self.longest, *batch.lengths, 0)
        self.truncated += len(batch) - batch.dropped_tokens.count(0)
        self.cut += sum(batch.dropped_tokens)
        texts = batch.records.texts
        pairs = batch.records.pairs
        if pairs is not None:
            texts = [text or pair or "" for text, pair in zip(texts, pairs, strict=True)]
        self.empty += len(texts) - sum(map(bool, texts))
        if limit is not None and self.longest > limit:
            self.too_long += sum(map(limit.__lt__, batch.lengths))

    def truncation(self, limit: int | None, texts: str = "texts") -> str:
        """Return "1 of 2 texts truncated to 8 tokens (3 dropped)", or "" if none was truncated."""
        if not self.truncated:
            return ""
        return (
            f"{self.truncated:,} of {self.records:,} {texts} truncated to {limit} tokens "
            f"({self.cut:,} dropped)"
        )

    def emptiness(self) -> str:
        """Return the number of empty texts as a message, or "" if there are none."""
        return f"{counted(self.empty, 'text was', 'texts were')} empty" if self.empty else ""

    def merge(self, other: TokenCounts) -> None:
        """Add the counts of another part of the same run."""
        longest = max(self.longest, other.longest)
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))
        self.longest = longest


@dataclass
class ReaderRun:
    """One pass over a source. Iterate once; ``tally`` and ``reader`` hold the counts.

    ``done`` is where a resumed run starts, once everything yielded before the current window is
    written: the number of records read, the number of those that the run skipped, and the tally.
    """

    reader: Reader
    start: int = field(default=0, kw_only=True)  # records done by an earlier run
    skipped: int = field(default=0, kw_only=True)  # by the run, not by the reader
    tally: TokenCounts = field(default_factory=TokenCounts, kw_only=True)
    done: dict[str, Any] | None = field(default=None, init=False)
    committed: int = field(default=0, init=False)  # records whose rows survive a kill

    def begin_after(self, done: Mapping[str, Any]) -> None:
        """Start after the records that another run has done."""
        self.start = self.committed = done["records"]
        self.skipped = done["skipped"]
        self.done = dict(done)
        self.reader.count_skipped(self.skipped)
        self.tally.merge(TokenCounts(**done["tally"]))

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield blocks of the records that are not done."""
        left = self.start
        for block in self.reader.blocks():
            if left < len(block):
                yield block[left:] if left else block
            left = max(0, left - len(block))

    def finish(self, records: int) -> None:
        """Record that the first ``records`` records of the reader are done."""
        self.done = {"records": records, "skipped": self.skipped, "tally": asdict(self.tally)}


@dataclass
class TokenizeRun(ReaderRun):
    """The tokens of the records of a source, in windows."""

    tokenizer: Tokenizer
    layout: Layout
    window: int | None = None  # records tokenized together; None: WINDOW, or as they were read
    full: bool = False  # True: every window but the last has that many records
    characters: int = CHARACTERS  # end a window early when it has this many
    growing: bool = False  # True: the first windows are small
    prepare: Prepare | None = None  # applied to the records first
    rest: Iterable[Sequence[Record]] | None = None  # the records not done, if known

    def __iter__(self) -> Iterator[TokenBatch]:
        """Yield the tokens of the records in input order, one window at a time."""
        for counts, tokens in self.counted():
            self.tally.merge(counts)
            if len(tokens):
                yield tokens
            self.finish(self.end)

    def counted(self) -> Iterator[tuple[TokenCounts, TokenBatch]]:
        """Yield counts and tokens of each window, for callers that keep the tally.

        Windows may be empty.

        If the layout fits arrays, several blocks are tokenized in parallel threads: most of that
        work releases the GIL.
        """
        groups: Iterable[Sequence[Record]] = self.rest or self.blocks()
        most = BLOCKS if self.window is None and self.layout.is_flat else 1
        if most == 1:
            size = self.window or WINDOW
            groups = record_windows(
                groups,
                size,
                full=self.full,
                characters=self.characters,
                growing_from=self.start if self.growing else None,
            )
        numbered = self._numbered(groups)
        self.tokenizer.expected = size_on_disk(self.reader.source.paths) or 0
        if self.tokenizer.expected:
            from bertcli.io.threads import run_ahead

            threads = min(most, THREADS, cores())
            results = run_ahead(numbered, self._tokenized, threads=threads, most=most)
        else:  # texts may be typed in: answer one by one
            results = map(self._tokenized, numbered)
        for counts, tokens, failures, self.end in results:
            for failure in failures:
                self.reader.skip(failure)
            self.skipped += len(failures)
            yield counts, tokens

    def _numbered(self, groups: Iterable[Sequence[Record]]) -> Iterator[_Group]:
        """Yield groups of records, each with the index of its first record."""
        first = self.start
        for records in groups:
            yield records, first
            first += len(records)

    def _tokenized(self, group: _Group) -> tuple[TokenCounts, TokenBatch, list[InputError], int]:
        """Return the counts and tokens of a group, the errors of skipped records, and its end."""
        records, first = group
        failures: list[InputError] = []
        texts = self.prepare(records) if self.prepare else records
        counts = TokenCounts(literals=self.tokenizer.count_literals(texts))
        batch = self.tokenizer.encode_records(texts, self.layout, skip=failures.append, first=first)
        if self.prepare:  # counts and errors refer to the records as read
            rows = [sample - first for sample in batch.samples]
            batch = replace(batch, records=RecordBatch.of(records).take(rows))
        counts.add(batch, self.tokenizer.limit)
        return counts, batch, failures, first + len(records)


@dataclass(frozen=True)
class Task:
    """The output of a tokenize run: columns, fields and file format.

    ``extra`` are the fields besides the columns: ``length``, ``text``, ``pair``,
    ``overflow_to_sample_mapping`` and ``truncated``. If nothing is written per record, use
    `TokenizeRun` alone.
    """

    layout: Layout
    extra: tuple[str, ...] = ()
    form: str = JSONL
    ragged: bool = False  # True: flat arrays in npz and safetensors

    @property
    def fields(self) -> frozenset[str]:
        """The names of the output fields, which no carried field may have."""
        return frozenset({"id", *self.layout.columns, *self.extra})

    def run(self, reader: Reader, tokenizer: Tokenizer, window: int = WINDOW) -> TokenizeRun:
        """Return the run over these records.

        With padding "longest", ``window`` records are padded together.
        """
        together = self.layout.padding == "longest"
        size = window if together else None
        return TokenizeRun(reader, tokenizer, self.layout, size, full=together)

    def rows(
        self, tokens: TokenBatch, lists: Mapping[str, Iterable[Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Return the output rows of a batch. ``lists`` replaces the token columns.

        Raises InputError if a carried field has the name of an output field.
        """
        if lists is None:
            lists = {name: tokens.lists(name) for name in self.layout.columns}
        columns = {**lists, **self._beside(tokens)}
        values = zip(*columns.values(), strict=True) if columns else repeat((), len(tokens))
        rows = [dict(zip(columns, cells, strict=True)) for cells in values]
        if self.form not in TABULAR:
            for name in SOME.intersection(columns):
                for row in rows:
                    if row[name] in (None, 0):
                        del row[name]
        if tokens.records.is_plain:
            return rows
        return [row_of(record, row) for record, row in zip(tokens.records, rows, strict=True)]

    def table(self, tokens: TokenBatch) -> Table:
        """Return the output of a batch of arrays as a table of columns."""
        import numpy as np  # pyarrow would import pandas to inspect lists

        ids = tokens.records.ids or ()
        extras = tokens.records.extras or ()
        columns: dict[str, Any] = {"id": ids} if any(key is not None for key in ids) else {}
        for name in self.layout.columns:
            columns[name] = FlatLists(tokens.columns[name], tokens.offsets)
        for name, values in self._beside(tokens).items():
            columns[name] = np.array(values) if name in COUNTED else values
        for name in fields_of(filter(None, extras)):
            columns[name] = [(extra or {}).get(name) for extra in extras]
        return Table(columns, len(tokens))

    def _beside(self, tokens: TokenBatch) -> dict[str, Any]:
        """Return the columns of ``extra``. Records without a value have None or 0."""
        records = tokens.records
        columns = {
            "length": tokens.lengths,
            "text": records.texts,
            "pair": records.pairs or [None] * len(tokens),
            "overflow_to_sample_mapping": tokens.samples,
            "truncated": tokens.dropped_tokens,
        }
        is_cut = self.form in TABULAR or any(tokens.dropped_tokens)
        return {name: columns[name] for name in self.extra if is_cut or name != "truncated"}

    def header(self, run: TokenizeRun) -> TableHeader:
        """Return the header row of a table without records: every column, with its type.

        Lists have the length that padding gives to every text.
        """
        (row,) = self.rows(run.tokenizer.encode_records([Record("")], self.layout))
        if self.layout.padding != "max_length":
            row |= {name: [] for name, value in row.items() if isinstance(value, list)}
        return run.reader.header(row)

    @property
    def writer(self) -> str:
        """The name of the writer for the file format."""
        if self.form in LINES:
            return FINISHED
        return FORMATS[self.form].ragged_writer if self.ragged else self.form

    def write(
        self,
        run: TokenizeRun,
        batches: Iterable[TokenBatch],
        put: Callable[..., None],
        *,
        rows: bool = False,
    ) -> None:
        """Write the batches of a run, as ``rows`` or in the fastest form.

        A run without records writes an empty table.
        """
        for batch in batches:
            put(self.rows(batch) if rows and self.form not in LINES else self._written(batch))
        if self.form not in LINES and not run.tally.records:
            put([self.header(run)])

    def _written(self, tokens: TokenBatch) -> Any:
        """Return a batch in the form that the format's writer takes: bytes, rows or a table."""
        form = self.form
        if form == "table" and self.layout.columns:
            return tokens
        if form in LINES and tokens.records.is_plain and self.fields == {"id", "length"}:
            line = b"%d\n" if form == TXT else b'{"length":%d}\n'
            return [b"".join([line % length for length in tokens.lengths])]
        if tokens.has_arrays:
            if form in BINARY:
                return self.table(tokens)
            if form == JSONL and self.layout.columns:
                from bertcli.tokenizing.ragged import HOLE, ragged_lines

                if tokens.records.is_plain and not self._beside(tokens):
                    lines = to_lines([{"input_ids": HOLE}]) * len(tokens)
                else:
                    lines = to_lines(self.rows(tokens, {"input_ids": repeat(HOLE, len(tokens))}))
                return [ragged_lines(tokens, self.layout.columns, lines)]
        rows = self.rows(tokens)
        if form in LINES:
            return [(to_lines(rows) if form == JSONL else "".join(map(to_text, rows))).encode()]
        return rows


@dataclass
class DecodeRun(ReaderRun):
    """Decoded rows: the record's id, ``text`` or ``tokens``, then the record's other fields.

    An id outside the vocabulary raises InputError with the record's location, or the record is
    skipped.
    """

    tokenizer: Tokenizer
    kind: str  # "text" or "tokens"
    skip_special: bool
    clean_up: bool | None

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        end = self.start
        for records in record_windows(self.blocks(), WINDOW):
            rows = self.reader.collect(self._row, records)
            self.skipped += len(records) - len(rows)
            self.tally.records += len(rows)
            yield rows
            end += len(records)
            self.finish(end)

    def _row(self, record: Record) -> dict[str, Any]:
        ids = record.ids or []
        skip = self.skip_special
        value: Any
        try:
            if self.kind == "tokens":
                value = self.tokenizer.convert_ids_to_tokens(ids, skip)
            else:
                value = self.tokenizer.decode(ids, skip, self.clean_up)
        except InputError as unknown:
            raise InputError(f"{record.where}: {unknown.marked}", unknown.marked_hint) from None
        return row_of(record, {self.kind: value})
