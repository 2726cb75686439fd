"""Find the rows of a corpus that are nearest to queries, by cosine or dot product, in one pass.

    nearest = Nearest(queries, 10)      # [q, D]
    for vectors in read_text_vectors("corpus.npy", D):
        nearest.add(vectors)            # [n, D]
    nearest.matches()[0][0].row

`TermProducts` scores by the dot product of term weights, `MaxSim` by the sum, over the tokens of
the query, of the similarity to the nearest token of a text (ColBERT; Khattab and Zaharia 2020,
section 3.3). All scores are exact and computed in float64: equal texts have equal scores in any
block.

Letters: `q` queries, `n` vectors of a block, `k` rows kept for each query, `D` dimensions. Vectors
come from a file, or from an embedder while it computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from bertcli.embedding.sentence_modules import unit_vectors
from bertcli.errors import InputError, option
from bertcli.formats.vector_files import SAME_MODEL, Array
from bertcli.records.record import Record

DIGITS = 9  # decimals of scores; of rows with equal scores, the earlier one comes first
SAFE_SQUARES = (1e-24, 1e30)  # squared lengths for which float32 neither underflows nor overflows
LOWEST = -1e38  # below all scores
QUERIES_PER_PRODUCT = 256  # to bound the memory of their products with a block
CANDIDATES_PER_PRODUCT = 4096  # to bound the memory of their vectors in float64
UNIT_TOLERANCE = 1e-5  # if all lengths are this close to 1, products are not divided by them
NO_TEXT = Record(None)  # type: ignore[arg-type] # record of a row with a vector only


class Match(NamedTuple):
    """A row of the corpus, numbered from 0, and its similarity to the query.

    ``record`` has its text and fields, once they have been read.
    """

    row: int
    score: float
    # Ranks in the searches that were fused, and the score before reranking.
    ranks: Mapping[str, float | int | None] = {}
    record: Record = NO_TEXT
    explanation: Mapping[str, Any] = {}  # the tokens of the text, with their shares of the score

    @property
    def id(self) -> Any:
        """The id of the text or vector; without one, the number of the row."""
        return self.row if self.record.id is None else self.record.id

    def fields(self) -> dict[str, Any]:
        """Return the fields to write."""
        row = {"row": self.row, "id": self.id, "score": self.score, **self.ranks}
        if self.record.text is not None:
            row["text"] = self.record.text
        return {**row, **(self.record.extra or {}), **self.explanation}


def refuse_without_text(matches: Iterable[Match], option_name: str) -> None:
    """Raise InputError for a match without a text, which an option needs."""
    for match in matches:
        if match.record.text is None:
            raise InputError(
                f"row {match.row} has no text, and {option(option_name)} reads texts",
                f"give {option('corpus')}, or vectors of bertcli embed --keep-fields",
            )


class BestRows:
    """The ``k`` rows with the highest scores for each query; of equal scores, the earlier rows.

    Scores are compared after rounding to `DIGITS` decimals. ``rows`` is the number of rows so far.
    `matches` leaves out rows whose score is below the ``threshold``.
    """

    def __init__(self, queries: Any, k: int, threshold: float | None = None) -> None:
        self.queries = queries
        self.k = k
        self.threshold = -inf if threshold is None else threshold
        self.excluded: Array = np.zeros(0, int)  # rows that never match
        self.restart()

    def restart(self) -> None:
        """Forget all rows."""
        self.rows = 0
        # [q, <= k], the best first; -inf where a query has fewer matches than another one
        self._best_scores = np.zeros((len(self.queries), 0))
        self._best_rows = np.zeros((len(self.queries), 0), int)

    @property
    def lowest_scores(self) -> Array:
        """The scores that a row must exceed, [q]: -inf for a query with less than k matches."""
        if self._best_scores.shape[1] < self.k:
            return np.full(len(self.queries), -inf)
        return self._best_scores[:, -1]

    def keep(self, queries: Array | int, rows: Array, scores: Array) -> None:
        """Keep the best of new matches: numbers of queries, rows and scores, [m] each.

        For each query, the rows come after all earlier ones.
        """
        scores = scores.round(DIGITS)
        queries = np.broadcast_to(queries, rows.shape)
        is_better = scores > self.lowest_scores[queries]  # of equal scores, the earlier row stays
        if len(self.excluded):
            is_better &= ~np.isin(rows, self.excluded)
        if not is_better.any():
            return
        queries = queries[is_better]
        changed, counts = np.unique(queries, return_counts=True)
        found = np.count_nonzero(self._best_scores[changed] > -inf, axis=1) + counts
        missing = min(self.k, int(found.max())) - self._best_rows.shape[1]
        if missing > 0:
            columns = ((0, 0), (0, missing))
            self._best_scores = np.pad(self._best_scores, columns, constant_values=-inf)
            self._best_rows = np.pad(self._best_rows, columns)
        width = self._best_rows.shape[1]
        queries = np.concatenate([changed.repeat(width), queries])
        rows = np.concatenate([self._best_rows[changed].ravel(), rows[is_better]])
        scores = np.concatenate([self._best_scores[changed].ravel(), scores[is_better]])
        order = np.lexsort((rows, -scores, queries))
        first_of_query = np.searchsorted(queries[order], changed)
        best = order[first_of_query[:, None] + np.arange(width)]
        self._best_scores[changed] = scores[best]
        self._best_rows[changed] = rows[best]

    def matches(self) -> list[list[Match]]:
        """Return the rows of each query, the best first."""
        is_match = (self._best_scores > -inf) & (self._best_scores >= self.threshold)
        return [
            [*map(Match, rows[matching].tolist(), scores[matching].tolist())]
            for rows, scores, matching in zip(
                self._best_rows, self._best_scores, is_match, strict=True
            )
        ]


class Nearest(BestRows):
    """The best ``k`` rows for each query by cosine or ``dot`` product.

    Rows are left out below the ``threshold``, and above ``ceilings`` [q], if set, by more than the
    rounding error of float32. Products in float32 select the candidates, with a margin for
    rounding; their scores are computed in float64, so that equal rows have equal scores in any
    block.
    """

    def __init__(
        self, queries: Array, k: int, threshold: float | None = None, *, dot: bool = False
    ) -> None:
        super().__init__(queries, k, threshold)
        self.dot = dot
        self.queries = self.scaled(queries)
        self._float32_queries = self.queries.astype(np.float32)
        self._lengths = np.linalg.norm(self.queries, axis=1)
        self._memory = np.empty(0, np.float32)
        self.ceilings: Array | None = None

    def scaled(self, vectors: Array) -> Array:
        """Return vectors in float64 whose dot products are the scores."""
        return vectors.astype(np.float64) if self.dot else unit_vectors(vectors)

    def add(self, vectors: Array) -> None:
        """Add the next rows of the corpus, [n, D]. Raises InputError if they are not finite."""
        float32 = vectors.astype(np.float32, copy=False)
        squares = np.vecdot(float32, float32)
        are_safe = bool(((squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])).all())
        if not are_safe:
            refuse_infinite(vectors, self.rows)
            if not self.dot:
                vectors = unit_vectors(vectors)
                float32 = vectors.astype(np.float32)
                squares = np.ones(len(vectors), np.float32)
        lengths = np.sqrt(squares)
        rounding = (vectors.shape[1] + 8) * float(np.finfo(np.float32).eps)
        deviation = float(np.abs(lengths - 1).max(initial=0))
        are_unit = deviation < UNIT_TOLERANCE
        if self.dot:
            rounding *= float(lengths.max(initial=0))
        elif are_unit:
            rounding += deviation
        excluded = self.excluded - self.rows  # indices in this block
        excluded = excluded[(excluded >= 0) & (excluded < len(vectors))]
        for start in range(0, len(self.queries), QUERIES_PER_PRODUCT):
            queries = self._float32_queries[start : start + QUERIES_PER_PRODUCT]
            products = self._product_memory(len(queries), len(vectors))
            np.matmul(queries, float32.T, out=products)
            if not (self.dot or are_unit):
                products /= lengths
            products[:, excluded] = -inf
            self._keep_candidates(start, products, vectors, rounding)
        self.rows += len(vectors)

    def _product_memory(self, *shape: int) -> Array:
        """Return an array for products, in the memory of the earlier ones.

        Fresh memory for each block takes as long as half the products.
        """
        size = prod(shape)
        if size > self._memory.size:
            self._memory = np.empty(size, np.float32)
        return self._memory[:size].reshape(shape)

    def _keep_candidates(
        self, first_query: int, products: Array, vectors: Array, rounding: float
    ) -> None:
        """Compute the exact scores of rows that may be among the best, and keep the best.

        ``products`` [q, n] are the scores of the queries from ``first_query`` in float32, whose
        error is at most ``rounding`` times the length of the query.
        """
        queries = slice(first_query, first_query + len(products))
        slack = (rounding * self._lengths[queries, None]).astype(np.float32)
        if self.ceilings is not None:
            ceilings = self.ceilings[queries, None].astype(np.float32)
            products[products > ceilings + slack] = -inf
        lowest_scores = np.maximum(self.lowest_scores[queries, None], LOWEST)
        lower_bounds = lowest_scores.astype(np.float32) - slack
        candidates = np.flatnonzero(products >= lower_bounds)  # flat indices
        if len(candidates) > self.k * len(products):
            kth_best = np.partition(products, -self.k, 1)[:, [-self.k]]
            candidates = np.flatnonzero(products >= np.maximum(lower_bounds, kth_best - 2 * slack))
        for start in range(0, len(candidates), CANDIDATES_PER_PRODUCT):
            numbers, rows = np.divmod(
                candidates[start : start + CANDIDATES_PER_PRODUCT], len(vectors)
            )
            numbers += first_query
            scores = np.vecdot(self.scaled(vectors[rows]), self.queries[numbers])
            self.keep(numbers, self.rows + rows, scores)


def refuse_infinite(vectors: Array, first_row: int) -> None:
    """Raise InputError if a row of vectors [n, D], numbered from `first_row`, is not finite."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"row {first_row + int(finite.argmin())} contains NaN or infinity")


