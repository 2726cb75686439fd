"""Metrics of predictions: classes, several labels, scores, entities and answers.

Each kind holds the predictions for n examples beside the truth, and `metrics` counts all of them,
or some rows, as a sample of the bootstrap has them. ``SHARES`` are metrics that are the share of
examples that are right. `sample_sizes` returns, for each metric between 0 and 1, how many
independent examples it rests on. Also used while training.
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
    truth or are predicted.
    """

    truth: np.ndarray  # [n] class numbers
    predicted: np.ndarray  # [n] class numbers
    k: int  # with the classes that only the truth has

    SHARES: ClassVar = ("accuracy", "micro_f1")

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return the metrics of some rows, or of all."""
        confusion = self.confusion(rows)
        right = np.diag(confusion)
        both = confusion.sum(0) + confusion.sum(1)
        accuracy = float(right.sum() / confusion.sum())
        return {
            "accuracy": accuracy,
            "macro_f1": float(share(2 * right, both).sum() / max((both > 0).sum(), 1)),
            "micro_f1": accuracy,  # the same, where every text has one class
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of examples behind each metric."""
        count = float(len(self.truth))
        macro = balanced_size(self.confusion().sum(1))
        return {"accuracy": count, "macro_f1": macro, "micro_f1": count}

    def confusion(self, rows: Rows = ALL) -> np.ndarray:
        """Return the counts of truths (rows) and predictions (columns), [classes, classes]."""
        cells = (self.truth * self.k + self.predicted)[rows]
        return np.bincount(cells, minlength=self.k**2).reshape(self.k, self.k)

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the confusion, and the numbers of each class."""
        confusion = self.confusion()
        right = np.diag(confusion)
        truths = confusion.sum(1)
        predicted = confusion.sum(0)
        columns = {
            "precision": share(right, predicted),
            "recall": share(right, truths),
            "f1": share(2 * right, truths + predicted),
            "support": truths,
        }
        return {
            "labels": list(names),
            "confusion": confusion.tolist(),
            "per_class": {
                name: {metric: values[number].item() for metric, values in columns.items()}
                for number, name in enumerate(names)
            },
        }


def calibration(scores: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Return the expected calibration error of scores [n, k], and the bins that it is made of.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
    """
    confidence = scores.max(-1)
    bins = []
    error = 0.0
    for place in range(BINS):
        inside = np.ceil(confidence * BINS) == place + 1
        if count := int(inside.sum()):
            sure, accuracy = (float(part[inside].mean()) for part in (confidence, right))
            bins.append(
                {"from": place / BINS, "n": count, "confidence": sure, "accuracy": accuracy}
            )
            error += count * abs(sure - accuracy) / len(right)
    return {"error": error, "bins": bins}


@dataclass(frozen=True)
class LabelPredictions:
    """Any of k labels, true and predicted, for n texts."""

    truth: np.ndarray  # [n, k] bool
    predicted: np.ndarray  # [n, k] bool

    SHARES: ClassVar = ("accuracy",)

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return the share of texts with exactly the true labels, and F1."""
        truth = self.truth[rows]
        predicted = self.predicted[rows]
        right, truths, counts = (part.sum(0) for part in (truth & predicted, truth, predicted))
        return {
            "accuracy": float((truth == predicted).all(1).mean()),
            "macro_f1": float(share(2 * right, truths + counts).mean()),
            "micro_f1": float(2 * right.sum() / max(truths.sum() + counts.sum(), 1)),
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of examples behind each metric."""
        return {
            "accuracy": float(len(self.truth)),
            "macro_f1": balanced_size(self.truth.sum(0)),
            "micro_f1": float((self.truth | self.predicted).any(1).sum()),
        }


def balanced_size(counts: np.ndarray) -> float:
    """Return the number of balanced examples whose macro average is as uncertain.

    The variance of the mean of k classes, each with its count of examples, is that of k² / Σ 1/n
    examples: 100 examples of two classes are 100 where each class has 50, and 8 where one has 2.
    """
    occurring = counts[counts > 0]
    return float(len(occurring) ** 2 / (1 / occurring).sum()) if len(occurring) else 0.0


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the quotients, 0 where there is nothing to share."""
    return part / np.maximum(whole, 1)


# --- scores ---


@dataclass(frozen=True)
class ScorePredictions:
    """Numbers for n texts or pairs."""

    truth: np.ndarray  # [n]
    predicted: np.ndarray  # [n]

    SHARES: ClassVar = ()

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return correlations and errors of some rows, or of all."""
        truth, predicted = (of[rows].astype(np.float64) for of in (self.truth, self.predicted))
        return {
            "spearman": spearman(truth, predicted),
            "pearson": pearson(truth, predicted),
            "mse": float(np.square(truth - predicted).mean()),
            "mae": float(np.abs(truth - predicted).mean()),
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return nothing: no metric is between 0 and 1."""
        return {}


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the linear correlation; 0 where a side does not vary."""
    a = a - a.mean()
    b = b - b.mean()
    scale = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of ranks; equal values share the mean of their ranks."""
    return pearson(ranks(a), ranks(b))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value from 1, the mean rank for equal ones, [n]."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[places]


# --- entities ---

OUTSIDE = ("O", "", "-")


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the type, the first and the last word of each entity of a sentence.

    Source: seqeval 1.2, get_entities: a tag is one letter and, from the first dash on, a type; so
    the type of the bare tag PER is ER.
    """
    start = 0
    before = "O"
    kind = ""
    for word, tag in enumerate([*tags, "O"]):
        tag = "O" if tag in OUTSIDE else tag
        prefix = tag[0]
        next_kind = tag[1:].split("-", maxsplit=1)[-1] or "_"
        changes = kind != next_kind
        if (
            before in ("E", "S")
            or (before in ("B", "I") and prefix in ("B", "S", "O"))
            or (before != "O" and changes)
        ):
            yield kind, start, word - 1
        if (
            prefix in ("B", "S")
            or (before in ("E", "S", "O") and prefix in ("E", "I"))
            or (prefix != "O" and changes)
        ):
            start = word
        before = prefix
        kind = next_kind


@dataclass(frozen=True)
class TagPredictions:
    """The tags of the words of n sentences."""

    truth: Sequence[Sequence[str]]
    predicted: Sequence[Sequence[str]]

    SHARES: ClassVar = ()  # words of one sentence are no independent examples

    @cached_property
    def counts(self) -> np.ndarray:
        """Entities right, true and predicted of each sentence, words right, and words, [n, 5]."""
        rows = []
        for true, tags in zip(self.truth, self.predicted, strict=True):
            truths = {*entities(true)}
            predicted = {*entities(tags)}
            same = sum(map(str.__eq__, true, tags))
            rows.append((len(truths & predicted), len(truths), len(predicted), same, len(true)))
        return np.array(rows)

    def metrics(self, rows: Rows = ALL) -> dict[str, float]:
        """Return precision, recall and F1 of entities, and the accuracy of words."""
        right, truths, predicted, same, words = self.counts[rows].sum(0).tolist()
        return {
            "precision": right / max(predicted, 1),
            "recall": right / max(truths, 1),
            "f1": 2 * right / max(truths + predicted, 1),
            "accuracy": same / max(words, 1),
        }

    def sample_sizes(self) -> dict[str, float]:
        """Return the number of sentences that have what each metric counts."""
        has_true, has_predicted, has_words = (self.counts[:, [1, 2, 4]] > 0).T
        return {
            "precision": float(has_predicted.sum()),
            "recall": float(has_true.sum()),
            "f1": float((has_true | has_predicted).sum()),
            "accuracy": float(has_words.sum()),
        }


# --- answers ---

ARTICLES = re.compile(r"\b(a|an|the)\b")
MARKS = str.maketrans("", "", string.punctuation)


def overlap(answer: str, truth: str) -> tuple[float, float]:
    """Return whether two answers are equal, and the F1 of their words.

    Source: Rajpurkar et al., SQuAD, 2016, its script: articles, punctuation and case do not count.
    """
    words, true_words = (
        ARTICLES.sub(" ", text.lower().translate(MARKS)).split() for text in (answer, truth)
    )
    same = float(words == true_words)
    if not words or not true_words:
        return same, same
    common = sum((Counter(words) & Counter(true_words)).values())
    return same, 2 * common / (len(words) + len(true_words))


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


def answer_predictions(truth: Sequence[str], predicted: Sequence[str]) -> MeanPredictions:
    """Return exact match and F1 of the answers to questions; "" for none."""
    values = np.array([*map(overlap, predicted, truth)])
    return MeanPredictions(("exact_match", "f1"), values)


Predictions: TypeAlias = (
    ClassPredictions | LabelPredictions | ScorePredictions | TagPredictions | MeanPredictions
)
