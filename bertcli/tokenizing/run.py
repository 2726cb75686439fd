"""Records to encoded records, a window at a time, with a tally of what happened to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from bertcli.errors import InputError
from bertcli.files.streams import size_on_disk
from bertcli.files.system_calls import cores
from bertcli.files.tables import NUMERIC, Made, Numbers, TableHeader
from bertcli.records.reader import Reader
from bertcli.records.records import Record, TextBlock, row_of
from bertcli.records.windows import CHARACTERS, ahead, windows
from bertcli.tokenizing.columns import Encoded, Layout, RaggedBatch
from bertcli.tokenizing.tokenizer import Tokenizer

Prepare = Callable[[Sequence[Record]], Sequence[Record]]
WINDOW = 1024  # records tokenized together; enough to keep every core busy
BLOCKS = 8  # of a file that are tokenized before their turn to be written, a MB each
THREADS = 8  # that make arrays: Python, which has one lock, feeds no more


Batch = Sequence[Encoded] | RaggedBatch
_Group = tuple[Sequence[Record], int]


def each_of(batch: Batch, columns: Sequence[str]) -> Sequence[Encoded]:
    """Return the records of a batch one by one."""
    return batch.encoded(columns) if isinstance(batch, RaggedBatch) else batch


@dataclass
class TokenCounts:
    """Counts over a run: what to say at its end."""

    records: int = 0
    tokens: int = 0
    truncated: int = 0  # records
    cut: int = 0  # tokens
    too_long: int = 0  # records longer than the model's limit, not truncated
    longest: int = 0
    literals: int = 0  # special tokens that stood in the text
    empty: int = 0  # texts without a character

    def add(self, batch: RaggedBatch, limit: int | None) -> None:
        """Count the records of one window."""
        self.records += len({*batch.samples})
        self.tokens += len(batch.ids)
        self.longest = max(self.longest, *batch.lengths, 0)
        self.truncated += len(batch.cut) - batch.cut.count(0)
        self.cut += sum(batch.cut)
        texts, pairs = batch.records.texts, batch.records.pairs
        if pairs is not None:
            texts = [text or pair or "" for text, pair in zip(texts, pairs, strict=True)]
        self.empty += len(texts) - sum(map(bool, texts))
        if limit is not None and self.longest > limit:
            self.too_long += sum(map(limit.__lt__, batch.lengths))

    def merge(self, other: TokenCounts) -> None:
        """Add the counts of another part of the same run."""
        longest = max(self.longest, other.longest)
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))
        self.longest = longest


@dataclass
class TokenizeRun:
    """One pass over a source. Iterate once; ``tally`` and ``reader`` hold the counts."""

    reader: Reader
    tokenizer: Tokenizer
    layout: Layout
    window: int = WINDOW
    full: bool = False  # whether every window has that many records, however slowly they come
    characters: int = CHARACTERS  # with which a window ends early
    prepare: Prepare | None = None  # what is done to records before
    blocks: Iterable[Sequence[Record]] | None = None  # what is left of the reader's
    start: int = 0  # the number of the first record in them
    tally: TokenCounts = field(default_factory=TokenCounts)

    def __iter__(self) -> Iterator[list[Encoded]]:
        """Yield windows of encoded records in input order."""
        for counts, batch in self.counted():
            self.tally.merge(counts)
            if len(batch):
                yield list(each_of(batch, self.layout.columns))

    def counted(self) -> Iterator[tuple[TokenCounts, Batch]]:
        """Yield the windows with their counts, for whoever keeps the tally; some may be empty."""
        for counts, batch in self._counted(self._windows()):
            yield counts, batch if self.layout.is_flat else batch.encoded(self.layout.columns)

    def batches(self) -> Iterator[RaggedBatch]:
        """Yield the records, where arrays can say all of them a block at a time as it was read.

        A window of a certain size is kept where it has to be ``full``.
        """
        by_block = self.layout.is_flat and not self.full
        blocks = self.reader.blocks() if by_block else self._windows()
        for counts, batch in self._counted(blocks, BLOCKS if by_block else 1):
            self.tally.merge(counts)
            if len(batch):
                yield batch

    def _windows(self) -> Iterator[Sequence[Record]]:
        blocks = self.blocks or self.reader.blocks()
        return windows(blocks, self.window, full=self.full, characters=self.characters)

    def _counted(
        self, groups: Iterator[Sequence[Record]], most: int = 1
    ) -> Iterator[tuple[TokenCounts, RaggedBatch]]:
        """Yield groups of records with their counts; ``most`` wait for the caller.

        Arrays are made by several threads: what they do is mostly done without Python's lock.
        """
        self.tokenizer.expected = size_on_disk(self.reader.source.paths) or 0
        threads = min(most, THREADS, cores())
        for counts, batch, failures in ahead(
            self._numbered(groups), self._tokenized, threads=threads, most=most
        ):
            for failure in failures:
                self.reader.skip(failure)
            yield counts, batch

    def _numbered(self, groups: Iterator[Sequence[Record]]) -> Iterator[_Group]:
        """Yield groups of records, and the number of the first."""
        first = self.start
        for records in groups:
            yield records, first
            first += len(records)

    def _tokenized(self, group: _Group) -> tuple[TokenCounts, RaggedBatch, list[InputError]]:
        """Return the counts of a group, its tokens, and why records are left out."""
        records, first = group
        failures: list[InputError] = []
        texts = self.prepare(records) if self.prepare else records
        counts = TokenCounts(literals=self.tokenizer.count_literals(texts))
        batch = self.tokenizer.encode_batch(texts, self.layout, skip=failures.append, first=first)
        if self.prepare:  # what was read is what is spoken of from here on
            rows = [sample - first for sample in batch.samples]
            batch = replace(batch, records=TextBlock.of(records).take(rows))
        counts.add(batch, self.tokenizer.limit)
        return counts, batch, failures


def row(
    encoded: Encoded, layout: Layout, *, extra: Sequence[str] = (), sparse: bool = True
) -> dict[str, Any]:
    """Return what is written for a record: its id, columns, and the ``extra`` fields by name.

    Extra fields are ``length``, ``text`` and ``overflow_to_sample_mapping``. Unless ``sparse``,
    columns are lists, and a field that only some records have (``truncated``) is there for all.
    Raises InputError when a field that the record carries has the name of one of these.
    """
    record = encoded.record
    columns: dict[str, Any] = {}
    for name in layout.columns:
        column = encoded.columns[name]
        if sparse and name in NUMERIC:
            column = Numbers(column)
        columns[name] = column if sparse else Made(column)
    if "length" in extra:
        columns["length"] = encoded.length
    if "text" in extra:
        columns["text"] = record.text
        if record.pair is not None or not sparse:
            columns["pair"] = record.pair
    if "overflow_to_sample_mapping" in extra:
        columns["overflow_to_sample_mapping"] = encoded.sample
    if encoded.cut or not (sparse or layout.truncation == "do_not_truncate"):
        columns["truncated"] = encoded.cut
    return row_of(record, columns)


def count_row(encoded: Encoded) -> dict[str, Any]:
    """Return what is written for a record of which only the length is wanted."""
    return row_of(encoded.record, {"length": encoded.length})


def header(run: TokenizeRun, extra: Sequence[str] = (), *, only_count: bool = False) -> TableHeader:
    """Return the row that begins a table of a run without any: every column, of its type.

    Lists are as long as padding makes those of every text.
    """
    source_fields = run.reader.fields
    carried = dict.fromkeys(source_fields.carried) if source_fields else None
    (item,) = run.tokenizer.encode_records([Record("", extra=carried)], run.layout)
    if run.layout.padding != "max_length":
        item = item._replace(columns={name: [] for name in item.columns})
    columns = count_row(item) if only_count else row(item, run.layout, extra=extra, sparse=False)
    return TableHeader(
        ({"id": None} if source_fields and source_fields.id is not None else {}) | columns
    )


def fields_written(layout: Layout, extra: Sequence[str], *, only_count: bool = False) -> set[str]:
    """Return the names that no carried field may have."""
    if only_count:
        return {"id", "length"}
    names = {"id", *layout.columns, *extra} | ({"pair"} if "text" in extra else set())
    return names if layout.truncation == "do_not_truncate" else names | {"truncated"}
