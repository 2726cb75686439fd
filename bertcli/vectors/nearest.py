"""The rows of a corpus that are nearest to some queries, by cosine, in one pass.

    near = Nearest(queries, 10)      # [q, D]
    for vectors in floats("corpus.npy"):
        near.add(vectors)            # [n, D]
    near.matches()[0][0].row

Letters: `q` queries, `n` vectors of a block, `k` rows kept for each query, `D` dimensions. Nothing
here knows a model: vectors come from a file, or from an embedder while it computes them.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from bertcli.errors import InputError
from bertcli.vectors.reading import Array

DIGITS = 9  # scores are equal when these are: then the earlier row comes first
SQUARES = (1e-24, 1e30)  # of lengths: float32 loses no digit between them
FEW = 4  # queries
AT_ONCE = 256  # queries whose products with a block are held


class Match(NamedTuple):
    """A row of the corpus, numbered from 0, and its cosine to the query."""

    row: int
    score: float


class BestRows:
    """The rows with the highest scores for each query; of equals, the earlier ones.

    ``rows`` counts all that were seen. Those below the ``threshold`` are left out.
    """

    def __init__(self, queries: int, k: int, threshold: float | None = None) -> None:
        self.k, self.threshold, self.rows = k, threshold, 0
        self._best: list[list[Match]] = [[] for _ in range(queries)]

    def keep(self, number: int, rows: Array, scores: Array) -> None:
        """Take the best of some rows [n], later than all before, for one query."""
        best = self._best[number]
        least = best[-1].score if len(best) == self.k else -np.inf
        better = scores > least  # a tie goes to the row that was first
        rows, scores = rows[better], scores[better]
        order = np.lexsort((rows, -scores))[: self.k]
        best += [Match(int(rows[at]), float(scores[at])) for at in order]
        best.sort(key=lambda match: (-match.score, match.row))
        del best[self.k :]

    def matches(self) -> list[list[Match]]:
        """Return for each query its rows, the best first."""
        least = -inf if self.threshold is None else self.threshold
        return [[match for match in best if match.score >= least] for best in self._best]

    @property
    def found(self) -> set[int]:
        """The rows of all matches."""
        return {match.row for best in self.matches() for match in best}


class Nearest(BestRows):
    """The best ``k`` rows for each query among all that it has seen, by cosine.

    Those below the ``threshold`` are left out. Products in float32 choose the rows that may be
    among the best, whatever their rounding, and their scores are computed in float64: equal rows
    get equal scores in any block.
    """

    def __init__(self, queries: Array, k: int, threshold: float | None = None) -> None:
        super().__init__(len(queries), k, threshold)
        self.queries = unit(queries)
        self._narrow = self.queries.astype(np.float32)

    def add(self, vectors: Array) -> None:
        """Take in the next rows of the corpus, [n, D].

        Raises InputError when they have other dimensions than the queries, or are not finite.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.queries.shape[1]:
            sizes = " x ".join(map(str, vectors.shape[1:]))
            raise InputError(
                f"the vectors have {sizes} dimensions, and the query has {self.queries.shape[1]}",
                "both must come from one model, with the same --dim, --layers and --pooling",
            )
        narrow = vectors.astype(np.float32, copy=False)
        squares = np.einsum("nd,nd->n", narrow, narrow)
        usual = bool(((squares > SQUARES[0]) & (squares < SQUARES[1])).all())
        if not usual:
            refuse_infinite(vectors, self.rows)
            vectors = unit(vectors)
            narrow, squares = vectors.astype(np.float32), np.ones(len(vectors), np.float32)
        lengths = np.sqrt(squares)
        for at in range(0, len(self._best), AT_ONCE):
            near = _products(self._narrow[at : at + AT_ONCE], narrow)
            for number, row in enumerate(near / lengths, at):
                self._take(number, row, vectors)
        self.rows += len(vectors)

    def _take(self, number: int, near: Array, vectors: Array) -> None:
        """Take the best rows for one query, given scores that are near to the exact ones, [n]."""
        best = self._best[number]
        slack = (vectors.shape[1] + 8) * float(np.finfo(np.float32).eps)
        least = best[-1].score if len(best) == self.k else -np.inf
        fresh = np.flatnonzero(near > least - slack)
        if len(fresh) > self.k:
            last = np.partition(near[fresh], -self.k)[-self.k]
            fresh = fresh[near[fresh] >= last - 2 * slack]
        self.score(number, self.rows + fresh, vectors[fresh])

    def score(self, number: int, rows: Array, vectors: Array) -> None:
        """Take the best of some rows [n], later than all before, and their vectors [n, D].

        They are for one query.
        """
        self.keep(number, rows, (unit(vectors) @ self.queries[number]).round(DIGITS))


def refuse_infinite(vectors: Array, before: int) -> None:
    """Raise InputError for a row [n, D] with NaN or infinity, of which so many come before."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"row {before + int(finite.argmin())} contains NaN or infinity")


def _products(queries: Array, vectors: Array) -> Array:
    """Return the products of queries [q, D] and vectors [n, D], [q, n]."""
    if len(queries) > FEW:
        found: Array = queries @ vectors.T
        return found
    # As fast as memory, without the threads of BLAS, which wait for each other on a busy machine.
    return np.stack([np.einsum("d,nd->n", query, vectors) for query in queries])


def unit(vectors: Array) -> Array:
    """Return vectors of length 1 in float64; one of zeros stays as it is."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: Array = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit
