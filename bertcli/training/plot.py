"""The losses of a run as a figure, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertcli.files.typed_json import JsonObject
from bertcli.plots.colours import FAINT, INK, SENTENCES
from bertcli.plots.drawing import drawing, encode
from bertcli.training.log import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = 7.5, 4.2  # inches
MOST = 1000  # points of a curve: more than there are pixels to tell them apart
Points = Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """Points (step, loss) under a name."""

    name: str
    points: Points
    colour: str
    dots: bool = False


def plot(log: Path, form: str = "svg") -> bytes:
    """Draw the losses of a log over its steps, those on what was held out as dots.

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


def thinned(points: Points, most: int = MOST) -> Points:
    """Return at most so many points, each the mean of its neighbours."""
    size = ceil(len(points) / most)
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