class TermProducts(BestRows):
    """The texts with the largest dot products with each query.

    A text or query is its terms, [t, 2]: ids and weights.
    """

    def __init__(
        self, queries: Sequence[np.ndarray], k: int, threshold: float | None = None
    ) -> None:
        super().__init__(queries, k, threshold)
        self.ids = np.unique(np.concatenate([np.zeros(0), *(terms[:, 0] for terms in queries)]))
        self.weights = np.zeros(
            (len(queries), len(self.ids) + 1)
        )  # the last column: terms of no query
        for row, terms in zip(self.weights, queries, strict=True):
            row[np.searchsorted(self.ids, terms[:, 0])] = terms[:, 1]

    def add(self, texts: Sequence[np.ndarray]) -> None:
        """Add the terms of the next texts, [t, 2] each."""
        all_terms = np.concatenate([np.zeros((0, 2)), *texts])
        columns = np.searchsorted(self.ids, all_terms[:, 0])
        in_queries = np.append(self.ids, -1)[columns] == all_terms[:, 0]
        text_numbers = np.repeat(np.arange(len(texts)), [len(terms) for terms in texts])
        text_numbers = text_numbers[in_queries]
        columns = columns[in_queries]
        weights = all_terms[in_queries, 1]
        rows = self.rows + np.arange(len(texts))
        for number, query_weights in enumerate(self.weights):
            scores = np.bincount(text_numbers, query_weights[columns] * weights, len(texts))
            self.keep(number, rows, scores)
        self.rows += len(texts)


class MaxSim(BestRows):
    """The texts with the largest sums of token similarities to each query (MaxSim).

    A text or query is the vectors of its tokens, [L, D].
    """

    def add(self, texts: Sequence[np.ndarray]) -> None:
        """Add the token vectors of the next texts, [L, D] each.

        Raises InputError if their number of dimensions differs from that of the queries.
        """
        for number, query in enumerate(self.queries):
            query_tokens = query.astype(np.float64)
            scores = np.zeros(len(texts))
            for index, tokens in enumerate(texts):
                if len(tokens) and len(query):
                    if tokens.shape[1:] != query.shape[1:]:
                        raise InputError(
                            f"the vectors have {tokens.shape[-1]} dimensions, and those of the "
                            f"query have {query.shape[-1]}",
                            SAME_MODEL,
                        )
                    similarities = query_tokens @ tokens.astype(np.float64).T
                    scores[index] = similarities.max(1).sum()
            self.keep(number, self.rows + np.arange(len(texts)), scores)
        self.rows += len(texts)
