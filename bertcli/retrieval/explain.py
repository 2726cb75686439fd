"""Explain the score of a hit: the share of each token of its text in the score.

    explainer = Explainer(embedder)
    explainer.explain(nearest.matches(), nearest)      # hits with tokens, offsets and shares

Shares add up to the score. A cosine or a dot product with a mean of token vectors is a sum over
pairs of tokens; the share of a token is the sum over its pairs with the tokens of the query. MaxSim
is a sum over the tokens of the query; each gives its similarity to the nearest token of the text.
Only the texts of the hits are encoded again.

Letters: `L` tokens of a text, `Q` tokens of a query, `D` dimensions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcli.embedding.contributions import (
    offsets_in_text,
    refuse_not_a_sum,
    text_contributions,
    token_vectors,
)
from bertcli.embedding.pooling import TokenFields
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.errors import LOG
from bertcli.formats.vector_files import Array
from bertcli.records.record import Record
from bertcli.retrieval.nearest import DIGITS, Match, MaxSim, Nearest, refuse_without_text

SHARES = "shares"
EXPLANATION_FIELDS = frozenset({"tokens", "words", "offsets", "sequence_ids", SHARES})
TOLERANCE = 1e-5  # of scores; those of float32 vectors of the same text differ by less


@dataclass
class Explainer:
    """Adds to each hit the tokens of its text, with their shares of the score.

    ``embedder`` is that of the corpus. Raises UsageError if its scores are not sums over tokens.
    """

    embedder: RecordEmbedder
    # True after a warning that scores of stored vectors differ from the sums of shares.
    has_warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.embedder.options.per_token:
            refuse_not_a_sum(self.embedder)

    def explain(
        self, hits_of_queries: Sequence[Sequence[Match]], nearest: Nearest | MaxSim
    ) -> list[list[Match]]:
        """Return the hits of each query with explanations; ``nearest`` has found them.

        Raises InputError for a hit without a text.
        """
        records: dict[int, Record] = {}  # by row
        queries = defaultdict(list)  # row -> numbers of the queries with this hit
        for number, hits in enumerate(hits_of_queries):
            refuse_without_text(hits, "explain")
            for hit in hits:
                records[hit.row] = hit.record
                queries[hit.row].append(number)
        explanations: dict[tuple[int, int], Mapping[str, Any]] = {}  # by query and row
        texts = self._tokens_with_vectors(records.values())
        for (row, record), (tokens, vectors) in zip(records.items(), texts, strict=True):
            fields = tokens.as_fields(pair=record.pair is not None)
            fields["offsets"] = offsets_in_text(tokens, self.embedder.options.prompt or "")
            for number in queries[row]:
                shares = token_shares(nearest, number, vectors).round(DIGITS).tolist()
                explanations[number, row] = {**fields, SHARES: shares}
        explained = []
        for number, hits in enumerate(hits_of_queries):
            explained.append(
                [hit._replace(explanation=explanations[number, hit.row]) for hit in hits]
            )
            self._warn_of_difference(explained[-1])
        return explained

    def _tokens_with_vectors(
        self, records: Iterable[Record]
    ) -> Iterator[tuple[TokenFields, Array]]:
        """Yield the tokens of each text, and their vectors or contributions [L, D]."""
        if self.embedder.options.per_token:
            return token_vectors(self.embedder, records)
        return text_contributions(self.embedder, records)

    def _warn_of_difference(self, hits: Iterable[Match]) -> None:
        """Warn once if the shares of a hit do not add up to its score."""
        for hit in hits:
            total = sum(hit.explanation[SHARES])
            if abs(total - hit.score) > TOLERANCE * max(1, abs(hit.score)) and not self.has_warned:
                self.has_warned = True
                LOG.warn(
                    f"row {hit.row} has the score {hit.score:.6f}, and its shares add up to "
                    f"{total:.6f}: its stored vector differs from that of its text"
                )


def token_shares(nearest: Nearest | MaxSim, number: int, vectors: Array) -> Array:
    """Return the share of each token of a text in its score for query ``number``, [L].

    ``vectors`` [L, D] are the vectors of tokens for MaxSim, else their contributions to the vector
    of the text.
    """
    query = nearest.queries[number]
    if isinstance(nearest, MaxSim):
        if not (len(query) and len(vectors)):
            return np.zeros(len(vectors))
        similarities = query.astype(np.float64) @ vectors.astype(np.float64).T  # [Q, L]
        best = similarities.argmax(1)
        return np.bincount(best, similarities.max(1), len(vectors))
    shares = vectors @ query
    if nearest.dot:
        return shares
    length = np.linalg.norm(vectors.sum(0))
    return shares / length if length else shares
