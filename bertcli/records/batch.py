"""Records as columns (`RecordBatch`), and splitting them into windows of bounded size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, repeat
from operator import add
from typing import Any, overload

from bertcli.records.record import Record, Text, TextWindow

# Columns that are None if no record has a value: pairs, ids, extras, tokens and windows.
OPTIONAL_COLUMNS = (1, 2, 3, 6, 7)


@dataclass(frozen=True, eq=False)
class RecordBatch(Sequence[Record]):
    """Records as columns, in the field order of `Record`. A `Record` is created only on access.

    ``pairs``, ``ids``, ``extras`` (carried fields), ``tokens`` and ``windows`` are None if no
    record has any.
    """

    texts: Sequence[Text]
    pairs: Sequence[Text | None] | None
    ids: Sequence[Any] | None
    extras: Sequence[dict[str, Any] | None] | None
    files: Sequence[str]
    lines: Sequence[int]
    tokens: Sequence[list[int] | None] | None = None
    windows: Sequence[TextWindow | None] | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> RecordBatch:
        """Return a batch of these records."""
        if isinstance(records, RecordBatch):
            return records
        columns: Any = [[] for _ in Record._fields]
        for record in records:
            for column, value in zip(columns, record, strict=True):
                column.append(value)
        for index in OPTIONAL_COLUMNS:
            if columns[index].count(None) == len(columns[index]):
                columns[index] = None
        return cls(*columns)

    @classmethod
    def joined(cls, blocks: Sequence[RecordBatch]) -> RecordBatch:
        """Return the concatenation of some batches."""
        if len(blocks) == 1:
            return blocks[0]
        joined: list[Any] = []
        for columns in zip(*(block.columns for block in blocks), strict=True):
            values: list[Any] = []
            for column, block in zip(columns, blocks, strict=True):
                values.extend(column or repeat(None, len(block)))
            joined.append(values if any(columns) else None)
        return cls(*joined)

    @property
    def columns(self) -> tuple[Sequence[Any] | None, ...]:
        """The columns, in the field order of `Record`."""
        return (
            self.texts,
            self.pairs,
            self.ids,
            self.extras,
            self.files,
            self.lines,
            self.tokens,
            self.windows,
        )

    @property
    def is_plain(self) -> bool:
        """True if the records are single texts without any other field."""
        return self.columns[1:4] == (None, None, None)

    @cached_property
    def is_split(self) -> bool:
        """True if any text is a list of words."""
        return list in map(type, self.texts) or list in map(type, self.pairs or ())

    @property
    def strings(self) -> Iterable[str]:
        """All strings of the records: texts and pairs, or their words."""
        if self.pairs is None and not self.is_split:
            return self.texts  # type: ignore[return-value]
        texts_and_pairs = zip(self.texts, self.pairs or repeat(None), strict=False)
        texts = filter(None, chain.from_iterable(texts_and_pairs))
        return chain.from_iterable([text] if isinstance(text, str) else text for text in texts)

    @property
    def lengths(self) -> Iterable[int]:
        """The number of characters of each record."""
        count = (lambda text: sum(map(len, text))) if self.is_split else len
        text_lengths = map(count, self.texts)
        if self.pairs is None:
            return text_lengths
        return map(add, text_lengths, (count(pair or "") for pair in self.pairs))

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, *(repeat(None) if c is None else c for c in self.columns))

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordBatch: ...
    def __getitem__(self, index: int | slice) -> Record | RecordBatch:
        fields: Any = (None if column is None else column[index] for column in self.columns)
        return RecordBatch(*fields) if isinstance(index, slice) else Record(*fields)

    def take(self, rows: Sequence[int]) -> RecordBatch:
        """Return a batch of the rows with these indexes."""
        return RecordBatch(*(c and [c[row] for row in rows] for c in self.columns))  # type: ignore[arg-type]

    def without(self, names: Collection[str]) -> RecordBatch:
        """Return the records without these carried fields."""
        if not (names and self.extras):
            return self
        extras = [
            {name: value for name, value in (fields or {}).items() if name not in names} or None
            for fields in self.extras
        ]
        return replace(self, extras=extras if any(extras) else None)


CHARACTERS = 4 << 20  # per window: some hundred MB as tokens
FIRST_RECORDS = 64  # of the first window, if windows grow
FIRST_CHARACTERS = 1 << 13  # of the first window, if windows grow


def record_windows(
    blocks: Iterable[Sequence[Record]],
    size: int,
    *,
    fixed_windows: bool = False,
    characters: int = CHARACTERS,
    growing_from: int | None = None,
) -> Iterator[Sequence[Record]]:
    """Split blocks into sequences of at most ``size`` records.

    A window ends early, with the record at which it has ``characters`` characters. A block that is
    short because its source is slow is passed on at once, unless ``fixed_windows`` requests windows
    independent of the blocks. ``growing_from`` is the number of records before the blocks: the
    first windows are small, so that a run commits early, and windows are the same wherever the run
    resumes.
    """
    batches: list[RecordBatch] = []  # of the next window
    yielded = growing_from

    def limits() -> tuple[int, int]:
        """Return the maximum number of records and characters of the next window."""
        if yielded is None:
            return size, characters
        growth = max(1, yielded // FIRST_RECORDS)
        return min(size, FIRST_RECORDS * growth), min(characters, FIRST_CHARACTERS * growth)

    records_left, characters_left = limits()
    for block in map(RecordBatch.of, blocks):
        start = 0
        offsets = [*accumulate(block.lengths, initial=0)]  # of the records, in characters
        while start < len(block):
            last = bisect_left(offsets, offsets[start] + characters_left)
            stop = min(start + records_left, last, len(block))
            batches.append(block[start:stop])
            records_left -= stop - start
            characters_left -= offsets[stop] - offsets[start]
            start = stop
            is_full = not records_left or characters_left <= 0
            if is_full or (stop == len(block) and not fixed_windows):
                window = RecordBatch.joined(batches)
                if yielded is not None:
                    yielded += len(window)
                yield window
                batches = []
                records_left, characters_left = limits()
    if batches:
        yield RecordBatch.joined(batches)
