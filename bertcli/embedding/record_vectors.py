"""The vectors of records that are in memory, as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bertcli.embedding.embedder import Embedder
from bertcli.inference.progress import Advance, Ran
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.source import Source
from bertcli.tokenizing.run import TokenCounts


@dataclass
class RecordVectors:
    """The vectors of records: iterate to the end, then they are in ``vectors``, [n, D]."""

    embedder: Embedder
    records: Sequence[Record]
    tally: TokenCounts = field(default_factory=TokenCounts)
    vectors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def __iter__(self) -> Iterator[Ran | Advance]:
        """Yield how far it is, and the batches on the way."""
        found, done = [self.embedder.nothing], 0
        run = self.embedder.run(Reader(Source()), full=True, blocks=[self.records])
        for window in self.embedder.windows(run):
            self.tally.merge(window.counts)
            for part in window.parts:
                if isinstance(part, Ran):
                    yield part
                    done += part.texts
                    yield Advance(done, "texts", done / len(self.records))
                else:
                    found.append(np.asarray(part.vectors))
        self.vectors = np.concatenate(found)
