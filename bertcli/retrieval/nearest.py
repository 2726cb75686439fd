"""The rows of a corpus that are nearest to some queries, by cosine or dot product, in one pass.

    near = Nearest(queries, 10)      # [q, D]
    for vectors in floats("corpus.npy"):
        near.add(vectors)            # [n, D]
    near.matches()[0][0].row

`TermProducts` scores by the dot product of weights of terms, `MaxSim` by the similarity of each
token of the query to the nearest token of a text, summed (ColBERT; Khattab and Zaharia 2020,
section 3.3). All are exact, computed in float64: equal texts score alike in any block.

Letters: `q` queries, `n` vectors of a block, `k` rows kept for each query, `D` dimensions. Nothing
here knows a model: vectors come from a file, or from an embedder while it computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from bertcli.embedding.sentence_modules import unit
from bertcli.errors import InputError
from bertcli.formats.vector_files import SAME_MODEL, Array
from bertcli.records.record import Record

DIGITS = 9  # scores are equal when these are: then the earlier row comes first
SQUARES = (1e-24, 1e30)  # of lengths: float32 loses no digit between them
LOWEST = -1e38  # below all scores
AT_ONCE = 256  # queries whose products with a block are held
NO_TEXT = Record(None)  # type: ignore[arg-type] # of a row with nothing but its vector


class Match(NamedTuple):
    """A row of the corpus, numbered from 0, and its similarity to the query.

    Its text and fields are in the ``record``, once they were read and as far as they are there.
    """

    row: int
    score: float
    # In the searches that it is fused of, and the score of the search before it was reranked.
    ranks: Mapping[str, float | int | None] = {}
    record: Record = NO_TEXT

    @property
    def id(self) -> Any:
        """The id of its text or its vector, else its own number."""
        return self.row if self.record.id is None else self.record.id

    def fields(self) -> dict[str, Any]:
        """Return what is written."""
        row = {"row": self.row, "id": self.id, "score": self.score, **self.ranks}
        if self.record.text is not None:
            row["text"] = self.record.text
        return row | (self.record.extra or {})


class BestRows:
    """The rows with the highest scores for each query; of equals, the earlier ones.

    ``rows`` counts all that were seen. Those below the ``threshold`` are left out.
    """

    def __init__(self, queries: Any, k: int, threshold: float | None = None) -> None:
        self.queries, self.k, self.rows = queries, k, 0
        self.threshold = -inf if threshold is None else threshold
        self.excluded: Array = np.zeros(0, int)  # rows that are never among the best
        self._best: list[list[Match]] = [[] for _ in queries]

    def keep(self, number: int, rows: Array, scores: Array) -> None:
        """Take the best of some rows [n], later than all before, for one query."""
        scores = scores.round(DIGITS)
        if len(self.excluded):
            allowed = ~np.isin(rows, self.excluded)
            rows, scores = rows[allowed], scores[allowed]
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
        return [[match for match in best if match.score >= self.threshold] for best in self._best]


class Nearest(BestRows):
    """The best ``k`` rows for each query among all that it has seen, by cosine or ``dot`` product.

    Those below the ``threshold`` are left out, and those above a query's own ceiling. Products in
    float32 choose the rows that may be among the best, whatever their rounding, and their scores
    are computed in float64: equal rows get equal scores in any block.
    """

    def __init__(
        self, queries: Array, k: int, threshold: float | None = None, *, dot: bool = False
    ) -> None:
        super().__init__(queries, k, threshold)
        self.dot = dot
        self.queries = self.scaled(queries)
        self._narrow = self.queries.astype(np.float32)
        self._lengths = np.linalg.norm(self.queries, axis=1)
        self.ceilings: Array | None = None

    def scaled(self, vectors: Array) -> Array:
        """Return vectors in float64 whose products are the scores."""
        return vectors.astype(np.float64) if self.dot else unit(vectors)

    def add(self, vectors: Array) -> None:
        """Take in the next rows of the corpus, [n, D]. InputError when they are not finite."""
        narrow = vectors.astype(np.float32, copy=False)
        squares = np.vecdot(narrow, narrow)
        usual = bool(((squares > SQUARES[0]) & (squares < SQUARES[1])).all())
        if not usual:
            refuse_infinite(vectors, self.rows)
            if not self.dot:
                vectors = unit(vectors)
                narrow, squares = vectors.astype(np.float32), np.ones(len(vectors), np.float32)
        lengths = np.sqrt(squares)
        rounding = (vectors.shape[1] + 8) * float(np.finfo(np.float32).eps)
        rounding *= float(lengths.max(initial=0)) if self.dot else 1.0
        hidden = self.excluded - self.rows
        hidden = hidden[(hidden >= 0) & (hidden < len(vectors))]
        for at in range(0, len(self._best), AT_ONCE):
            near = self._narrow[at : at + AT_ONCE] @ narrow.T
            if not self.dot:
                near /= lengths
            near[:, hidden] = -np.inf
            self._take(at, near, vectors, rounding)
        self.rows += len(vectors)

    def _take(self, first: int, near: Array, vectors: Array, rounding: float) -> None:
        """Take the best rows for ``len(near)`` queries, of which this is the first.

        Their scores in float32, ``near`` [q, n], are no farther from the exact ones than
        ``rounding`` times the length of the query.
        """
        part = slice(first, first + len(near))
        slack = (rounding * self._lengths[part, None]).astype(np.float32)
        if self.ceilings is not None:
            near[near > self.ceilings[part, None].astype(np.float32) + slack] = -np.inf
        last = [best[-1].score if len(best) == self.k else LOWEST for best in self._best[part]]
        least = np.array(last, np.float32)[:, None] - slack
        places = np.flatnonzero(near >= least)
        if len(places) > self.k * len(near):
            best = np.partition(near, -self.k, 1)[:, [-self.k]]
            places = np.flatnonzero(near >= np.maximum(least, best - 2 * slack))
        borders = np.searchsorted(places, len(vectors) * np.arange(1, len(near)))
        for number, of_query in enumerate(np.split(places, borders), first):
            if len(of_query):
                rows = of_query % len(vectors)
                scores = self.scaled(vectors[rows]) @ self.queries[number]
                self.keep(number, self.rows + rows, scores)


def refuse_infinite(vectors: Array, before: int) -> None:
    """Raise InputError for a row [n, D] with NaN or infinity, of which so many come before."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"row {before + int(finite.argmin())} contains NaN or infinity")


