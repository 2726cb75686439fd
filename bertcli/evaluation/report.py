"""The report of an evaluation: metrics with their intervals, and two models compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bertcli.evaluation.bootstrap import FEW, interval, intervals, samples
from bertcli.evaluation.predictions import Judged, ModelPredictions


@dataclass(frozen=True)
class EvaluationReport:
    """The metrics of n examples."""

    judged: Judged
    n: int
    other: Judged | None = None  # of another model

    def warnings(self) -> Iterator[str]:
        """Yield what makes the numbers doubtful."""
        for judged in filter(None, (self.judged, self.other)):
            yield from judged.warnings
        if self.n < FEW:
            counted = "queries" if self.judged.task == "retrieval" else "examples"
            yield f"fewer than {FEW} {counted} ({self.n}): the intervals are too narrow"

    def fields(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = self.judged
        metrics = found.predictions.metrics()
        said = {
            "task": found.task,
            "n": self.n,
            **metrics,
            "intervals": intervals(found.predictions.metrics, self.n),
            **found.details,
        }
        if self.other is None:
            return said
        return said | {"compare": differences(found.predictions, self.other.predictions, self.n)}


def differences(one: ModelPredictions, other: ModelPredictions, count: int) -> dict[str, Any]:
    """Return the metrics of the other model, and how much better it is: paired, with intervals."""
    theirs, ours = other.metrics(), one.metrics()
    drawn = [_minus(other.metrics(rows), one.metrics(rows)) for rows in samples(count)]
    return {
        **theirs,
        "differences": _minus(theirs, ours),
        "intervals": {name: interval([each[name] for each in drawn]) for name in ours},
    }


def _minus(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one[name] - other[name] for name in other}
