"""Metrics of predictions: classes, several labels, scores, entities and answers.

Each class holds the predictions for n examples and their targets. `metrics` computes the metrics of
all examples, or of some rows, such as a sample of a bootstrap. ``SHARES`` are the metrics that are
the share of correct examples. `sample_sizes` returns, for each metric between 0 and 1, the number
of independent examples that it depends on. Also used in training.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

Rows = np.ndarray | slice
ALL = slice(None)
BINS = 15  # of the calibration error

# --- classes ---


@dataclass(frozen=True)
class ClassPredictions:
    """One of k classes for n texts.

    F1 is that of scikit-learn's f1_score with zero_division 0, over all classes that occur in the
    targets or are predicted.
    """

    targets: np.ndarray  # [n] class numbers
    predicted: np.ndarray  # [n] class numbers
    k: int  # number of classes, including those that only targets have

    SHARES: ClassVar = ("accuracy", "micro_f1")

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return the metrics of some rows, or of all."""
        confusion = self.confusion(rows)
        correct = np.diag(confusion)
        counts = confusion.sum(0) + confusion.sum(1)  # predicted and true, by class
        accuracy = float(correct.sum() / confusion.sum())
        return {
            "accuracy": accuracy,
            "macro_f1": float(share(2 * correct, counts).sum() / max((counts > 0).sum(), 1)),
            "micro_f1": accuracy,  # equal, because every text has one class
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of examples behind each metric."""
        count = float(len(self.targets))
        macro = balanced_size(self.confusion().sum(1))
        return {"accuracy": count, "macro_f1": macro, "micro_f1": count}

    def confusion(self, rows: Rows = ALL) -> np.ndarray:
        """Return the counts of targets (rows) and predictions (columns), [k, k]."""
        cells = (self.targets * self.k + self.predicted)[rows]
        return np.bincount(cells, minlength=self.k**2).reshape(self.k, self.k)

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the confusion matrix, and the metrics of each class."""
        confusion = self.confusion()
        correct = np.diag(confusion)
        target_counts = confusion.sum(1)
        predicted_counts = confusion.sum(0)
        columns = {
            "precision": share(correct, predicted_counts),
            "recall": share(correct, target_counts),
            "f1": share(2 * correct, target_counts + predicted_counts),
            "support": target_counts,
        }
        return {
            "labels": list(names),
            "confusion": confusion.tolist(),
            "per_class": {
                name: {metric: values[number].item() for metric, values in columns.items()}
                for number, name in enumerate(names)
            },
        }


def calibration(scores: np.ndarray, is_correct: np.ndarray) -> dict[str, Any]:
    """Return the expected calibration error of scores [n, k], and its bins by confidence.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
    """
    confidence = scores.max(-1)
    bins = []
    error = 0.0
    for number in range(BINS):
        in_bin = np.ceil(confidence * BINS) == number + 1
        count = int(in_bin.sum())
        if count:
            mean_confidence = float(confidence[in_bin].mean())
            accuracy = float(is_correct[in_bin].mean())
            bins.append(
                {
                    "from": number / BINS,
                    "n": count,
                    "confidence": mean_confidence,
                    "accuracy": accuracy,
                }
            )
            error += count * abs(mean_confidence - accuracy) / len(is_correct)
    return {"error": error, "bins": bins}


@dataclass(frozen=True)
class LabelPredictions:
    """Any of k labels for n texts."""

    targets: np.ndarray  # [n, k] bool
    predicted: np.ndarray  # [n, k] bool

    SHARES: ClassVar = ("accuracy",)

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return the share of texts with exactly the target labels, and F1."""
        targets = self.targets[rows]
        predicted = self.predicted[rows]
        correct = (targets & predicted).sum(0)  # by label
        counts = targets.sum(0) + predicted.sum(0)
        return {
            "accuracy": float((targets == predicted).all(1).mean()),
            "macro_f1": float(share(2 * correct, counts).mean()),
            "micro_f1": float(2 * correct.sum() / max(counts.sum(), 1)),
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of examples behind each metric."""
        return {
            "accuracy": float(len(self.targets)),
            "macro_f1": balanced_size(self.targets.sum(0)),
            "micro_f1": float((self.targets | self.predicted).any(1).sum()),
        }


def balanced_size(counts: np.ndarray) -> float:
    """Return the number of examples, in classes of equal size, whose macro average varies as much.

    That is k² / Σ 1/n for k classes with n examples each: for 100 examples of two classes, 100 if
    each class has 50, and 8 if one of them has 2.
    """
    occurring = counts[counts > 0]
    return float(len(occurring) ** 2 / (1 / occurring).sum()) if len(occurring) else 0.0


def share(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the quotients of counts and their totals; 0 for a total of 0."""
    return counts / np.maximum(totals, 1)


# --- scores ---


@dataclass(frozen=True)
class ScorePredictions:
    """Numbers for n texts or pairs."""

    targets: np.ndarray  # [n]
    predicted: np.ndarray  # [n]

    SHARES: ClassVar = ()

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return correlations and errors of some rows, or of all."""
        targets = self.targets[rows].astype(np.float64)
        predicted = self.predicted[rows].astype(np.float64)
        return {
            "spearman": spearman(targets, predicted),
            "pearson": pearson(targets, predicted),
            "mse": float(np.square(targets - predicted).mean()),
            "mae": float(np.abs(targets - predicted).mean()),
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return no sizes: no metric is between 0 and 1."""
        return {}


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the linear correlation; 0 if all values of a side are equal."""
    a = a - a.mean()
    b = b - b.mean()
    scale = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of ranks; equal values share the mean of their ranks."""
    return pearson(ranks(a), ranks(b))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value from 1, the mean rank for equal ones, [n]."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)
    return (last_ranks - (counts - 1) / 2)[inverse]


# --- entities ---

OUTSIDE_TAGS = ("O", "", "-")


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the type, the first and the last word of each entity of a sentence.

    Source: seqeval 1.2, get_entities: a tag is one letter and, from the first dash on, a type; so
    the type of the bare tag PER is ER.
    """
    start = 0
    previous_prefix = "O"
    entity_type = ""
    for word, tag in enumerate([*tags, "O"]):
        tag = "O" if tag in OUTSIDE_TAGS else tag
        prefix = tag[0]
        next_type = tag[1:].split("-", maxsplit=1)[-1] or "_"
        changes = entity_type != next_type
        if (
            previous_prefix in ("E", "S")
            or (previous_prefix in ("B", "I") and prefix in ("B", "S", "O"))
            or (previous_prefix != "O" and changes)
        ):
            yield entity_type, start, word - 1
        if (
            prefix in ("B", "S")
            or (previous_prefix in ("E", "S", "O") and prefix in ("E", "I"))
            or (prefix != "O" and changes)
        ):
            start = word
        previous_prefix = prefix
        entity_type = next_type


@dataclass(frozen=True)
class TagPredictions:
    """The tags of the words of n sentences."""

    targets: Sequence[Sequence[str]]
    predicted: Sequence[Sequence[str]]

    SHARES: ClassVar = ()  # words of one sentence are not independent examples

    @cached_property
    def counts(self) -> np.ndarray:
        """Correct, target and predicted entities, correct words and words of sentences, [n, 5]."""
        rows = []
        for target_tags, predicted_tags in zip(self.targets, self.predicted, strict=True):
            targets = set(entities(target_tags))
            predicted = set(entities(predicted_tags))
            correct_words = sum(map(str.__eq__, target_tags, predicted_tags))
            entity_counts = (len(targets & predicted), len(targets), len(predicted))
            rows.append((*entity_counts, correct_words, len(target_tags)))
        return np.array(rows)

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return precision, recall and F1 of entities, and the accuracy of words."""
        correct, targets, predicted, correct_words, words = self.counts[rows].sum(0).tolist()
        return {
            "precision": correct / max(predicted, 1),
            "recall": correct / max(targets, 1),
            "f1": 2 * correct / max(targets + predicted, 1),
            "accuracy": correct_words / max(words, 1),
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of sentences that each metric depends on."""
        has_targets, has_predicted, has_words = (self.counts[:, [1, 2, 4]] > 0).T
        return {
            "precision": float(has_predicted.sum()),
            "recall": float(has_targets.sum()),
            "f1": float((has_targets | has_predicted).sum()),
            "accuracy": float(has_words.sum()),
        }


# --- answers ---

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_overlap(answer: str, target: str) -> tuple[float, float]:
    """Return 1 if two answers are equal, else 0, and the F1 of their words.

    Source: Rajpurkar et al., SQuAD, 2016, its script: articles, punctuation and case do not count.
    """
    words = normalized_words(answer)
    target_words = normalized_words(target)
    exact_match = float(words == target_words)
    if not words or not target_words:
        return exact_match, exact_match
    common = sum((Counter(words) & Counter(target_words)).values())
    return exact_match, 2 * common / (len(words) + len(target_words))


def normalized_words(answer: str) -> list[str]:
    """Return the words of an answer in lower case, without articles and punctuation."""
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


@dataclass(frozen=True)
class MeanPredictions:
    """Numbers between 0 and 1 of n examples, whose means are the metrics."""

    names: Sequence[str]
    values: np.ndarray  # [n, names]

    SHARES: ClassVar = ("exact_match",)

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return the means of some rows, or of all."""
        return dict(zip(self.names, self.values[rows].mean(0).tolist(), strict=True))

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of examples behind each metric."""
        return dict.fromkeys(self.names, float(len(self.values)))


def answer_predictions(targets: Sequence[str], predicted: Sequence[str]) -> MeanPredictions:
    """Return exact match and F1 of the answers to questions; an empty answer is ""."""
    values = np.array([*map(answer_overlap, predicted, targets)])
    return MeanPredictions(("exact_match", "f1"), values)


Predictions: TypeAlias = (
    ClassPredictions | LabelPredictions | ScorePredictions | TagPredictions | MeanPredictions
)
