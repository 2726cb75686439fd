"""Rank texts by relevance to a query, by the scores of a cross-encoder.

    best = ranked(Reranker(head, query="late delivery").stream(reader), top_k=10)
    best[0].fields["score"]

Scores are those of sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain
from typing import Any, ClassVar

from bertcli.engines.runtime import refuse_extra_embeddings
from bertcli.errors import ModelError, option
from bertcli.formats.tables import rounded
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts
from bertcli.records.record import Record
from bertcli.tasks.classify import Classifier
from bertcli.tasks.results import Result

BLANK_HIT = {"row": 0, "id": 0, "score": 0.0, "text": ""}


@dataclass(frozen=True)
class Reranker(Classifier):
    """A cross-encoder that is ready to score texts for a query, in the order of the input.

    Raises ModelError for a model that gives a pair more than one score, or takes no pairs.
    """

    query: str = ""

    regression: ClassVar[str] = "Sigmoid"  # as CrossEncoder, whatever the problem_type

    def __call__(  # type: ignore[override]
        self, query: str, texts: Iterable[Any], top_k: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of texts, the most relevant first; of the best ``top_k`` only.

        ``top_k`` defaults to that of this object; if both are None, all texts are returned.
        """
        count = self.top_k if top_k is None else top_k
        stream = replace(self, query=query).stream(GivenTexts(texts, Input()))
        return [ranked_row(result, flat=False) for result in ranked(stream, count)]

    def __post_init__(self) -> None:
        head = self.head
        refuse_extra_embeddings(head.runtime.spec.folder, head.runtime.config)
        if (labels := len(head.labels)) != 1:
            raise ModelError(
                f"{head.runtime.spec.folder}: gives a pair {labels} scores, and rerank needs one",
                f"give {option('model')} a cross-encoder; `bertcli train` makes one from the "
                "fields text, pair and score",
            )

    @property
    def several(self) -> bool:
        """False: a text has one score. ``top_k`` is a number of texts, not of labels."""
        return False

    def prepare(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return pairs of the query and each text."""
        pairs = [record._replace(text=self.query, pair=record.text) for record in records]
        return super().prepare(pairs)


def ranked(windows: Iterable[Sequence[Result]], top_k: int | None = None) -> list[Result]:
    """Return the ``top_k`` or all results, highest score first; ties stay in their order."""
    results = chain.from_iterable(windows)
    count = sys.maxsize if top_k is None else top_k
    return nlargest(count, results, key=lambda result: result.fields["score"])


def ranked_row(result: Result, *, flat: bool) -> dict[str, Any]:
    """Return the output row of a text. With ``flat``, for tables, it always has `truncated`."""
    scores = rounded(result.fields)
    row = corpus_row(result)
    hit_id = row if result.record.id is None else result.record.id
    hit = {"row": row, "id": hit_id, **scores, "text": result.record.text}
    if flat or result.dropped_tokens:
        hit["truncated"] = result.dropped_tokens
    fields = result.record.extra or {}
    return hit | {name: value for name, value in fields.items() if name != "row"}


def corpus_row(result: Result) -> Any:
    """Return the row of a text in the corpus of a search, else its index among the texts."""
    row = (result.record.extra or {}).get("row", result.sample)
    return int(row) if isinstance(row, str) and row.isdecimal() else row  # text in CSV
