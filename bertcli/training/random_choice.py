"""Decisions by chance that are the same on every machine and in every Python.

Python promises the sequence of ``Random.random`` for a seed, and of no other method: so everything
here is built on that one. NumPy promises nothing of the kind for its generators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def below(rng: Random, count: int) -> int:
    """Return one of 0 ... count - 1, each as likely as the others."""
    return int(rng.random() * count)


def between(rng: Random, low: int, high: int) -> int:
    """Return one of low ... high, each as likely as the others."""
    return low + int(rng.random() * (high - low + 1))


def drawn(rng: Random, items: Sequence[T]) -> Iterator[T]:
    """Yield all items in random order; each costs one step, so a few of many cost little."""
    left = list(items)
    while left:
        at = int(rng.random() * len(left))
        left[at], left[-1] = left[-1], left[at]
        yield left.pop()
