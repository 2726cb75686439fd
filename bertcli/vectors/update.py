"""An output that follows its input: texts that it holds keep their vectors, others get theirs.

Beside the output an index has a digest of each row: of its text, and of all else that decides its
vector. A vector is taken over where the digest is the same, so the new output has the bytes of a
run from nothing, as far as a vector depends on its text alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

import numpy as np

from bertcli.embedding.embedded import COLUMNS, EmbeddedBlock, EmbedWindow, windows_of
from bertcli.embedding.embedder import Embedder
from bertcli.files.jsonl import objects_of
from bertcli.inference.progress import Ran
from bertcli.tokenizing.columns import RaggedBatch
from bertcli.tokenizing.run import Batch, TokenizeRun, each_of
from bertcli.vectors.fingerprint import TextDigests
from bertcli.vectors.journal import Files
from bertcli.vectors.reading import Aside, floats
from bertcli.vectors.spool import DIGEST


class KnownVectors:
    """The vectors of an output, by the digests of their texts. ``reused`` counts texts."""

    def __init__(
        self, rows: Mapping[bytes, int], vectors: np.ndarray, digests: TextDigests
    ) -> None:
        self.rows, self.vectors, self.digests = rows, vectors, digests
        self.reused = 0
        self.without_digests = False  # whether the output before tells nothing of its texts

    @classmethod
    @contextmanager
    def open(
        cls, files: Files, digests: TextDigests, nothing: np.ndarray
    ) -> Iterator[KnownVectors]:
        """Yield those of an output, or none where there is none.

        ``nothing`` is of the shape of no vector, [0, D...].
        """
        exists = files.output.exists()
        rows = _rows_of(files.row_index) if exists else {}
        with closing(Aside()) as aside:
            if rows:
                for block in floats(str(files.output), nothing.shape[-1]):
                    if block.shape[1:] == nothing.shape[1:]:  # else of another width
                        aside.add(block)
            known = {digest: row for digest, row in rows.items() if row < aside.count}
            reusable = cls(known, aside.vectors(), digests)
            index = files.row_index  # without a row, it is that of an output without any
            empty = index.exists() and not index.stat().st_size
            reusable.without_digests = exists and not rows and not empty
            yield reusable
            del reusable.vectors

    def windows(self, embedder: Embedder, run: TokenizeRun) -> Iterator[EmbedWindow]:
        """Yield the windows of a run, as those of the embedder."""
        for counts, batch in run.counted():
            yield EmbedWindow(counts, self._parts(embedder, batch))

    def _parts(self, embedder: Embedder, batch: Batch) -> Iterator[Ran | EmbeddedBlock]:
        if not len(batch):
            return
        items = windows_of(each_of(batch, COLUMNS))
        digests = self.digests.of([windows[0].record for windows in items])
        old = np.array([self.rows.get(digest, -1) for digest in digests])
        fresh = np.flatnonzero(old < 0)
        if len(fresh) == len(old):
            yield from embedder.embedded(batch)
            return
        vectors = self.vectors[np.maximum(old, 0)]
        embedder.refuse(batch)
        new = [item for at in fresh for item in items[at]]
        for part in embedder.embedded(new):
            if isinstance(part, Ran):
                yield part
            else:
                vectors[fresh] = part.vectors
        self.reused += len(old) - len(fresh)
        firsts = batch if isinstance(batch, RaggedBatch) else [windows[0] for windows in items]
        yield EmbeddedBlock(firsts, vectors)


def _rows_of(index: Path) -> dict[bytes, int]:
    """Return the rows of an index by their digests; none where it has none."""
    rows: dict[bytes, int] = {}
    if not index.exists():
        return rows
    for _, row in chain.from_iterable(objects_of(str(index))):
        if not isinstance(row.get(DIGEST), str):
            return {}
        rows.setdefault(bytes.fromhex(row[DIGEST]), row["row"])
    return rows
