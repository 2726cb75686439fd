"""Metrics of numbers: correlations and errors of n predictions with n truths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ScorePredictions:
    """What was said of n texts or pairs, and what is true."""

    truth: np.ndarray  # [n]
    said: np.ndarray  # [n]

    def metrics(self, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """Return correlations and errors of some rows, or of all."""
        truth, said = (of[rows].astype(np.float64) for of in (self.truth, self.said))
        return {
            "spearman": spearman(truth, said),
            "pearson": pearson(truth, said),
            "mse": float(np.square(truth - said).mean()),
            "mae": float(np.abs(truth - said).mean()),
        }


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the linear correlation; 0 where a side does not vary."""
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / scale if scale else 0.0


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of ranks; equal values share the mean of their ranks."""
    return pearson(ranks(a), ranks(b))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value from 1, the mean rank for equal ones, [n]."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: np.ndarray = (last - (counts - 1) / 2)[places]
    return found
