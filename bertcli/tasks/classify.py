"""Classification of texts or pairs; with a head of one label, their score.

Scores are those of transformers' text-classification pipeline; of a model with one label, those of
sentence-transformers' CrossEncoder, with the activation that its folder names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertcli.embedding.options import SENTENCE_CONFIG
from bertcli.errors import LOG
from bertcli.io.typed_json import JsonObject
from bertcli.models.activations import TORCH_CLASSES, array_function, softmax
from bertcli.tasks.head import HeadTask
from bertcli.tasks.labels import (
    LABEL,
    NamedLabelTask,
    classes_loss,
    label_numbers,
    label_of,
    refuse_other_labels,
)
from bertcli.tasks.learning import (
    Evaluation,
    Example,
    ExampleFields,
    TextLearningTask,
    example_records,
)
from bertcli.tasks.metrics import ClassPredictions, calibration
from bertcli.tokenizing.batch import Encoded

if TYPE_CHECKING:
    from torch import Tensor

    from bertcli.tasks.evaluated_model import EvaluatedModel

SEVERAL_LABELS = "multi_label_classification"  # the problem_type of config.json
LIKELY = 0.5  # minimum score of a predicted label, if several are possible
# Name of a class in torch.nn -> the scores of logits [..., k].
SCORES = {**{name: array_function(name) for name in TORCH_CLASSES}, "Softmax": softmax}
BLANK = {"label": "", "score": 0.0}


@dataclass(frozen=True)
class LabelTask(HeadTask):
    """A task that gives the best label, the best ``top_k``, or those from ``threshold`` on."""

    top_k: int | None = None
    threshold: float | None = None
    all_scores: bool = False

    @property
    @abstractmethod
    def is_multi_label(self) -> bool:
        """True if several labels may be true, so that a result lists the likely ones."""

    @property
    def several(self) -> bool:
        """True if a result is a list of labels: by options, or for a multi-label task."""
        if self.top_k is not None or self.threshold is not None:
            return True
        return self.is_multi_label and not self.all_scores

    @property
    def least_score(self) -> float:
        """The minimum score of a listed label, without ``threshold`` and ``top_k``."""
        return LIKELY

    def label_fields(self, scores: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
        """Return the label or the labels of a text for its scores [labels]."""
        values = scores.tolist()
        ranked = sorted(zip(values, labels, strict=True), key=lambda pair: -pair[0])
        if self.several:
            threshold = self.threshold
            if threshold is None and self.top_k is None:
                threshold = self.least_score
            if threshold is not None:
                ranked = [pair for pair in ranked if pair[0] >= threshold]
            best = ranked[: self.top_k]
            return {"labels": [{"label": label, "score": value} for value, label in best]}
        fields: dict[str, Any] = {"label": ranked[0][1], "score": ranked[0][0]}
        if self.all_scores:
            fields["scores"] = dict(zip(labels, values, strict=True))
        return fields


@dataclass(frozen=True)
class Classifier(LabelTask):
    """A classifier that is ready to run, see `LabelTask`. With ``logits``, scores are logits."""

    logits: bool = False

    # Activation for regression models whose folder names none, as in transformers' pipeline.
    regression: ClassVar[str] = "Identity"

    @cached_property
    def function(self) -> str:
        """The name of the function from logits to scores, a key of `SCORES`."""
        if self.logits:
            return "Identity"
        has_one_label = len(self.head.labels) == 1
        activation = self._named_activation
        if has_one_label and activation is not None:
            name = activation.rpartition(".")[2]
            if name in TORCH_CLASSES:
                return name
            LOG.warn(
                f"the activation {activation} named in the model's folder is unknown; "
                "sigmoid is used"
            )
            return "Sigmoid"
        problem = self.head.runtime.config.problem_type
        if problem == "regression":
            return self.regression
        if has_one_label or problem == SEVERAL_LABELS:
            return "Sigmoid"
        return "Softmax"

    @property
    def _named_activation(self) -> str | None:
        """The activation in config_sentence_transformers.json or config.json, now or formerly."""
        key = "activation_fn"
        source = str(self.head.runtime.spec.folder / "config.json")
        config = JsonObject(self.head.runtime.config.other, source)
        settings = config.object("sentence_transformers")
        former_name = config.text("sbert_ce_default_activation_function")
        return (
            self.head.folder.json_object(SENTENCE_CONFIG).text(key)
            or settings.text(key)
            or former_name
        )

    @property
    def is_multi_label(self) -> bool:
        """True for a multi-label model."""
        problem = self.head.runtime.config.problem_type
        return problem == SEVERAL_LABELS and len(self.head.labels) > 1

    @property
    def least_score(self) -> float:
        """The minimum score of a listed label: for logits, that of an even chance."""
        return 0.0 if self.logits else LIKELY

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        labels = len(self.head.labels)
        return {"labels": [BLANK]} if self.several else self._fields(np.zeros(labels))

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the label, the labels or the score of a text."""
        return self._fields(SCORES[self.function](outputs[0]))

    def _fields(self, scores: np.ndarray) -> dict[str, Any]:
        """Return the result fields for the scores [labels] of a text."""
        if len(scores) == 1 and not self.several:
            return {"score": scores.tolist()[0]}
        return self.label_fields(scores, self.head.labels)


