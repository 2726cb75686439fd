"""Which class a text or a pair belongs to, or how relevant one is to the other.

Scores are those of transformers' text-classification pipeline; of a model with one label, those of
sentence-transformers' CrossEncoder, which asks the folder for its activation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.embedding.sentence_config import CONFIG
from bertcli.files.typed_json import JsonObject, read_object
from bertcli.inference.tell import Tell
from bertcli.models.config import BertConfig
from bertcli.records.reader import Reader
from bertcli.tasks.head import Head, Stream, streamed
from bertcli.tasks.pooled_head import PooledHead
from bertcli.tasks.results import Result
from bertcli.tasks.scores import sigmoid, softmax
from bertcli.tokenizing.columns import Encoded

LIKELY = 0.5  # score from which a label of many that may hold together is given
BLANK = {"label": "", "score": 0.0}


@dataclass(frozen=True)
class Shown:
    """Which labels are given: the best one, the best ``top_k``, those from ``threshold`` on."""

    top_k: int | None = None
    threshold: float | None = None
    all_scores: bool = False
    logits: bool = False


@dataclass(frozen=True)
class ClassifyTask:
    """A classifier that is ready to run."""

    head: Head | PooledHead
    shown: Shown = Shown()
    function: str = field(init=False)  # softmax, sigmoid or none

    def __post_init__(self) -> None:
        head = self.head
        chosen = activation(head.runtime.spec.folder, head.runtime.config, head.tell)
        object.__setattr__(self, "function", "none" if self.shown.logits else chosen)

    @property
    def several(self) -> bool:
        """Whether a text has a list of labels: asked for, or because several may hold."""
        shown, config = self.shown, self.head.runtime.config
        listed = config.problem_type == "multi_label_classification" and not shown.all_scores
        return shown.top_k is not None or shown.threshold is not None or listed

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the texts and pairs of a reader."""
        labels = len(self.head.labels)
        blank = {"labels": [BLANK]} if self.several else self._fields(np.zeros(labels))
        head = self.head
        return streamed(head, reader, head.layout(), self.judge, blank, prepare=head.prepare)

    def judge(self, batch: list[Encoded]) -> list[Result]:
        """Return what the model says of texts that are tokenized."""
        return [
            Result(item.record, item.sample, self._fields(one), item.cut)
            for item, one in zip(batch, self.scores(batch), strict=True)
        ]

    def scores(self, batch: list[Encoded]) -> list[np.ndarray]:
        """Return the scores of all labels of each text, [labels]."""
        return list(map(self._scores, self.head.text_logits(batch)))

    def _scores(self, logits: np.ndarray) -> np.ndarray:
        match self.function:
            case "softmax":
                return softmax(logits)
            case "sigmoid":
                return sigmoid(logits)
            case _:
                return logits

    def _fields(self, scores: np.ndarray) -> dict[str, Any]:
        values = scores.tolist()
        labels = self.head.labels
        if len(values) == 1 and not self.several:
            return {"score": values[0]}
        ranked = sorted(zip(values, labels, strict=True), key=lambda one: -one[0])
        if self.several:
            named = [{"label": label, "score": value} for value, label in self._kept(ranked)]
            return {"labels": named}
        fields: dict[str, Any] = {"label": ranked[0][1], "score": ranked[0][0]}
        if self.shown.all_scores:
            fields["scores"] = dict(zip(labels, values, strict=True))
        return fields

    def _kept(self, ranked: list[tuple[float, str]]) -> list[tuple[float, str]]:
        least = self.shown.threshold
        if least is None and self.shown.top_k is None:
            least = 0.0 if self.shown.logits else LIKELY
        kept = ranked if least is None else [one for one in ranked if one[0] >= least]
        return kept[: self.shown.top_k]


def activation(folder: Path, config: BertConfig, tell: Tell) -> str:
    """Return what makes scores of logits: softmax, sigmoid or none."""
    if config.num_labels == 1 and (named := _named_activation(folder, config)):
        known = {"Sigmoid": "sigmoid", "Identity": "none"}
        if (kind := named.rpartition(".")[2]) in known:
            return known[kind]
        tell.warn(f"the activation {named} named in the model's folder is unknown; sigmoid is used")
        return "sigmoid"
    if config.problem_type == "regression":
        return "none"
    several = config.problem_type == "multi_label_classification" or config.num_labels == 1
    return "sigmoid" if several else "softmax"


def _named_activation(folder: Path, config: BertConfig) -> str | None:
    """Return the activation of a cross-encoder, from any of the places it was ever kept in."""
    key = "activation_fn"
    config_file = JsonObject(config.other, str(folder / "config.json"))
    inner = config_file.object("sentence_transformers")
    old = config_file.text("sbert_ce_default_activation_function")
    return read_object(folder / CONFIG).text(key) or inner.text(key) or old
