"""Answers compared with the true ones, as the script of SQuAD compares them.

Source: Rajpurkar et al., SQuAD, 2016: articles, punctuation and case do not count.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
MARKS = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> list[str]:
    """Return the words of an answer that count."""
    return ARTICLES.sub(" ", text.lower().translate(MARKS)).split()


def overlap(said: str, truth: str) -> tuple[float, float]:
    """Return whether two answers are equal, and the F1 of their words."""
    one, other = normalised(said), normalised(truth)
    if not one or not other:
        same = float(one == other)
        return same, same
    common = sum((Counter(one) & Counter(other)).values())
    return float(one == other), 2 * common / (len(one) + len(other))


@dataclass(frozen=True)
class AnswerPredictions:
    """The answers to n questions; "" where there is none."""

    truth: Sequence[str]
    said: Sequence[str]

    @cached_property
    def values(self) -> np.ndarray:
        """Exact match and F1 of each question, [n, 2]."""
        pairs = zip(self.said, self.truth, strict=True)
        return np.array([overlap(said, truth) for said, truth in pairs]).reshape(-1, 2)

    def metrics(self, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """Return the share of exact matches, and the mean F1."""
        exact, f1 = self.values[rows].mean(0)
        return {"exact_match": float(exact), "f1": float(f1)}
