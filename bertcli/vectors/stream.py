"""A run of `bertcli embed` to a stream: nothing is kept, so nothing of files is imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from bertcli.embedding.embedded import EmbeddedBlock
from bertcli.embedding.embedder import Embedder
from bertcli.files.writers import open_output
from bertcli.inference.progress import Ran, Step
from bertcli.records.reader import Reader
from bertcli.records.records import carried
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.formats import WRITTEN, WRITTEN_OF_MANY, WRITTEN_OF_TERMS, vector_writer

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames


def metas(block: EmbeddedBlock, consumed: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return what is written of each record beside its vector; of its fields not the ``consumed``.

    Raises InputError when a record carries a field of a name that is written.
    """
    records, written = block.records.without(consumed), []
    rows = zip(block.samples, records.ids or repeat(None), block.lengths, block.cuts, strict=False)
    for at, (sample, key, length, cut) in enumerate(rows):
        row: dict[str, Any] = {"id": sample if key is None else key}
        if block.pieces:
            row |= block.pieces[at].fields(pair=records[at].pair is not None)
        row["n_tokens"] = length
        if cut:
            row["truncated"] = cut
        written.append(row)
    if records.extras:
        several = isinstance(block.vectors, list)
        also = WRITTEN_OF_MANY if block.pieces else WRITTEN_OF_TERMS if several else WRITTEN
        return [
            row | carried(row, record, also) for row, record in zip(written, records, strict=True)
        ]
    return written


@dataclass
class EmbedStream:
    """A run that gives its records to ``write``, each window once its vectors are there."""

    embedder: Embedder
    reader: Reader
    write: Callable[[EmbeddedBlock], None]
    tally: TokenCounts = field(default_factory=TokenCounts)

    def __post_init__(self) -> None:
        self.consumed = self.embedder.extra.read_by(self.reader)

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the run is."""
        for window in self.embedder.windows(self.embedder.run(self.reader)):
            self.tally.merge(window.counts)
            for part in window.parts:
                if isinstance(part, Ran):
                    yield part
                else:
                    part.records = part.records.without(self.consumed)
                    self.write(part)


@contextmanager
def stdout_writer(
    form: str, precision: str, terms: TermNames | None = None
) -> Iterator[Callable[[EmbeddedBlock], None]]:
    """Yield a function that writes records to stdout, as JSONL or CSV."""
    with open_output(None) as out, vector_writer(out, form, precision, terms) as write:
        yield lambda block: write(metas(block), block.vectors)
