"""Metrics of classes: accuracy, F1, confusion, calibration. `n` texts, `k` classes.

F1 and its averages are those of scikit-learn's f1_score with zero_division 0; a class that neither
occurs nor is predicted does not count in the macro average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 15  # of the calibration error


@dataclass(frozen=True)
class ClassPredictions:
    """What was said of n texts, and what is true."""

    truth: np.ndarray  # [n] class numbers; -1: a class that the model does not know
    scores: np.ndarray  # [n, k] probabilities

    @property
    def predicted(self) -> np.ndarray:
        """The likeliest class of each text, [n]."""
        found: np.ndarray = self.scores.argmax(-1)
        return found

    def metrics(self, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """Return the metrics of some rows, or of all."""
        confusion = self.confusion(rows)
        right, total = np.diag(confusion[:-1]), confusion.sum()
        accuracy = float(right.sum() / max(total, 1))
        return {
            "accuracy": accuracy,
            "macro_f1": macro(right, confusion[:-1].sum(1), confusion.sum(0)),
            "micro_f1": accuracy,  # the same, where every text has one class
        }

    def confusion(self, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return counts [k + 1, k]: truths in rows, unknown ones last; predictions in columns."""
        k = self.scores.shape[1]
        truth = np.where(self.truth < 0, k, self.truth)[rows]
        cells = truth * k + self.predicted[rows]
        counts: np.ndarray = np.bincount(cells, minlength=(k + 1) * k).reshape(k + 1, k)
        return counts

    def calibration(self) -> dict[str, Any]:
        """Return the expected calibration error and the bins that it is made of.

        Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
        """
        confidence, right = self.scores.max(-1), self.predicted == self.truth
        place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        bins = []
        for number in np.unique(place).tolist():
            inside = place == number
            bins.append(
                {
                    "from": number / BINS,
                    "n": int(inside.sum()),
                    "confidence": float(confidence[inside].mean()),
                    "accuracy": float(right[inside].mean()),
                }
            )
        gaps = (one["n"] * abs(one["confidence"] - one["accuracy"]) for one in bins)
        return {"error": sum(gaps) / max(len(right), 1), "bins": bins}


def per_class(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Return precision, recall, F1 and support of each class, [k]."""
    right, truths, said = np.diag(confusion[:-1]), confusion[:-1].sum(1), confusion.sum(0)
    return {
        "precision": share(right, said),
        "recall": share(right, truths),
        "f1": share(2 * right, truths + said),
        "support": truths,
    }


def macro(right: np.ndarray, truths: np.ndarray, said: np.ndarray) -> float:
    """Return the mean F1 of the classes that occur or were predicted, from counts [k]."""
    there = (truths + said) > 0
    return float(share(2 * right, truths + said)[there].mean()) if there.any() else 0.0


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the quotients, 0 where there is nothing to share."""
    found: np.ndarray = part / np.maximum(whole, 1)
    return found


@dataclass(frozen=True)
class LabelPredictions:
    """Which of k labels, several at once, were said of n texts, and which are true."""

    truth: np.ndarray  # [n, k] bool
    said: np.ndarray  # [n, k] bool

    def metrics(self, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """Return the share of texts with exactly the true labels, and F1."""
        truth, said = self.truth[rows], self.said[rows]
        right = (truth & said).sum(0)
        truths, guesses = truth.sum(0), said.sum(0)
        return {
            "accuracy": float((truth == said).all(1).mean()),
            "macro_f1": float(share(2 * right, truths + guesses).mean()),
            "micro_f1": float(2 * right.sum() / max(truths.sum() + guesses.sum(), 1)),
        }
