"""Reorder search results by the scores of a cross-encoder.

    rerank = AnswerReranker(Reranker(head), top_k=10)
    for answers in rerank(search.answering(queries.blocks())): ...

The scores are those of `bertcli rerank` for each query and the texts of its hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from bertcli.formats.tables import rounded
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts
from bertcli.retrieval.nearest import Match, refuse_without_text
from bertcli.retrieval.search import Answer
from bertcli.tasks.rerank import Reranker
from bertcli.tokenizing.run import TokenCounts

RETRIEVAL_SCORE = "retrieval_score"  # field of a hit: its score before reranking


@dataclass
class AnswerReranker:
    """Keeps the best ``top_k`` hits of each answer, with a score of at least ``threshold``."""

    reranker: Reranker
    top_k: int
    threshold: float | None = None
    tally: TokenCounts = field(default_factory=TokenCounts)

    def __call__(self, batches: Iterable[list[Answer]]) -> Iterator[list[Answer]]:
        """Yield batches of answers with their hits reordered."""
        for answers in batches:
            yield [answer._replace(hits=self._best(answer)) for answer in answers]

    def _best(self, answer: Answer) -> list[Match]:
        """Return the best hits of a query. Raises InputError for hits without a text."""
        refuse_without_text(answer.hits, "rerank")
        records = [hit.record for hit in answer.hits]
        query = str(answer.query.text)
        stream = replace(self.reranker, query=query).stream(GivenTexts(records, Input()))
        hits = []
        for result in chain.from_iterable(stream):
            hit = answer.hits[result.sample]
            scores: Mapping[str, float | int | None] = {RETRIEVAL_SCORE: hit.score, **hit.ranks}
            hits.append(hit._replace(score=rounded(result.fields["score"]), ranks=scores))
        self.tally.merge(stream.tally)
        hits.sort(key=lambda hit: -hit.score)  # equal scores stay in the order of the search
        if self.threshold is not None:
            hits = [hit for hit in hits if hit.score >= self.threshold]
        return hits[: self.top_k]
