"""Records to encoded records, a window at a time, with a tally of what happened to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from bertcli.batching import ahead, windows
from bertcli.encoding import Encoded, Layout
from bertcli.records import Reader, Record
from bertcli.tokenizer import Tokenizer

WINDOW = 1024  # records tokenized together; enough to keep every core busy


@dataclass
class Tally:
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


@dataclass
class Run:
    """One pass over a source. Iterate once; ``tally`` and ``reader`` hold the counts."""

    reader: Reader
    tokenizer: Tokenizer
    layout: Layout
    window: int = WINDOW
    full: bool = False  # whether every window has that many records, however slowly they come
    prepare: Callable[[Record], Record] | None = None  # what is done to each text before
    start: int = 0  # records to pass over, which an earlier run has dealt with
    passed: Callable[[Record], None] = lambda record: None  # is shown each of them
    tally: Tally = field(default_factory=Tally)

    def __iter__(self) -> Iterator[list[Encoded]]:
        """Yield windows of encoded records in input order."""
        groups = windows(self._blocks(), self.window, full=self.full)
        encoded = self._encoded(groups)
        for batch in chain(islice(encoded, 1), self._rest(encoded)):
            if batch:
                self.tally.add(batch, self.tokenizer.limit)
                yield batch

    def _blocks(self) -> Iterator[list[Record]]:
        left = self.start
        for block in self.reader.blocks():
            for record in block[:left]:
                self.passed(record)
            if len(block) > left:
                yield block[left:]
            left = max(0, left - len(block))

    def _rest(self, encoded: Iterator[list[Encoded]]) -> Iterator[list[Encoded]]:
        """Work ahead in a thread where that is work of the library, which runs beside Python's."""
        memo = self.tokenizer.memo
        yield from encoded if memo and memo.hits > 0.5 else ahead(encoded)

    def _encoded(self, groups: Iterator[list[Record]]) -> Iterator[list[Encoded]]:
        first = self.start
        for records in groups:
            texts = [self.prepare(record) for record in records] if self.prepare else records
            self.tally.literals += self.tokenizer.count_literals(texts)
            items = self.tokenizer.encode(texts, self.layout, skip=self.reader.skip, first=first)
            if self.prepare:  # what was read is what is spoken of from here on
                items = [item._replace(record=records[item.sample - first]) for item in items]
            yield items
            first += len(records)


def row(
    encoded: Encoded, layout: Layout, *, extra: Sequence[str] = (), sparse: bool = True
) -> dict[str, Any]:
    """Return what is written for a record: its id, columns, and the ``extra`` fields by name.

    Extra fields are ``length``, ``text`` and ``overflow_to_sample_mapping``. Unless ``sparse``,
    columns are lists, and a field that only some records have (``truncated``) is there for all.
    """
    record = encoded.record
    fields: dict[str, Any] = {} if record.id is None else {"id": record.id}
    for name in layout.columns:
        fields[name] = encoded.columns[name] if sparse else list(encoded.columns[name])
    if "length" in extra:
        fields["length"] = encoded.length
    if "text" in extra:
        fields["text"] = record.text
        if record.pair is not None or not sparse:
            fields["pair"] = record.pair
    if "overflow_to_sample_mapping" in extra:
        fields["overflow_to_sample_mapping"] = encoded.sample
    if encoded.cut or not (sparse or layout.truncation == "do_not_truncate"):
        fields["truncated"] = encoded.cut
    if record.extra:
        fields |= {name: value for name, value in record.extra.items() if name not in fields}
    return fields
