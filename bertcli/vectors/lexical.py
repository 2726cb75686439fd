"""Search by the terms of texts (BM25), and fusion of what two searches find.

A term is a token of the model, so that names and numbers are found by their pieces.

Sources: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009, with
the weight of terms of Lucene, which is never negative; Cormack, Clarke and Buettcher, Reciprocal
Rank Fusion, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.vectors.nearest import DIGITS, Match

if TYPE_CHECKING:
    from numpy.typing import NDArray

K1, B = 1.2, 0.75  # how soon further occurrences of a term count less; how much length counts
RANKS = 60  # what is added to a rank, so that the first ones count about the same
DEPTH = 100  # rows of each search that are fused, at least
TERMS = Layout(("input_ids",), special_tokens=False)


class Postings(NamedTuple):
    """The terms of texts in order, each with the rows it occurs in, and what it counts there."""

    terms: NDArray[np.int64]
    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    texts: int


class Bm25:
    """An index of texts by their terms, in memory: add all of them, then ask."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.terms: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]  # of all texts in turn
        self.lengths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]

    def add(self, texts: Sequence[Record]) -> None:
        """Take in the next texts."""
        tokens = self.tokenizer.encode_records(texts, TERMS)
        self.terms.append(np.asarray(tokens.ids, np.int64))
        self.lengths.append(np.asarray(tokens.lengths, np.int64))

    @cached_property
    def postings(self) -> Postings:
        """The index of all texts."""
        terms, lengths = np.concatenate(self.terms), np.concatenate(self.lengths)
        texts = max(1, len(lengths))
        rows = np.repeat(np.arange(len(lengths)), lengths)
        occurrences, counts = np.unique(terms * texts + rows, return_counts=True)
        terms, rows = np.divmod(occurrences, texts)
        shares = lengths[rows] * texts / max(1, len(rows) and lengths.sum())
        weights = counts * (K1 + 1) / (counts + K1 * (1 - B + B * shares))
        return Postings(terms, rows, weights, texts)

    def best(self, query: Record, count: int) -> list[Match]:
        """Return the rows with any term of the query, the best first, the earlier of equal ones."""
        postings = self.postings
        scores = np.zeros(postings.texts)
        tokens = self.tokenizer.encode_records([query], TERMS)
        for term, times in zip(*np.unique(tokens.ids, return_counts=True), strict=True):
            start, stop = np.searchsorted(postings.terms, (term, term + 1))
            rarity = log(1 + (postings.texts - (stop - start) + 0.5) / (stop - start + 0.5))
            scores[postings.rows[start:stop]] += times * rarity * postings.weights[start:stop]
        rows = np.flatnonzero(scores)
        order = np.lexsort((rows, -scores[rows].round(DIGITS)))[:count]
        return [Match(row, round(scores[row], DIGITS)) for row in rows[order].tolist()]


def fused(dense: Sequence[Match], lexical: Sequence[Match], count: int) -> list[Match]:
    """Return the rows of two searches by the sum of their reciprocal ranks, with both ranks."""
    places = [
        {match.row: rank for rank, match in enumerate(matches, 1)} for matches in (dense, lexical)
    ]
    matches = []
    for row in places[0] | places[1]:
        ranks = [ranked.get(row) for ranked in places]
        score = sum(1 / (RANKS + rank) for rank in ranks if rank)
        names = dict(zip(("dense_rank", "lexical_rank"), ranks, strict=True))
        matches.append(Match(row, round(score, DIGITS), names))
    return sorted(matches, key=lambda match: (-match.score, match.row))[:count]
