"""An output that follows its input: texts that it holds keep their vectors, others get theirs.

Beside the output an index has a digest of each row: of its text, and of all else that decides its
vector. A vector is taken over where the digest is the same, so the new output has the bytes of a
run from nothing, as far as a vector depends on its text alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain

import numpy as np

from bertcli.embedding.embedded import EmbeddedBlock, EmbedWindow
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.pooling import split
from bertcli.files.jsonl import objects_of
from bertcli.inference.progress import Ran
from bertcli.tokenizing.columns import TokenBlock
from bertcli.tokenizing.run import TokenizeRun
from bertcli.vectors.fingerprint import TextDigests
from bertcli.vectors.formats import DIGEST, ROW
from bertcli.vectors.reading import Aside, floats
from bertcli.vectors.run_folder import RunFiles


class KnownVectors:
    """The vectors of an output, if there is one, by the digests of their texts: to be closed.

    ``reused`` counts texts.
    """

    def __init__(self, folder: RunFiles, digests: TextDigests, nothing: np.ndarray) -> None:
        """Read them; ``nothing`` is of the shape of no vector, [0, D...]."""
        self.digests, self.aside, self.reused = digests, Aside(), 0
        exists, index = folder.output.exists(), folder.index
        rows: dict[bytes, int] = {}
        for _, row in chain.from_iterable(objects_of(str(index)) if index.exists() else ()):
            if not (exists and isinstance(row.get(DIGEST), str)):
                rows = {}
                break
            rows.setdefault(bytes.fromhex(row[DIGEST]), row[ROW])
        for block in floats(str(folder.output), nothing.shape[-1]) if rows else ():
            if block.shape[1:] == nothing.shape[1:]:  # else of another width
                self.aside.add(block)
        self.rows = {digest: row for digest, row in rows.items() if row < self.aside.count}
        self.vectors = self.aside.vectors()
        empty = index.exists() and not index.stat().st_size  # of an output without a row
        self.without_digests = exists and not rows and not empty

    def close(self) -> None:
        """Remove them."""
        del self.vectors
        self.aside.close()

    def windows(self, embedder: Embedder, run: TokenizeRun) -> Iterator[EmbedWindow]:
        """Yield the windows of a run, as those of the embedder."""
        for counts, batch in run.counted():
            yield EmbedWindow(counts, self._parts(embedder, batch))

    def _parts(self, embedder: Embedder, batch: TokenBlock) -> Iterator[Ran | EmbeddedBlock]:
        if not len(batch):
            return
        starts = [*accumulate(batch.windows[:-1], initial=0)]
        digests = self.digests.of([batch.records[start] for start in starts])
        old = np.array([self.rows.get(digest, -1) for digest in digests])
        fresh = np.flatnonzero(old < 0)
        if len(fresh) == len(old):
            yield from embedder.embedded(batch)
            return
        vectors = self.vectors[np.maximum(old, 0)]
        embedder.refuse(batch)
        rows = split(range(len(batch)), batch.windows)
        for part in embedder.embedded(batch.take(row for at in fresh for row in rows[at])):
            if isinstance(part, Ran):
                yield part
            else:
                vectors[fresh] = part.vectors
        self.reused += len(old) - len(fresh)
        yield EmbeddedBlock(batch.take(starts) if len(starts) < len(batch) else batch, vectors)
