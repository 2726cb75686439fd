"""The losses of a run as SVG: a file for papers and pages, made without a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import NamedTuple

from bertcli.files.typed_json import JsonObject
from bertcli.heatmaps.colours import FAINT, INK, PAPER, SENTENCES
from bertcli.heatmaps.svg import FONT
from bertcli.pretrain.log import read

WIDTH, HEIGHT = 720.0, 400.0  # pixels at 96 to the inch
LEFT, RIGHT, TOP, BOTTOM = 56.0, 16.0, 34.0, 40.0
MOST = 1000  # points of a curve: more than there are pixels to tell them apart
Points = Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """Points (step, loss) under a name."""

    name: str
    points: Points
    colour: str
    dots: bool = False


def plot(log: Path) -> bytes:
    """Draw the losses of a log over its steps, and those on what was held out as dots."""
    lines = list(read(log))
    curves = [
        Curve("loss", thinned(_points(lines, "loss")), SENTENCES[0]),
        Curve("masked words", thinned(_points(lines, "mlm_loss")), FAINT),
        Curve("held out", thinned(_points(lines, "eval_loss")), SENTENCES[1], dots=True),
    ]
    return "\n".join(_lines([curve for curve in curves if curve.points])).encode() + b"\n"


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


def _lines(curves: Sequence[Curve]) -> Iterator[str]:
    every = [point for curve in curves for point in curve.points]
    last = max((x for x, _ in every), default=1.0)
    x_ticks = ticks(0.0, last)
    y_ticks = ticks(
        min((y for _, y in every), default=0.0), max((y for _, y in every), default=1.0)
    )
    low, high = y_ticks[0], y_ticks[-1]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + point[0] / (last or 1.0) * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - (point[1] - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{HEIGHT:g}" '
        f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" font-family="{FONT}" font-size="11" role="img">'
    )
    yield f'<title>Loss by step</title><rect width="100%" height="100%" fill="{PAPER}"/>'
    for value in y_ticks:
        x, y = place((0.0, value))
        yield f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT:g}" stroke="{FAINT}" stroke-width=".3"/>'
        yield _text(x - 8, y, f"{value:g}", "end")
    for value in x_ticks:
        if value <= last:
            yield _text(place((value, low))[0], HEIGHT - BOTTOM + 16, f"{value:,.0f}", "middle")
    yield _text(WIDTH - RIGHT, HEIGHT - 8, "step", "end")
    for number, curve in enumerate(curves):
        yield _text(LEFT + 8 + 110 * number, 16, curve.name, "start", curve.colour)
        yield from _curve(curve, [place(point) for point in curve.points])
    yield "</svg>"


def _curve(curve: Curve, places: Points) -> Iterator[str]:
    if curve.dots or len(places) == 1:
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{curve.colour}"/>'
        return
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path d="M{path}" fill="none" stroke="{curve.colour}" stroke-width="1.5"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" dy=".35em" text-anchor="{anchor}" fill="{colour}">'
        f"{text}</text>"
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers, about so many, from below `low` to above `high`."""
    span = max(high - low, 1e-9)
    power = 10.0 ** floor(log10(span / count))
    step = next(one * power for one in (1, 2, 5, 10) if one * power * count >= span)
    first, last = floor(low / step), ceil(high / step)
    return [round(place * step, 10) for place in range(first, max(last, first + 1) + 1)]
