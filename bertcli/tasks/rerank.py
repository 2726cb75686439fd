"""Texts sorted by how relevant they are to a query, as a cross-encoder scores the pair of both.

stream = RerankTask(head, "late delivery").stream(reader)
ranking = Ranking(top_k=10)
for window in stream:
    ranking.add(window)
ranking.best()[0].fields["score"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertcli.errors import ModelError
from bertcli.inference.runtime import refuse_extra, refuse_pairs
from bertcli.records.reader import Reader
from bertcli.records.records import Record, carried
from bertcli.tasks.classify import ClassifyTask
from bertcli.tasks.head import TASKS, Head, Stream, streamed
from bertcli.tasks.pooled_head import PooledHead
from bertcli.tasks.results import Result

BLANK = {"row": 0, "id": 0, "score": 0.0, "text": ""}


@dataclass(frozen=True)
class RerankTask:
    """A cross-encoder that is ready to score texts for a query.

    Raises ModelError for a model that gives a pair more than one score, or takes no pairs.
    """

    head: Head | PooledHead
    query: str
    classify: ClassifyTask = field(init=False)

    def __post_init__(self) -> None:
        head = self.head
        refuse_extra(head.runtime.spec.folder, head.runtime.config)
        labels, example = len(head.labels), TASKS["BertForSequenceClassification"].example
        if labels != 1:
            raise ModelError(
                f"{head.runtime.spec.folder}: gives a pair {labels} scores, and rerank needs one",
                f"give --model a cross-encoder, for example {example}",
            )
        pair = head.tokenizer.encode([Record(self.query, "a", line=1)], head.layout())
        refuse_pairs(pair, head.runtime.config)
        object.__setattr__(self, "classify", ClassifyTask(head))

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over texts, which gives them scores in the order of the input."""
        judge, layout = self.classify.judge, self.head.layout()
        return streamed(self.head, reader, layout, judge, BLANK, prepare=self._paired)

    def _paired(self, record: Record) -> Record:
        return self.head.prepare(record._replace(text=self.query, pair=record.text))


class Ranking:
    """The texts with the highest scores so far, of all or ``top_k``; equals in their order."""

    def __init__(self, top_k: int | None = None) -> None:
        self.top_k = top_k
        self._best: list[Result] = []

    def add(self, results: Sequence[Result]) -> None:
        """Take in the next results."""
        self._best += results
        if self.top_k is not None:
            self._best = self.best()

    def best(self) -> list[Result]:
        """Return the best results, the best first."""
        ranked = sorted(self._best, key=lambda result: (-result.fields["score"], result.sample))
        return ranked[: self.top_k]


def ranked_row(result: Result, *, flat: bool) -> dict[str, Any]:
    """Return what is written of a text; in a table every row says what was truncated."""
    record = result.record
    key = result.sample if record.id is None else record.id
    found = {"row": result.sample, "id": key, "score": result.fields["score"], "text": record.text}
    if flat or result.cut:
        found["truncated"] = result.cut
    return found | carried(found, record)
