"""The log of a run, JSON lines for steps and evaluations, and its losses as a figure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.errors import OutputError
from bertcli.files.system_calls import sync
from bertcli.files.typed_json import BadJsonError, JsonObject, is_regular, kind_of, parse, strict
from bertcli.plots.colours import FAINT, INK, SENTENCES
from bertcli.plots.drawing import drawing, encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bertcli.training.loop import StepResult

MOVE = "move the log away; the run continues with a new one"
LOG, PLOT = "log.jsonl", "loss.svg"


class LogWindow:
    """Sums over the steps since the last line; checkpoints store them."""

    def __init__(self, sums: Mapping[str, float]) -> None:
        self.sums = dict(sums)
        self.lr = 0.0

    def add(self, step: StepResult, seconds: float) -> None:
        """Add a step."""
        said = {**step.values, "seconds": seconds, "steps": 1}
        self.lr = said.pop("lr")
        for name, value in said.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def close(self, epoch: float, losses: Sequence[str]) -> dict[str, Any]:
        """Return the line of these steps, means and the last learning rate, and reset the sums."""
        sums, self.sums = self.sums, {}
        means = {name: sums[name] / sums["steps"] for name in losses}
        return {
            "epoch": round(epoch, 4),
            "loss": sum(means.values()),
            **means,
            "lr": self.lr,
            "grad_norm": sums["grad_norm"] / sums["steps"],
            "tokens_per_second": round(sums["tokens"] / max(sums["seconds"], 1e-9), 1),
        }


class Log:
    """Appends lines to a file, truncated to its size at the last checkpoint."""

    def __init__(self, path: Path, size: int = 0) -> None:
        is_regular(path, OutputError, MOVE, inf)
        self.file = path.open("ab")
        there = self.file.seek(0, os.SEEK_END)
        self.file.truncate(min(size, there))  # drops what was written after the last checkpoint

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line and flush it; a number that overflowed is null."""
        self.file.write(json.dumps(strict(line)).encode() + b"\n")
        self.file.flush()

    def sync(self) -> int:
        """Sync all lines to disk; return the size in bytes."""
        sync(self.file)
        return self.file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read(path: Path) -> Iterator[JsonObject]:
    """Yield the complete lines of a log. Raises OutputError for a line that is not an object."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                continue
            where = f"{path}:{number}"
            try:
                found = parse(line)
            except BadJsonError as bad:
                raise OutputError(f"{where}: not a line of a log: {bad}", MOVE) from None
            if not isinstance(found, dict):
                raise OutputError(f"{where}: not a line of a log, but {kind_of(found)}", MOVE)
            yield JsonObject(found, where, OutputError, MOVE)


SIZE = 7.5, 4.2  # inches
MOST = 1000  # points of a curve, more than its pixels
Points = Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """Points (step, loss) under a name."""

    name: str
    points: Points
    colour: str
    dots: bool = False


def plot(log: Path, form: str = "svg") -> bytes:
    """Draw the losses of a log over its steps, held-out losses as dots.

    Return the file: svg, png or pdf.
    """
    lines = list(read(log))
    curves = [
        Curve("loss", thinned(_points(lines, "loss")), SENTENCES[0]),
        Curve("masked words", thinned(_points(lines, "mlm_loss")), FAINT),
        Curve("held out", thinned(_points(lines, "eval_loss")), SENTENCES[1], dots=True),
    ]
    with drawing():
        return encode(_figure([curve for curve in curves if curve.points]), form, "Loss by step")


def _points(lines: Sequence[JsonObject], name: str) -> Points:
    """Return the steps and values of the lines that have this value."""
    found = [(line.number("step"), line.number(name)) for line in lines]
    return [
        (step, value)
        for step, value in found
        if step is not None and value is not None and isfinite(step) and isfinite(value)
    ]


def thinned(points: Points) -> Points:
    """Return at most MOST points, each the mean of neighbouring points."""
    size = ceil(len(points) / MOST)
    if size < 2:
        return points
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def _figure(curves: Sequence[Curve]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    figure = Figure(SIZE, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1))
    axes = figure.add_subplot()
    for curve in curves:
        dots = curve.dots or len(curve.points) == 1
        style = {"linestyle": "", "marker": "o", "markersize": 4.5} if dots else {"linewidth": 1.5}
        x, y = zip(*curve.points, strict=True)
        axes.plot(x, y, color=curve.colour, label=curve.name, clip_on=False, **style)
    axes.set_xlabel("step", loc="right", color=INK)
    axes.set_xlim(0, max((x for curve in curves for x, _ in curve.points), default=0) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color=FAINT, linewidth=0.3)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    if curves:
        legend = figure.legend(loc="outside upper left", ncols=3, frameon=False)
        for text, curve in zip(legend.get_texts(), curves, strict=True):
            text.set_color(curve.colour)
    return figure