# --- the learning task ---


def scores_of_labels(
    model: EvaluatedModel, examples: Sequence[Example]
) -> tuple[np.ndarray, list[str]]:
    """Return a classifier's scores of all labels for each text, [n, k], and the labels."""
    results, labels = model.predictions(Classifier, example_records(examples), all_scores=True)
    scores = [[*row.get("scores", {"": row["score"]}).values()] for row in results]
    return np.array(scores, np.float32), labels


def class_scores(
    model: EvaluatedModel, examples: Sequence[Example]
) -> tuple[np.ndarray, dict[str, int], list[str]]:
    """Return the scores of a model's labels [n, k], and the ids and names of all labels.

    Labels that the model does not have come after those of the model. Raises ModelError if it has
    no label of the examples.
    """
    scores, names = scores_of_labels(model, examples)
    labels = {label for example in examples for label in example.target}
    label_ids = label_numbers(names, labels)
    refuse_other_labels(labels, label_ids)
    unknown_labels = sorted(labels - label_ids.keys())
    label_ids |= {label: id_ for id_, label in enumerate(unknown_labels, len(names))}
    return scores, label_ids, [*names, *unknown_labels]


class ClassificationTask(NamedLabelTask, TextLearningTask):
    """Learn one of k classes. The loss is the cross-entropy.

    Source: transformers' BertForSequenceClassification and its loss_utils.py.
    """

    name = "classify"
    fields = ExampleFields("text", "pair", "label")
    problem_type = "single_label_classification"

    def recognises(self, text: Any, label: Any) -> bool:
        """Return True for a word or whole number beside a text."""
        return not isinstance(label, list | float) and not isinstance(text, list)

    def target(self, fields: JsonObject, names: ExampleFields) -> list[str]:
        """Return the label of an example."""
        return [label_of(fields.needed(names.target, LABEL))]

    def targets(self, examples: Sequence[Example], label_ids: Mapping[str, int]) -> np.ndarray:
        """Return the class ids, [n]."""
        return np.concatenate(self.label_ids(examples, label_ids))

    def can_learn(self, targets: np.ndarray, rows: Any) -> bool:
        """Return True for examples of at least two classes."""
        return len(np.unique(targets[rows])) > 1

    def loss(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
    ) -> Tensor:
        """Return the summed cross-entropy."""
        return classes_loss(logits, targets, weights, smoothing)

    def predictions(self, targets: np.ndarray, logits: Tensor) -> ClassPredictions:
        """Return the classes with the largest logits."""
        return ClassPredictions(targets, logits.argmax(-1).numpy(), logits.shape[-1])

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return the classes that a classifier predicts, with their confusion and calibration."""
        scores, label_ids, names = class_scores(model, examples)
        targets = np.array([label_ids[example.target[0]] for example in examples])
        predicted = scores.argmax(-1)
        predictions = ClassPredictions(targets, predicted, len(names))
        details = predictions.details(names)
        details["calibration"] = calibration(scores, predicted == targets)
        return Evaluation(self.name, len(examples), predictions, details)


CLASSIFY = ClassificationTask()
