"""The report of an evaluation as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from bertcli.cli.display.screen import plain
from bertcli.cli.display.tables import HEADED, table
from bertcli.errors import counted

WIDEST = 12  # labels of a confusion matrix that is shown


def evaluation_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of a report: metrics, classes and the confusion."""
    other = report.get("compare")
    names = ["metric", "value", "95 %" if other else "95 % interval"]
    names += ["other", "better by", "95 %"] if other else []  # short: they fit 60 columns
    title = f"{report['task']}, {counted(report['n'], 'example')}"
    metrics = table(*names, figures=names[1:], title=title, **HEADED)
    metrics.columns[0].no_wrap = True
    for name, interval in report["intervals"].items():
        cells = [name.replace("_", " "), _number(report[name]), _interval(interval)]
        if other:
            difference = other["differences"][name], other["intervals"][name]
            cells += [_number(other[name]), f"{difference[0]:+.4f}", _interval(difference[1])]
        metrics.add_row(*cells)
    yield metrics
    if "per_class" in report:
        measures = ("precision", "recall", "f1")
        classes = table("label", *measures, "examples", figures=(*measures, "examples"))
        for name, values in report["per_class"].items():
            numbers = [_number(values[measure]) for measure in measures]
            classes.add_row(name, *numbers, f"{values['support']:,}")
        yield classes
        if len(report["labels"]) <= WIDEST:
            confusion = Table("true \\ predicted", box=SIMPLE_HEAD, title="confusion", **HEADED)
            for name in report["labels"]:
                confusion.add_column(name, justify="right")
            for name, counts in zip(report["labels"], report["confusion"], strict=True):
                confusion.add_row(name, *(f"{count:,}" for count in counts))
            yield confusion
        yield plain(f"calibration error {report['calibration']['error']:.4f}")


def _number(value: float) -> str:
    return f"{value:.4f}"


def _interval(edges: list[float]) -> str:
    return f"{edges[0]:.4f} to {edges[1]:.4f}"
