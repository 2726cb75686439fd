"""Counts for each input file, and for all of them together, in one pass.

    rows = file_rows(TokenTotals(), reader.source.paths, batches)   # {"file": ..., "tokens": ...}

The last row is the total: its file is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

from bertcli.records.text_block import TextBlock
from bertcli.tokenizing.run import Batch, RaggedBatch

S = TypeVar("S", bound="Summary")


class Summary(Protocol):
    """Counts that grow with each batch: `TokenTotals` or `statistics.CorpusStats`."""

    def blank(self: S) -> S:
        """Return another one of its kind that has counted nothing."""

    def add(self, batch: Batch) -> None:
        """Count the records of a batch."""

    def summary(self) -> dict[str, Any]:
        """Return the counts by name."""


class TokenTotals:
    """The number of texts and of their tokens."""

    def __init__(self) -> None:
        self.texts = self.tokens = 0

    def blank(self) -> TokenTotals:
        """Return another one that has counted nothing."""
        return TokenTotals()

    def add(self, batch: Batch) -> None:
        """Count the records of a batch."""
        self.texts += len(batch)
        if isinstance(batch, RaggedBatch):
            self.tokens += len(batch.tokens.ids)
        else:
            self.tokens += sum(item.length for item in batch)

    def summary(self) -> dict[str, Any]:
        """Return the counts by name."""
        return {"texts": self.texts, "tokens": self.tokens}


def file_rows(total: Summary, paths: Sequence[str], batches: Iterable[Batch]) -> list[Any]:
    """Return a row for each file, in the order of the paths, and the total.

    A file without a record has a row of zeros.
    """
    files = {"stdin" if path == "-" else path: total.blank() for path in paths}
    for batch in batches:
        for file, part in _by_file(batch):
            files[file].add(part)
            total.add(part)
    rows = [{"file": name} | counts.summary() for name, counts in files.items()]
    return [*rows, {"file": None} | total.summary()]


def _by_file(batch: Batch) -> Iterator[tuple[str, Batch]]:
    """Yield the parts of a batch that are of one file."""
    if isinstance(batch, RaggedBatch):
        records = batch.records
        files = set(TextBlock.of(records).files)
        if len(files) == 1:
            yield files.pop(), batch
            return
        batch = batch.encoded(("input_ids",))
    for file, items in groupby(batch, lambda item: item.record.file):
        yield file, list(items)
