"""Records of any source, one after another; counts those that cannot be read.

    for record in Reader(Source(paths=("reviews.jsonl.gz",))):
        print(record.text)

Memory is that of one block, for a file of any size. A record that cannot be read is an InputError
with its file and line, or is reported, counted and skipped (`on_error="skip"`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import Any, TypeVar

from bertcli.records.read_progress import ReadProgress
from bertcli.records.records import Record, TextBlock, checked, is_empty
from bertcli.records.source import Source

T = TypeVar("T")
R = TypeVar("R")

CHARACTERS = 4 << 20  # of a window: some hundred MB once they are tokens
BLOCK = 1024  # texts that are taken from an iterable at a time
Divide = Callable[["Reader", TextBlock, int], Iterable[TextBlock]]  # from this record in the run on


class Reader(ReadProgress):
    """Iterates over the records of a source."""

    divide: Divide | None = None  # what makes several records of each

    def __iter__(self) -> Iterator[Record]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[TextBlock]:
        """Yield records as they become available, in blocks of no fixed length."""
        for records in self._blocks():
            block = TextBlock.of(records)
            if self.source.skip_empty:
                rows = [row for row, record in enumerate(block) if not is_empty(record)]
                self.empty += len(block) - len(rows)
                block = block if len(rows) == len(block) else block.take(rows)
            if self.source.placed or self.source.kept_text:
                block = self._carrying(block)
            first, self.records = self.records, self.records + len(block)
            yield from self.divide(self, block, first) if self.divide else [block]
        self.exhausted = True

    def again(self) -> Reader:
        """Return a reader of the same records, from the first."""
        reader = Reader(self.source, self.warn)
        reader.divide = self.divide
        return reader

    def _carrying(self, block: TextBlock) -> TextBlock:
        """Return records that carry their file and line, and their text, as is asked for."""
        extras: list[dict[str, Any]] = []
        for record in block:
            extra = record.extra or {}
            if text := self.source.kept_text:
                extra = {text: record.text} | extra
            if self.source.placed:
                extra = {"file": record.file, "line": record.line} | extra
            extras.append(extra)
        return replace(block, extras=extras)

    def _blocks(self) -> Iterator[Sequence[Record]]:
        from bertcli.records import formats  # arguments alone do not need it

        if self.source.texts:
            yield self.collect(
                enumerate(self.source.texts, 1),
                lambda number, text: checked(
                    Record(text, self.source.pair, line=number), self.source
                ),
            )
        for path in self.source.paths:
            yield from formats.read(path, self)


class GivenTexts(Reader):
    """Reads texts from Python: any iterable of strings, pairs of two, records or lists of words.

    A single text is ``alone``. What is neither is an InputError, when it is read.
    """

    def __init__(self, texts: Any, source: Source) -> None:
        super().__init__(source)
        several = isinstance(texts, Iterable) and not isinstance(texts, Mapping)
        self.alone = isinstance(texts, str | bytes | Record) or not several
        self.given = [texts] if self.alone else texts

    def _blocks(self) -> Iterator[Sequence[Record]]:
        numbered = enumerate(self.given, 1)
        while texts := list(islice(numbered, BLOCK)):
            yield [checked(self._record(text, line), self.source) for line, text in texts]

    def _record(self, text: Any, line: int) -> Record:
        if isinstance(text, Record):
            return text if text.file or text.line else text._replace(line=line)
        words = self.source.pre_split and text and isinstance(text[0], str)
        if isinstance(text, tuple | list) and len(text) == 2 and not words:
            return Record(text[0], text[1], line=line)
        return Record(text, line=line)


def windows(
    blocks: Iterable[Sequence[Record]],
    size: int,
    *,
    full: bool = False,
    characters: int = CHARACTERS,
) -> Iterator[Sequence[Record]]:
    """Split blocks into sequences of at most ``size`` records.

    A window ends early with the record that fills it with so many ``characters``. A block that is
    short because its source is slow is passed on at once, unless ``full`` asks for windows that do
    not depend on the blocks.
    """
    parts: list[Sequence[Record]] = []
    missing, room = size, characters
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + missing]
            weight = _characters(part)
            if weight > room:
                weights = (_characters([record]) for record in part)
                totals = accumulate(weights, initial=1 - room)
                part = part[: next(count for count, total in enumerate(totals) if total > 0)]
            parts.append(part)
            start, missing, room = start + len(part), missing - len(part), room - weight
            if not missing or room <= 0 or (start == len(block) and not full):
                yield _joined(parts)
                parts, missing, room = [], size, characters
    if parts:
        yield _joined(parts)


def _characters(records: Sequence[Record]) -> int:
    return sum(map(len, TextBlock.of(records).strings))


def _joined(parts: Sequence[Sequence[Record]]) -> Sequence[Record]:
    return parts[0] if len(parts) == 1 else TextBlock.of(chain.from_iterable(parts))


def ahead(
    items: Iterable[T], work: Callable[[T], R], *, threads: int = 1, most: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` of each item in their order, made by threads while the caller works.

    ``most`` of them wait for the caller, who waits for the items: those of a slow source are not
    for threads. An error is raised where the item would have been.
    """
    from concurrent.futures import Future, ThreadPoolExecutor  # which few texts do not need

    pool, turns = ThreadPoolExecutor(threads), deque[Future[R]]()
    try:
        for item in items:
            turns.append(pool.submit(work, item))
            if len(turns) > most:
                yield turns.popleft().result()
        while turns:
            yield turns.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
