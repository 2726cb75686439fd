"""The report of an evaluation: metrics with their intervals, and two models compared.

Intervals are made by resampling the examples. Source: Efron, Bootstrap Methods, 1979.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertcli.evaluation.predictions import Judged

DRAWS, WORK = 1000, 20_000_000  # samples, and examples in all of them at most
LEAST = 200  # samples all the same
SHARE = 0.95
# Examples below which intervals are too narrow: of a model that is right in nine of ten cases, the
# interval of the accuracy contains 0.9 in 95 % of the draws of 30 examples, in 87 % of those of 20,
# in 65 % of those of 10; of one or two examples it is mostly [1, 1].
FEW = 30


def samples(count: int) -> Iterator[np.ndarray]:
    """Yield the rows of each sample, drawn with replacement, [count]."""
    draw = np.random.default_rng(0)
    for _ in range(max(LEAST, min(DRAWS, WORK // max(count, 1)))):
        yield draw.integers(0, count, count)


def intervals(drawn: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric, from those of samples."""
    edge = (1 - SHARE) / 2
    edges = edge, 1 - edge
    values = {name: [metrics[name] for metrics in drawn] for name in drawn[0]}
    return {name: np.quantile(numbers, edges).tolist() for name, numbers in values.items()}


def doubts(results: Sequence[Judged], n: int) -> Iterator[str]:
    """Yield what makes the numbers of n examples doubtful."""
    for judged in results:
        yield from judged.warnings
    if n < FEW:
        counted = "queries" if results[0].task == "retrieval" else "examples"
        yield f"fewer than {FEW} {counted} ({n}): the intervals are too narrow"


def report(judged: Judged, n: int, other: Judged | None = None) -> dict[str, Any]:
    """Return the metrics of n examples; of two models also the other's, and how much better."""
    ours = judged.predictions.metrics
    fields = {
        "task": judged.task,
        "n": n,
        **ours(),
        "intervals": intervals([ours(rows) for rows in samples(n)]),
        **judged.details,
    }
    if other is not None:
        theirs = other.predictions.metrics
        drawn = [_minus(theirs(rows), ours(rows)) for rows in samples(n)]
        differences = _minus(theirs(), ours())
        fields["compare"] = {**theirs(), "differences": differences, "intervals": intervals(drawn)}
    return fields


def _minus(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left[name] - right[name] for name in left}
