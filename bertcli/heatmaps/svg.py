"""A figure as SVG: plain texts, and one path a colour, so that it is small and can be edited."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from xml.sax.saxutils import escape

from bertcli.heatmaps.colours import PAPER, STEPS, colour, hexadecimal, ramp
from bertcli.heatmaps.figure import Figure, Map, Text
from bertcli.heatmaps.png import encode, shades
from bertcli.printable import printable

CELLS = 10_000  # of a map that is drawn as paths
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def svg(figure: Figure) -> bytes:
    """Draw a figure."""
    return "\n".join(_lines(figure)).encode() + b"\n"


def _lines(figure: Figure) -> Iterator[str]:
    width, height = round(figure.width), round(figure.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}" role="img">'
    )
    yield f"<title>{_clean(figure.title)}</title>"
    yield f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    yield '<g shape-rendering="crispEdges">'
    for one in figure.maps:
        yield from _map(one)
    yield "</g>"
    for bar in figure.bars:
        fill = bar.colour if bar.weight is None else hexadecimal(colour(bar.weight))
        yield (
            f'<rect x="{bar.x:g}" y="{bar.y:g}" width="{bar.width:g}" height="{bar.height:g}" '
            f'fill="{fill}"/>'
        )
    for text in figure.texts:
        yield _text(text)
    yield "</svg>"


def _map(one: Map) -> Iterator[str]:
    """Yield a background of the lowest colour, and a path for each colour above it."""
    rows, columns = one.weights.shape
    if rows * columns > CELLS:
        yield _image(one)
        return
    cell, palette = one.cell, [hexadecimal(step) for step in ramp()]
    yield f'<g transform="translate({one.x:g} {one.y:g})">'
    yield f'<path fill="{palette[0]}" d="M0 0h{columns * cell:g}v{rows * cell:g}H0z"/>'
    steps = (one.weights.clip(0, 1) ** 0.5 * (STEPS - 1)).round().astype(int)
    runs: dict[int, list[str]] = {}
    for row in range(rows):
        start = 0
        for column in range(1, columns + 1):
            if column < columns and steps[row, column] == steps[row, start]:
                continue
            if step := int(steps[row, start]):
                wide = (column - start) * cell
                place = f"M{start * cell:g} {row * cell:g}h{wide:g}v{cell:g}h{-wide:g}z"
                runs.setdefault(step, []).append(place)
            start = column
    for step in sorted(runs):
        yield f'<path fill="{palette[step]}" d="{"".join(runs[step])}"/>'
    yield "</g>"


def _image(one: Map) -> str:
    """Return a large map as a picture of a pixel a cell: as paths it would be megabytes."""
    rows, columns = one.weights.shape
    data = b64encode(encode(shades(one.weights))).decode()
    size = f'width="{columns * one.cell:g}" height="{rows * one.cell:g}"'
    return (
        f'<image x="{one.x:g}" y="{one.y:g}" {size} preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'
    )


def _text(text: Text) -> str:
    turn = f' transform="rotate({-text.angle:g} {text.x:g} {text.y:g})"' if text.angle else ""
    anchor = ' text-anchor="end"' if text.anchor == "end" else ""
    return (
        f'<text x="{text.x:g}" y="{text.y:g}" dy=".35em" font-size="{text.size:g}" '
        f'fill="{text.colour}"{anchor}{turn}>{_clean(text.text)}</text>'
    )


def _clean(text: str) -> str:
    """Escape a text, without the control characters that XML cannot hold."""
    return escape(printable(text))