class TermProducts(BestRows):
    """The texts with the largest dot products with each query: terms [k, 2], ids and weights."""

    def __init__(
        self, queries: Sequence[np.ndarray], k: int, threshold: float | None = None
    ) -> None:
        super().__init__(queries, k, threshold)
        self.ids = np.unique(np.concatenate([np.zeros(0), *(terms[:, 0] for terms in queries)]))
        self.weights = np.zeros((len(queries), len(self.ids) + 1))  # the last: terms of no query
        for row, terms in zip(self.weights, queries, strict=True):
            row[np.searchsorted(self.ids, terms[:, 0])] = terms[:, 1]

    def add(self, texts: Sequence[np.ndarray]) -> None:
        """Take in the terms of the next texts, [k, 2] each."""
        flat = np.concatenate([np.zeros((0, 2)), *texts])
        at = np.searchsorted(self.ids, flat[:, 0])
        asked = np.append(self.ids, -1)[at] == flat[:, 0]
        owners = np.repeat(np.arange(len(texts)), [len(terms) for terms in texts])[asked]
        places, weights = at[asked], flat[asked, 1]
        rows = self.rows + np.arange(len(texts))
        for number, mine in enumerate(self.weights):
            scores = np.bincount(owners, mine[places] * weights, len(texts))
            self.keep(number, rows, scores)
        self.rows += len(texts)


class MaxSim(BestRows):
    """The texts that match each query best, token by token: vectors [L, D] of both."""

    def add(self, texts: Sequence[np.ndarray]) -> None:
        """Take in the vectors of the tokens of the next texts, [L, D] each.

        Raises InputError when they have other dimensions than those of the queries.
        """
        for number, query in enumerate(self.queries):
            wide = query.astype(np.float64)
            scores = np.zeros(len(texts))
            for at, tokens in enumerate(texts):
                if len(tokens) and len(query):
                    if tokens.shape[1:] != query.shape[1:]:
                        raise InputError(
                            f"the vectors have {tokens.shape[-1]} dimensions, and those of the "
                            f"query have {query.shape[-1]}",
                            SAME_MODEL,
                        )
                    scores[at] = (wide @ tokens.astype(np.float64).T).max(1).sum()
            self.keep(number, self.rows + np.arange(len(texts)), scores)
        self.rows += len(texts)
