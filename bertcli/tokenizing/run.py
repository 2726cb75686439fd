"""Records to encoded records, a window at a time, with a tally of what happened to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from typing import Any

from bertcli.files.tables import Made, Numbers, TableHeader, Written
from bertcli.records.reader import Reader
from bertcli.records.records import Record, carried
from bertcli.records.windows import ahead, windows
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.tokenizer import Tokenizer

NUMERIC = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")
WINDOW = 1024  # records tokenized together; enough to keep every core busy

Counted = tuple["TokenCounts", list[Encoded]]  # a window


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

    def add(self, batch: Sequence[Encoded], limit: int | None) -> None:
        """Count the encoded records of one window."""
        lengths = [item.length for item in batch]
        self.records += len({item.sample for item in batch})
        self.tokens += sum(lengths)
        self.longest = max(self.longest, *lengths, 0)
        cuts = [item.cut for item in batch if item.cut]
        self.truncated += len(cuts)
        self.cut += sum(cuts)
        self.empty += sum(not item.record.text and not item.record.pair for item in batch)
        if limit is not None and self.longest > limit:
            self.too_long += sum(length > limit for length in lengths)

    def merge(self, other: TokenCounts) -> None:
        """Add the counts of another part of the same run."""
        longest = max(self.longest, other.longest)
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.longest = longest


@dataclass
class TokenizeRun:
    """One pass over a source. Iterate once; ``tally`` and ``reader`` hold the counts."""

    reader: Reader
    tokenizer: Tokenizer
    layout: Layout
    window: int = WINDOW
    full: bool = False  # whether every window has that many records, however slowly they come
    prepare: Callable[[Record], Record] | None = None  # what is done to each text before
    background: bool = False  # whether work goes ahead in a thread in any case, beside a model's
    blocks: Iterable[Sequence[Record]] | None = None  # what is left of the reader's
    start: int = 0  # the number of the first record in them
    tally: TokenCounts = field(default_factory=TokenCounts)

    def __iter__(self) -> Iterator[list[Encoded]]:
        """Yield windows of encoded records in input order."""
        for counts, batch in self.counted():
            self.tally.merge(counts)
            if batch:
                yield batch

    def counted(self) -> Iterator[Counted]:
        """Yield the windows with their counts, for whoever keeps the tally; some may be empty."""
        groups = windows(self.blocks or self.reader.blocks(), self.window, full=self.full)
        encoded = self._encoded(groups)
        yield from chain(islice(encoded, 1), self._rest(encoded))

    def _rest(self, encoded: Iterator[Counted]) -> Iterator[Counted]:
        """Work ahead in a thread where that is work of the library, which runs beside Python's."""
        memo = self.tokenizer.memo
        alone = memo and memo.hits > 0.5 and not self.background
        yield from encoded if alone else ahead(encoded)

    def _encoded(self, groups: Iterator[list[Record]]) -> Iterator[Counted]:
        first = self.start
        for records in groups:
            texts = [self.prepare(record) for record in records] if self.prepare else records
            items = self.tokenizer.encode(texts, self.layout, skip=self.reader.skip, first=first)
            if self.prepare:  # what was read is what is spoken of from here on
                items = [item._replace(record=records[item.sample - first]) for item in items]
            counts = TokenCounts(literals=self.tokenizer.count_literals(texts))
            counts.add(items, self.tokenizer.limit)
            yield counts, items
            first += len(records)


def row(
    encoded: Encoded, layout: Layout, *, extra: Sequence[str] = (), sparse: bool = True
) -> dict[str, Any]:
    """Return what is written for a record: its id, columns, and the ``extra`` fields by name.

    Extra fields are ``length``, ``text`` and ``overflow_to_sample_mapping``. Unless ``sparse``,
    columns are lists, and a field that only some records have (``truncated``) is there for all.
    Raises InputError when a field that the record carries has the name of one of these.
    """
    record = encoded.record
    columns: dict[str, Any] = {} if record.id is None else {"id": record.id}
    for name in layout.columns:
        column = encoded.columns[name]
        if sparse and name in NUMERIC and not isinstance(column, Written):
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
    if record.extra:
        columns |= carried(columns, record)
    return columns


def count_row(encoded: Encoded) -> dict[str, Any]:
    """Return what is written for a record of which only the length is wanted."""
    key = encoded.record.id
    found = ({} if key is None else {"id": key}) | {"length": encoded.length}
    return found | carried(found, encoded.record)


def ids_row(record: Record, columns: dict[str, Any]) -> dict[str, Any]:
    """Return what is written for a record of tokens that become ids."""
    made = {name: Made(column) for name, column in columns.items()}
    found = ({} if record.id is None else {"id": record.id}) | made
    return found | carried(found, record)


def header(run: TokenizeRun, extra: Sequence[str] = (), *, only_count: bool = False) -> TableHeader:
    """Return the row that begins a table of a run without any: every column, of its type.

    Lists are as long as padding makes those of every text.
    """
    known = run.reader.fields
    rest = dict.fromkeys(known.rest) if known else None
    (item,) = run.tokenizer.encode([Record("", extra=rest)], run.layout)
    if run.layout.padding != "max_length":
        item = item._replace(columns={name: [] for name in item.columns})
    found = count_row(item) if only_count else row(item, run.layout, extra=extra, sparse=False)
    return TableHeader(({"id": None} if known and known.id is not None else {}) | found)


def fields_written(layout: Layout, extra: Sequence[str], *, only_count: bool = False) -> set[str]:
    """Return the names that no carried field may have."""
    if only_count:
        return {"id", "length"}
    names = {"id", *layout.columns, *extra} | ({"pair"} if "text" in extra else set())
    return names if layout.truncation == "do_not_truncate" else names | {"truncated"}
