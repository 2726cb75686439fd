"""The rows of a corpus that are nearest to some queries, by cosine, in one pass.

    near = Nearest(queries, 10)      # [q, D]
    for vectors in floats("corpus.npy"):
        near.add(vectors)            # [n, D]
    near.matches()[0][0].row

Letters: `q` queries, `n` vectors of a block, `k` rows kept for each query, `D` dimensions. Nothing
here knows a model: vectors come from a file, or from an embedder while it computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from bertcli.errors import InputError

if TYPE_CHECKING:
    from bertcli.vectors.reading import Array

DIGITS = 9  # scores are equal when these are: then the earlier row comes first


class Match(NamedTuple):
    """A row of the corpus, numbered from 0, and its cosine to the query."""

    row: int
    score: float


class Nearest:
    """The best ``k`` rows for each query among all that it has seen.

    Those below the ``threshold`` are left out.
    """

    def __init__(self, queries: Array, k: int, threshold: float | None = None) -> None:
        self.queries, self.k, self.threshold = _unit(queries), k, threshold
        self.rows = 0
        self._best: list[list[Match]] = [[] for _ in queries]

    def add(self, vectors: Array) -> None:
        """Take in the next rows of the corpus, [n, D].

        Raises InputError when they have other dimensions than the queries, or are not finite.
        """
        import numpy as np

        _check(vectors, self.queries, self.rows)
        scores = (self.queries @ _unit(vectors).T).round(DIGITS)  # [q, n]
        for best, mine in zip(self._best, scores, strict=True):
            least = best[-1].score if len(best) == self.k else -np.inf
            fresh = np.flatnonzero(mine > least)  # a tie goes to the row that was first
            fresh = fresh[np.lexsort((fresh, -mine[fresh]))[: self.k]]
            best += [Match(self.rows + int(at), float(mine[at])) for at in fresh]
            best.sort(key=lambda match: (-match.score, match.row))
            del best[self.k :]
        self.rows += len(vectors)

    def matches(self) -> list[list[Match]]:
        """Return for each query its rows, the nearest first."""
        least = -inf if self.threshold is None else self.threshold
        return [[match for match in best if match.score >= least] for best in self._best]

    @property
    def found(self) -> set[int]:
        """The rows of all matches."""
        return {match.row for best in self.matches() for match in best}


def nearest(queries: Array, blocks: Iterable[Array], k: int) -> list[list[Match]]:
    """Return the ``k`` nearest rows of some blocks [n, D] for each query [q, D]."""
    found = Nearest(queries, k)
    for vectors in blocks:
        found.add(vectors)
    return found.matches()


def _check(vectors: Array, queries: Array, before: int) -> None:
    import numpy as np

    if vectors.ndim != 2 or vectors.shape[1] != queries.shape[1]:
        sizes = " x ".join(map(str, vectors.shape[1:]))
        raise InputError(
            f"the vectors have {sizes} dimensions, and the query has {queries.shape[1]}",
            "both must come from one model, with the same --dim, --layers and --pooling",
        )
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"row {before + int(finite.argmin())} contains NaN or infinity")


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1 in float64, so that equal rows get equal scores in any block."""
    import numpy as np

    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: Array = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit
