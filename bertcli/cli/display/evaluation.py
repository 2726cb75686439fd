"""The report of an evaluation as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from bertcli.cli.display.screen import plain
from bertcli.errors import counted

WIDEST = 12  # labels of a confusion matrix that is shown


def evaluation_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of a report: metrics, classes and the confusion."""
    other = report.get("compare")
    names = ["metric", "value", "95 %" if other else "95 % interval"]
    names += ["other", "better by", "95 %"] if other else []  # short: they fit 60 columns
    metrics = Table(
        *names, box=SIMPLE_HEAD, title=f"{report['task']}, {counted(report['n'], 'example')}"
    )
    metrics.columns[0].no_wrap = True
    for name, interval in report["intervals"].items():
        cells = [name.replace("_", " "), _number(report[name]), _interval(interval)]
        if other:
            difference = other["differences"][name], other["intervals"][name]
            cells += [_number(other[name]), f"{difference[0]:+.4f}", _interval(difference[1])]
        metrics.add_row(*cells)
    yield metrics
    if "per_class" in report:
        yield _classes(report["per_class"])
        if len(report["labels"]) <= WIDEST:
            yield _confusion(report["labels"], report["confusion"])
        yield plain(f"calibration error {report['calibration']['error']:.4f}")


def _classes(each: Mapping[str, Mapping[str, float]]) -> Table:
    found = Table("label", "precision", "recall", "F1", "examples", box=SIMPLE_HEAD)
    for name, values in each.items():
        numbers = [_number(values[key]) for key in ("precision", "recall", "f1")]
        found.add_row(plain(name), *numbers, f"{values['support']:,}")
    return found


def _confusion(labels: list[str], counts: list[list[int]]) -> Table:
    found = Table("true \\ said", box=SIMPLE_HEAD, title="confusion")
    for name in labels:
        found.add_column(plain(name))
    for name, row in zip(labels, counts, strict=True):
        found.add_row(plain(name), *(f"{count:,}" for count in row))
    return found


def _number(value: float) -> str:
    return f"{value:.4f}"


def _interval(edges: list[float]) -> str:
    return f"{edges[0]:.4f} to {edges[1]:.4f}"
