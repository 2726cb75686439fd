"""Which class a text or a pair belongs to, or how relevant one is to the other.

Scores are those of transformers' text-classification pipeline; of a model with one label, those of
sentence-transformers' CrossEncoder, which asks the folder for its activation. Such a model sorts
texts by how relevant they are to a query:

best = ranked(RerankTask(head, "late delivery").stream(reader), top_k=10)
best[0].fields["score"]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.embedding.sentence_config import CONFIG
from bertcli.embedding.sentence_modules import ACTIVATIONS, softmax
from bertcli.errors import ModelError
from bertcli.files.typed_json import JsonObject, read_object
from bertcli.inference.progress import Tell
from bertcli.inference.runtime import refuse_extra, refuse_pairs
from bertcli.models.config import BertConfig
from bertcli.records.reader import Reader
from bertcli.records.records import Record, carried
from bertcli.tasks.head import CLASSIFIER, TASKS, Head, PooledHead, Stream, streamed
from bertcli.tasks.results import Result
from bertcli.tokenizing.columns import Encoded

LIKELY = 0.5  # score from which a label of many that may hold together is given
BLANK = {"label": "", "score": 0.0}
BLANK_HIT = {"row": 0, "id": 0, "score": 0.0, "text": ""}


@dataclass(frozen=True)
class ClassifyTask:
    """A classifier that is ready to run.

    It gives the best label, the best ``top_k``, or those from ``threshold`` on.
    """

    head: Head | PooledHead
    top_k: int | None = None
    threshold: float | None = None
    all_scores: bool = False
    logits: bool = False
    function: str = field(init=False)  # softmax, sigmoid or none

    def __post_init__(self) -> None:
        head = self.head
        chosen = activation(head.runtime.spec.folder, head.runtime.config, head.tell)
        object.__setattr__(self, "function", "none" if self.logits else chosen)

    @property
    def several(self) -> bool:
        """Whether a text has a list of labels: asked for, or because several may hold."""
        problem = self.head.runtime.config.problem_type
        listed = problem == "multi_label_classification" and not self.all_scores
        return self.top_k is not None or self.threshold is not None or listed

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the texts and pairs of a reader."""
        labels = len(self.head.labels)
        blank = {"labels": [BLANK]} if self.several else self._fields(np.zeros(labels))
        head = self.head
        return streamed(head, reader, head.layout(), self.judge, blank, prepare=head.prepare)

    def judge(self, batch: list[Encoded]) -> list[Result]:
        """Return what the model says of texts that are tokenized."""
        return [
            Result(item.record, item.sample, self._fields(scores), item.cut)
            for item, scores in zip(batch, self.scores(batch), strict=True)
        ]

    def scores(self, batch: list[Encoded]) -> list[np.ndarray]:
        """Return the scores of all labels of each text, [labels]."""
        logits = self.head.text_logits(batch)
        functions = {"softmax": softmax, "sigmoid": ACTIVATIONS["Sigmoid"]}
        return list(map(functions[self.function], logits)) if self.function in functions else logits

    def _fields(self, scores: np.ndarray) -> dict[str, Any]:
        values = scores.tolist()
        labels = self.head.labels
        if len(values) == 1 and not self.several:
            return {"score": values[0]}
        ranked = sorted(zip(values, labels, strict=True), key=lambda pair: -pair[0])
        if self.several:
            named = [{"label": label, "score": value} for value, label in self._shown(ranked)]
            return {"labels": named}
        fields: dict[str, Any] = {"label": ranked[0][1], "score": ranked[0][0]}
        if self.all_scores:
            fields["scores"] = dict(zip(labels, values, strict=True))
        return fields

    def _shown(self, ranked: list[tuple[float, str]]) -> list[tuple[float, str]]:
        least = self.threshold
        if least is None and self.top_k is None:
            least = 0.0 if self.logits else LIKELY
        likely = ranked if least is None else [pair for pair in ranked if pair[0] >= least]
        return likely[: self.top_k]


def activation(folder: Path, config: BertConfig, tell: Tell) -> str:
    """Return what makes scores of logits: softmax, sigmoid or none."""
    key = "activation_fn"  # in any of the places where cross-encoders ever kept it
    config_file = JsonObject(config.other, str(folder / "config.json"))
    inner = config_file.object("sentence_transformers")
    old = config_file.text("sbert_ce_default_activation_function")
    named = read_object(folder / CONFIG).text(key) or inner.text(key) or old
    if config.num_labels == 1 and named:
        functions = {"Sigmoid": "sigmoid", "Identity": "none"}
        if (kind := named.rpartition(".")[2]) in functions:
            return functions[kind]
        tell.warn(f"the activation {named} named in the model's folder is unknown; sigmoid is used")
        return "sigmoid"
    if config.problem_type == "regression":
        return "none"
    several = config.problem_type == "multi_label_classification" or config.num_labels == 1
    return "sigmoid" if several else "softmax"


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
        labels, example = len(head.labels), TASKS[CLASSIFIER].example
        if labels != 1:
            raise ModelError(
                f"{head.runtime.spec.folder}: gives a pair {labels} scores, and rerank needs one",
                f"give --model a cross-encoder, for example {example}",
            )
        pair = head.tokenizer.encode_records([Record(self.query, "a", line=1)], head.layout())
        refuse_pairs(pair, head.runtime.config)
        object.__setattr__(self, "classify", ClassifyTask(head))

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over texts, which gives them scores in the order of the input."""
        judge, layout = self.classify.judge, self.head.layout()
        return streamed(self.head, reader, layout, judge, BLANK_HIT, prepare=self._paired)

    def _paired(self, records: Sequence[Record]) -> Sequence[Record]:
        pairs = [record._replace(text=self.query, pair=record.text) for record in records]
        return self.head.prepare(pairs)


def ranked(windows: Iterable[Sequence[Result]], top_k: int | None = None) -> list[Result]:
    """Return the results with the highest scores, of all or ``top_k``; equals in their order."""

    def order(result: Result) -> tuple[float, int]:
        return -result.fields["score"], result.sample

    results = chain.from_iterable(windows)
    return sorted(results, key=order) if top_k is None else nsmallest(top_k, results, key=order)


def ranked_row(result: Result, *, flat: bool) -> dict[str, Any]:
    """Return what is written of a text; in a table every row says what was truncated."""
    record = result.record
    key = result.sample if record.id is None else record.id
    hit = {"row": result.sample, "id": key, "score": result.fields["score"], "text": record.text}
    if flat or result.cut:
        hit["truncated"] = result.cut
    return hit | carried(hit, record)
