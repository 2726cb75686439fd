"""Searches of texts that have several rows each: weights of terms, or vectors of tokens.

`TermProducts` scores by the dot product of weights, `MaxSim` by the similarity of each token of the
query to the nearest token of a text, summed (ColBERT). Both are exact, computed in float64: equal
texts score alike in any block. Source: Khattab and Zaharia 2020, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

import numpy as np

from bertcli.errors import InputError
from bertcli.vectors.nearest import DIGITS, BestRows

TOKENS = 1 << 13  # of texts, whose similarities to tokens of queries are held


class TermProducts(BestRows):
    """The texts with the largest dot products with each query: terms [k, 2], ids and weights."""

    def __init__(
        self, queries: Sequence[np.ndarray], k: int, threshold: float | None = None
    ) -> None:
        super().__init__(len(queries), k, threshold)
        self.ids = np.unique(np.concatenate([np.zeros(0), *(terms[:, 0] for terms in queries)]))
        self.weights = np.zeros((len(queries), len(self.ids) + 1))  # the last: terms of no query
        for row, terms in zip(self.weights, queries, strict=True):
            row[np.searchsorted(self.ids, terms[:, 0])] = terms[:, 1]

    def add(self, texts: Sequence[np.ndarray]) -> None:
        """Take in the terms of the next texts, [k, 2] each."""
        flat = np.concatenate([np.zeros((0, 2)), *texts])
        at = np.searchsorted(self.ids, flat[:, 0])
        known = np.append(self.ids, -1)[at] == flat[:, 0]
        owners = np.repeat(np.arange(len(texts)), [len(terms) for terms in texts])[known]
        places, weights = at[known], flat[known, 1]
        rows = self.rows + np.arange(len(texts))
        for number, mine in enumerate(self.weights):
            scores = np.bincount(owners, mine[places] * weights, len(texts))
            self.keep(number, rows, scores.round(DIGITS))
        self.rows += len(texts)


class MaxSim(BestRows):
    """The texts that match each query best, token by token: vectors [L, D] of both."""

    def __init__(
        self, queries: Sequence[np.ndarray], k: int, threshold: float | None = None
    ) -> None:
        super().__init__(len(queries), k, threshold)
        self.queries = [vectors.astype(np.float64) for vectors in queries]

    def add(self, texts: Sequence[np.ndarray]) -> None:
        """Take in the vectors of the tokens of the next texts, [L, D] each.

        Raises InputError when they have other dimensions than those of the queries.
        """
        longest = max((len(vectors) for vectors in texts), default=1)
        left, most = iter(texts), max(1, TOKENS // max(1, longest))
        while some := list(islice(left, most)):
            self._add(some)

    def _add(self, texts: Sequence[np.ndarray]) -> None:
        full = [at for at, vectors in enumerate(texts) if len(vectors)]
        ends = list(accumulate(len(texts[at]) for at in full))
        rows, scores = self.rows + np.arange(len(texts)), np.zeros(len(texts))
        tokens = np.concatenate([texts[at] for at in full]).astype(np.float64) if full else None
        for number, query in enumerate(self.queries):
            if tokens is not None and len(query):
                if tokens.shape[1:] != query.shape[1:]:
                    raise InputError(
                        f"the vectors have {tokens.shape[-1]} dimensions, and those of the query "
                        f"have {query.shape[-1]}",
                        "both must come from one model, with the same options",
                    )
                nearest = np.maximum.reduceat(query @ tokens.T, [0, *ends[:-1]], axis=1)
                scores[full] = nearest.sum(0)
            self.keep(number, rows, scores.round(DIGITS))
        self.rows += len(texts)
