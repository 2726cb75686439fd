"""A table with a vector for each token, and nothing else: StaticEmbedding and model2vec folders.

    table = read_table(folder)
    table.means(ids, offsets)      # the mean over the tokens of each text [B, D]

The table stays in its file, mapped into memory: only the rows of tokens that occur are read. A
vector is added up token by token in the order of its text, STEP tokens at a time, so that its bits
do not depend on other texts. Letters: `B` texts, `T` tokens of all of them, `V` rows, `D`
dimensions. Source: sentence-transformers 6.2, StaticEmbedding; model2vec 0.10, StaticModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertcli.checkpoints.scan import require_weights
from bertcli.checkpoints.stored_tensor import mapped
from bertcli.checkpoints.tensors import read_tensors
from bertcli.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

ROWS = ("embedding.weight", "embeddings")  # of sentence-transformers, of model2vec
TOGETHER = 256  # texts whose sums fit into the cache of a CPU
STEP = 64  # tokens whose sum is a part of the whole: rounding errors of long sums add up
LONG = 1024  # tokens of a text that are added up with those of others; a multiple of STEP


@dataclass(frozen=True, eq=False)
class StaticTable:
    """The vectors of tokens; ``mapping`` and ``weights`` are of vocabularies that were reduced."""

    rows: np.ndarray  # [V, D], float32, float16 or int8
    mapping: np.ndarray | None = None  # token id -> row
    weights: np.ndarray | None = None  # of each token id

    @property
    def width(self) -> int:
        """The number of dimensions."""
        return int(self.rows.shape[1])

    @property
    def tokens(self) -> int:
        """The number of token ids that have a vector."""
        lengths = [len(one) for one in (self.mapping, self.weights) if one is not None]
        return min(lengths, default=len(self.rows))

    def means(self, ids: np.ndarray, offsets: Places) -> np.ndarray:
        """Return the mean over the tokens of each text [B, D], from ids [T] and offsets [B + 1].

        That of a text without tokens is zero.
        """
        lengths = np.diff(offsets)
        order = np.argsort(-lengths, kind="stable")
        found = np.empty((len(lengths), self.width), np.float32)
        for start in range(0, len(order), TOGETHER):
            some = order[start : start + TOGETHER]
            sums = self._sums(ids, offsets[some], lengths[some])
            found[some] = sums / np.maximum(lengths[some], 1)[:, None].astype(np.float32)
        return found

    def _sums(self, ids: np.ndarray, starts: Places, lengths: Places) -> np.ndarray:
        """Return the sums over the tokens of texts, the longest first."""
        sums = np.zeros((len(lengths), self.width), np.float32)
        places = np.arange(min(int(lengths[0]), LONG))
        counts = np.searchsorted(-lengths, -places, "left").tolist()  # of texts that are longer
        for start in range(0, len(places), STEP):
            parts = np.zeros((counts[start], self.width), np.float32)
            for place, count in enumerate(counts[start : start + STEP], start):
                parts[:count] += self._vectors(ids[starts[:count] + place])
            sums[: len(parts)] += parts
        for at in range(int((lengths > LONG).sum())):
            tokens = ids[starts[at] : starts[at] + lengths[at]]
            for place in range(LONG, len(tokens), STEP):
                sums[at] += self._vectors(tokens[place : place + STEP]).sum(0)
        return sums

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        """Return the vector of each token [n, D]."""
        which = ids if self.mapping is None else self.mapping[ids]
        found = np.asarray(np.take(self.rows, which, 0), np.float32)
        return found if self.weights is None else found * self.weights[ids][:, None]


def read_table(folder: Path) -> StaticTable:
    """Open the table of a folder. ModelError when it is incomplete, or no such table."""
    files = require_weights(folder)
    tensors = {one.name: one for one in read_tensors(files)}
    name = next((name for name in ROWS if name in tensors), None)
    if name is None:
        there = ", ".join([*tensors][:8]) or "nothing"
        raise ModelError(
            f"{files.files[0]}: no table of token vectors ({' or '.join(ROWS)})", f"it has {there}"
        )
    rows = mapped(tensors[name])
    mapping = mapped(tensors["mapping"]) if "mapping" in tensors else None
    weights = mapped(tensors["weights"]) if "weights" in tensors else None
    flat = all(one is None or one.ndim == 1 for one in (mapping, weights))
    if rows.ndim != 2 or not rows.size or not flat:
        raise ModelError(f"{files.files[0]}: {name} is no table, or what belongs to it is no list")
    if mapping is not None and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(rows):
        raise ModelError(f"{files.files[0]}: mapping names rows that {name} does not have")
    if weights is not None:
        weights = np.array(weights, np.float32)
    return StaticTable(rows, mapping, weights)
