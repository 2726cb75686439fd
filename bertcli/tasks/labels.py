"""Labels that are words in the examples: values of their fields, ids, weights, and the loss.

Used by the tasks `classify`, `multilabel` and `tag`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertcli.errors import InputError, ModelError, UsageError, option
from bertcli.io.typed_json import Check, is_text
from bertcli.models.config import BertConfig
from bertcli.tasks.learning import Example, HeadLearningTask

if TYPE_CHECKING:
    from torch import Tensor

NO_LABEL = -100  # target of a token without a label: what torch's cross_entropy ignores


def is_label(value: Any) -> bool:
    """Return True for a word, a whole number, or a boolean."""
    return isinstance(value, bool | int) or (is_text(value) and value != "")


def _is_number(value: Any) -> bool:
    """Return True for a finite number, also as text."""
    try:
        return not isinstance(value, bool) and isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


LABEL = Check(is_label, "a word")
NUMBER = Check(_is_number, "a number")


def label_of(value: Any) -> str:
    """Return the value of a field as a label: numbers and booleans as JSON writes them."""
    return value if isinstance(value, str) else str(value).lower()


def listed_labels(labels: str | Sequence[str], name: str, example: str) -> tuple[str, ...]:
    """Return the labels of an option: a sequence, or a text with commas between them.

    Raises UsageError for none, for a label that is no text, and for one that occurs twice. ``name``
    is the option.
    """
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",")]
    found = tuple(label for label in labels if label)
    if not found:
        raise UsageError(f"{option(name)} names no label", f"for example {option(name, example)}")
    for label in found:
        if not is_text(label):
            raise UsageError(f"{option(name)}: {label!r} is not text")
        if found.count(label) > 1:
            raise UsageError(f"{option(name)} has the label {label!r} twice")
    return found


def label_numbers(names: Sequence[str], labels: Collection[str]) -> dict[str, int]:
    """Return the ids of a model's labels, by the names that the ``labels`` of examples have.

    If the model's ``names`` are LABEL_0, LABEL_1 ..., labels that are whole numbers are ids.
    """
    has_no_names = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    uses_ids = has_no_names and all(label.isdecimal() for label in labels)
    return {str(number) if uses_ids else name: number for number, name in enumerate(names)}


def refuse_other_labels(labels: Collection[str], names: Collection[str]) -> None:
    """Raise ModelError if the model has no label of the examples."""
    if labels and {*names}.isdisjoint(labels):
        listed_labels = ", ".join(sorted(labels)[:10])
        listed_names = ", ".join(sorted(names)[:10])
        raise ModelError(
            f"no label of the examples is one of the model's: {listed_labels}",
            f"the model has: {listed_names}",
        )


def classes_loss(
    logits: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float
) -> Tensor:
    """Return the summed cross-entropy of logits [n, k]; targets NO_LABEL are ignored."""
    from torch.nn import functional as F

    return F.cross_entropy(logits, targets, weights, reduction="sum", label_smoothing=smoothing)


class NamedLabelTask(HeadLearningTask):
    """A task whose labels are words in the examples."""

    has_named_labels = True
    min_labels: ClassVar[int] = 2

    def keeps_head(self, config: BertConfig, labels: set[str]) -> bool:
        """Return True for a head with exactly these labels."""
        if self.architecture not in config.architectures:
            return False
        return label_numbers(config.labels(config.num_labels), labels).keys() == labels

    def labels(self, targets: Sequence[Any], source: str) -> list[str]:
        """Return the labels in the order of their ids. Raises InputError for too few."""
        names = sorted({label for target in targets for label in target})
        if len(names) < self.min_labels:
            raise InputError(
                f"{source}: labels found: {', '.join(names) or 'none'}",
                "training needs examples of at least two labels",
            )
        if all(name.isdecimal() for name in names):
            names = sorted(names, key=int)  # stable: 01 and 1 stay in the order of their names
        return names

    def label_ids(
        self, examples: Sequence[Example], label_ids: Mapping[str, int]
    ) -> list[np.ndarray]:
        """Return the ids of the labels of each example. Raises InputError for unknown labels."""
        targets = []
        for record, labels in examples:
            unknown = [label for label in labels if label not in label_ids]
            if unknown:
                raise InputError(
                    f"{record.where}: the label {unknown[0]!r} does not occur in the training data",
                    f"labels: {', '.join(label_ids)}",
                )
            targets.append(np.array([label_ids[label] for label in labels], np.int64))
        return targets

    def class_weights(self, targets: Sequence[Any], label_count: int) -> np.ndarray:
        """Return n / (k * occurrences of the label), as scikit-learn's "balanced", [k]."""
        ids = np.hstack(list(targets))
        support = np.bincount(ids, minlength=label_count)
        weights = len(ids) / (label_count * np.maximum(support, 1))
        return weights.astype(np.float32)

    def loss_divisor(self, targets: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the number of targets, or the sum of their weights."""
        labelled = targets[targets != NO_LABEL]
        if weights is not None:
            return float(weights[labelled].sum()) or 1
        return labelled.size or 1
