"""The vectors of records that are in memory, as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from bertcli.embedding.embedder import Embedder
from bertcli.inference.progress import Advance, Ran
from bertcli.records.records import Record
from bertcli.tokenizing.run import TokenCounts


@dataclass
class RecordVectors:
    """The vectors of records: iterate to the end, then they are in ``vectors``, [n, D]."""

    embedder: Embedder
    records: Sequence[Record]
    tally: TokenCounts = field(default_factory=TokenCounts)
    vectors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def __iter__(self) -> Iterator[Advance]:
        """Yield how far it is."""
        found: list[np.ndarray] = []
        embedder, done = self.embedder, 0
        records = embedder.prepare(self.records)
        size = embedder.options.window
        for start in range(0, len(records), size):
            batch = embedder.runtime.tokenizer.encode(
                records[start : start + size], embedder.layout, first=start
            )
            self.tally.add(batch, embedder.max_length)
            for part in embedder.embedded(batch):
                if not isinstance(part, Ran):
                    found.append(np.asarray(part.vectors))
                    done += len(part)
                    yield Advance(done, "texts", done / len(records))
        self.vectors = np.concatenate(found) if found else embedder.nothing
