"""Multi-label classification: any number of labels for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.formats.jsonl import value_of
from bertcli.io.typed_json import Check, JsonObject
from bertcli.tasks.classify import LIKELY, class_scores
from bertcli.tasks.labels import NamedLabelTask, is_label, label_of
from bertcli.tasks.learning import Evaluation, Example, ExampleFields, TextLearningTask
from bertcli.tasks.metrics import LabelPredictions

if TYPE_CHECKING:
    from torch import Tensor

    from bertcli.tasks.evaluated_model import EvaluatedModel

LABELS = Check(
    lambda value: isinstance(value, list) and all(is_label(v) or v == "" for v in value),
    "a list of words",
)


class MultiLabelTask(NamedLabelTask, TextLearningTask):
    """Learn any of k labels of a text. The loss is a binary cross-entropy of each label."""

    name = "multilabel"
    fields = ExampleFields("text", "pair", "labels")
    problem_type = "multi_label_classification"
    min_labels = 1

    def recognises(self, text: Any, label: Any) -> bool:
        """Return True for a list of labels of a text."""
        return isinstance(label, list) and not isinstance(text, list)

    def target(self, fields: JsonObject, names: ExampleFields) -> list[str]:
        """Return the labels of an example; in CSV, they are JSON or separated by commas."""
        value = fields.get(names.target)
        if isinstance(value, str):
            is_json = value[:1] == "["
            listed = value_of(value, fields.source) if is_json else value.split(",")
            fields[names.target] = [v.strip() if isinstance(v, str) else v for v in listed]
        labels = fields.needed(names.target, LABELS)
        return [*dict.fromkeys(label_of(label) for label in labels if label != "")]

    def targets(self, examples: Sequence[Example], label_ids: Mapping[str, int]) -> np.ndarray:
        """Return 1 for each label of a text, [n, k]."""
        targets = np.zeros((len(examples), len(label_ids)), np.float32)
        for row, labels in zip(targets, self.label_ids(examples, label_ids), strict=True):
            row[labels] = 1
        return targets

    def class_weights(self, targets: Sequence[Any], label_count: int) -> np.ndarray:
        """Return (texts without the label) / (texts with it), [k]."""
        support = sum(targets)
        weights = (len(targets) - support) / np.maximum(support, 1)
        return weights.astype(np.float32)

    def loss_divisor(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the number of labels of all texts, n * k."""
        return targets.size or 1

    def loss(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
    ) -> Tensor:
        """Return the summed binary cross-entropy; ``weights`` [k] are those of the targets of 1."""
        from torch.nn import functional as F

        smoothed = targets * (1 - smoothing) + smoothing / 2
        return F.binary_cross_entropy_with_logits(
            logits, smoothed, pos_weight=weights, reduction="sum"
        )

    def predictions(self, targets: np.ndarray, logits: Tensor) -> LabelPredictions:
        """Return the labels with a score of at least `LIKELY`."""
        return LabelPredictions(targets > LIKELY, logits.sigmoid().numpy() >= LIKELY)

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return the labels that a classifier predicts. It may lack labels of the examples."""
        scores, label_ids, _ = class_scores(model, examples)
        targets = np.array(
            [[label in example.target for label in label_ids] for example in examples]
        )
        predicted = np.zeros_like(targets)
        predicted[:, : scores.shape[1]] = scores >= LIKELY
        return Evaluation(self.name, len(examples), LabelPredictions(targets, predicted))


MULTILABEL = MultiLabelTask()
