"""An output that follows its input: texts that it holds keep their vectors, others get theirs.

Beside the output an index has a digest of each row: of its text, and of all else that decides its
vector. A vector is taken over where the digest is the same, so the new output has the bytes of a
run from nothing, as far as a vector depends on its text alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from bertcli.embedding.embedded import COLUMNS, EmbeddedBlock, EmbedWindow, windows_of
from bertcli.embedding.embedder import Embedder
from bertcli.files.jsonl import objects_of
from bertcli.inference.progress import Ran
from bertcli.tokenizing.columns import RaggedBatch
from bertcli.tokenizing.run import Batch, TokenizeRun, each_of
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
