"""Attention maps with their labels: as numbers, as a page, and drawn.

`picture` makes the contents of a file. html is a page to explore it, one self-contained file that
makes no request: page.html, filled with page.css, page.js and the data; a rule in it forbids every
request. svg, png and pdf are drawn with matplotlib: one map, or many, layers below each other and
heads side by side, with tokens at the outer maps only. Lengths there are pixels at 96 to the inch;
every cell is a whole number of them, so that its edges are sharp.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from bertcli.errors import UsageError
from bertcli.files.printable import printable
from bertcli.inspection.drawing import (
    FAINT,
    INK,
    SENTENCES,
    STEPS,
    TICKS,
    drawing,
    encode,
    hexadecimal,
    ramp,
    shades,
    without_glyph,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = ("svg", "png", "pdf")  # with matplotlib
PICTURES = ("html", *DRAWN, "json", "npz")
LARGEST = 20_000_000  # weights in a page: about 50 MB, which a browser still opens in seconds
SCALE = 10_000  # a page has weights as whole numbers out of this: four decimals
MEAN = "mean"  # of all heads, in place of a head's number


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights: `maps[layer][head]` is a numpy array [L, L], rows sum to 1.

    Row i holds the weights from token i to each token. Layers and heads count from 0,
    as in the names of tensors; pruned heads are absent. A head may be MEAN: that of all heads.
    """

    model: str
    tokens: Sequence[str]
    sentences: Sequence[int]  # per token: 0 for the text, 1 for its pair
    special: Sequence[bool]  # per token: whether it is [CLS], [SEP] or [PAD]
    maps: Mapping[int, Mapping[int | str, Any]]
    layers: int  # of the model
    averaged: Mapping[int, int] = field(default_factory=dict)  # layer -> heads in its MEAN

    @cached_property
    def mean(self) -> Mapping[int, Any]:
        """Return layer -> the mean of its heads."""
        return {layer: sum(heads.values()) / len(heads) for layer, heads in self.maps.items()}

    @property
    def count(self) -> int:
        """How many maps there are."""
        return sum(map(len, self.maps.values()))

    def to_json(self) -> dict[str, Any]:
        """Return tokens and maps as JSON values, weights in the fewest digits that are exact."""
        from bertcli.files.array_json import json_of
        from bertcli.files.typed_json import parse

        return self._json(lambda weights: parse(next(json_of([weights]))))

    def rounded(self) -> dict[str, Any]:
        """Return the same with weights as whole numbers out of `scale`, for a page."""
        maps = self._json(lambda weights: (weights * SCALE).round().astype(int).tolist())
        return {**maps, "scale": SCALE, "averaged": self.averaged}

    def arrays(self) -> dict[str, Any]:
        """Return exact arrays: `attention` [layers, heads, L, L] and what its axes are.

        A head that was pruned in some of the layers is NaN there; `heads` -1 is the mean.
        """
        import numpy as np

        names = sorted({head for heads in self.maps.values() for head in heads}, key=str)
        names = [MEAN] if MEAN in names else sorted(names, key=int)
        length = len(self.tokens)
        gone = np.full((length, length), np.nan, np.float32)
        whole = [[heads.get(name, gone) for name in names] for heads in self.maps.values()]
        return {
            "attention": np.array(whole, np.float32).reshape(len(whole), -1, length, length),
            "layers": np.array([*self.maps], np.int64),
            "heads": np.array([-1 if name == MEAN else name for name in names], np.int64),
            "tokens": np.array(self.tokens, np.str_),
            "sentences": np.array(self.sentences, np.int64),
            "special": np.array(self.special, np.bool_),
        }

    def _json(self, written: Callable[[Any], Any]) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "sentences": list(self.sentences),
            "special": [*map(int, self.special)],
            "layers": [
                {
                    "layer": layer,
                    "heads": [
                        {"head": head, "weights": written(weights)}
                        for head, weights in heads.items()
                    ],
                }
                for layer, heads in self.maps.items()
            ],
        }


def picture(texts: Sequence[AttentionMaps], form: str) -> bytes:
    """Return the contents of a file: html, json or npz of one text or several, or svg, png, pdf.

    Of several texts, json is a list, and the arrays of npz have the number of their text behind
    their names: attention_0, tokens_0, attention_1.
    """
    match form:
        case "html":
            return page(texts)
        case "json":
            rows = [maps.to_json() for maps in texts]
            text = json.dumps(rows if len(rows) > 1 else rows[0], ensure_ascii=False)
            return text.encode("utf-8", "replace") + b"\n"
        case "npz":
            import numpy as np

            arrays = {
                f"{name}_{at}" if len(texts) > 1 else name: array
                for at, maps in enumerate(texts)
                for name, array in maps.arrays().items()
            }
            file = io.BytesIO()
            np.savez(file, **arrays)
            return file.getvalue()
    (maps,) = texts
    with drawing():
        return encode(_figure(maps), form, f"Attention of {maps.model}")


def page(texts: Sequence[AttentionMaps]) -> bytes:
    """Return a page of one text or several. UsageError when it is too large for a browser."""
    from html import escape
    from importlib.resources import files
    from string import Template

    numbers = sum(maps.count * len(maps.tokens) ** 2 for maps in texts)
    if numbers > LARGEST:
        count = sum(maps.count for maps in texts)
        tokens = max(len(maps.tokens) for maps in texts)
        raise UsageError(
            f"{count} {'map' if count == 1 else 'maps'} of {tokens} tokens "
            f"have {numbers:,} weights: too many for a page",
            "choose fewer --layers or --heads",
        )
    look = {
        "light": [hexadecimal(step) for step in ramp()],
        "dark": [hexadecimal(step) for step in ramp(dark=True)],
        "steps": STEPS,
        "ticks": TICKS,
        "sentences": SENTENCES,
    }
    rows = [maps.rounded() for maps in texts]
    content = {"texts": rows, "modelLayers": texts[0].layers, "look": look}
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # Safe inside a script element, whatever the tokens are.
    for character in "<\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = [
        (files("bertcli.inspection") / f"page.{suffix}").read_text(encoding="utf-8")
        for suffix in ("html", "css", "js")
    ]
    model = escape(texts[0].model)
    filled = Template(parts[0]).substitute(model=model, style=parts[1], script=parts[2], data=data)
    return filled.encode("utf-8", "replace")


def unsupported_characters(texts: Sequence[AttentionMaps], form: str) -> str:
    """Return which characters of the tokens this format draws as boxes, in words, or ""."""
    if form not in ("png", "pdf"):
        return ""
    boxes = without_glyph("".join(token for maps in texts for token in maps.tokens))
    if not boxes:
        return ""
    first = " ".join(sorted(boxes)[:10])
    return f"{form.upper()} draws these characters as boxes: {first}; SVG and HTML have them all"


# --- drawn with matplotlib ---

INCH, POINT = 96, 0.75  # pixels to the inch; points to the pixel
MARGIN, GAP, TITLE = 14, 14, 22
LABEL_GAP = 8  # between a map and its tokens, with the strip of the sentence inside
LEGEND, LEGEND_WIDTH, LEGEND_TEXT = 46, 220, "attention weight,\nfrom row to column"
NARROWEST = 360  # room for the legend
# Up to so many maps: the largest cell, and the largest map unless its cells would be too small.
CELLS = ((1, 26, 900), (4, 16, 450), (12, 12, 300), (10**9, 9, 190))
PIXELS = 20_000_000  # of all maps together in SVG and PDF


@dataclass(frozen=True)
class _Grid:
    """The measures of small multiples."""

    cell: int
    side: int  # of a map
    label: float  # size of the tokens' text; 0 without
    room: int  # for the tokens, left and above
    columns: int
    rows: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the figure."""
        width = self.room + self.columns * (self.side + GAP) - GAP
        height = self.room + self.rows * (self.side + GAP + TITLE) - GAP + LEGEND
        return max(width + 2 * MARGIN, NARROWEST), height + 2 * MARGIN

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Return where a map begins: from the left, and from the top."""
        x = MARGIN + self.room + column * (self.side + GAP)
        return x, MARGIN + self.room + TITLE + row * (self.side + GAP + TITLE)


def _measure(maps: AttentionMaps) -> _Grid:
    length, count = len(maps.tokens), maps.count
    largest, room = next(sizes for most, *sizes in CELLS if count <= most)
    cell = max(2, min(largest, room // length))
    label = min(13.0, cell * 0.82) if cell >= 8 else 0.0
    longest = max(_width(token, label) for token in maps.tokens) if label else 0.0
    heads = {len(layer) for layer in maps.maps.values()}
    square = len(maps.maps) > 1 and len(heads) == 1
    across = count if count <= 3 else round((count * 1.4) ** 0.5)  # wider than high
    columns = max(heads) if square else min(across, count)
    space = ceil(longest) + LABEL_GAP + 8 if label else LABEL_GAP
    return _Grid(cell, cell * length, label, space, columns, ceil(count / columns))


def _width(text: str, size: float) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    return float(text_to_path.get_text_width_height_descent(printable(text), font, False)[0])


def _figure(maps: AttentionMaps) -> Figure:
    from matplotlib.figure import Figure

    grid = _measure(maps)
    width, height = grid.size
    figure = Figure(figsize=(width / INCH, height / INCH), dpi=INCH)
    panels = [(layer, head, m) for layer, heads in maps.maps.items() for head, m in heads.items()]
    for number, (layer, head, weights) in enumerate(panels):
        row, column = divmod(number, grid.columns)
        axes = _axes(figure, *grid.place(row, column), grid.side, grid.side)
        _draw_map(axes, weights, min(2 * grid.cell, _sharpness(maps)))
        _mark_sentences(axes, maps.sentences, grid.cell)
        if grid.label and column == 0:
            _write_tokens(axes, "y", maps, grid.label)
        if grid.label and row == 0:
            _write_tokens(axes, "x", maps, grid.label)
        axes.set_title(
            f"layer {layer} · {'mean of heads' if head == MEAN else f'head {head}'}",
            {"fontsize": 11 * POINT, "color": INK},
            loc="left",
            y=1.0,
            pad=(grid.room if row == 0 else LABEL_GAP) * POINT,
        )
    _draw_legend(figure)
    return figure


def _axes(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Add axes at (x, y) from the top left, without lines and ticks."""
    whole, high = figure.get_size_inches() * INCH
    axes = figure.add_axes((x / whole, 1 - (y + height) / high, width / whole, height / high))
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
    axes.tick_params(length=0)
    return axes


def _sharpness(maps: AttentionMaps) -> int:
    """Return how many pixels wide a cell may be in a file of lines and texts.

    One would do, but some viewers blur small images when they enlarge them.
    """
    return max(1, int((PIXELS / (maps.count * len(maps.tokens) ** 2)) ** 0.5))


def _draw_map(axes: Axes, weights: Any, times: int) -> None:
    cells = shades(weights).repeat(times, axis=0).repeat(times, axis=1)
    length = len(weights)
    axes.imshow(cells, interpolation="none", aspect="auto", extent=(0, length, length, 0))


def _mark_sentences(axes: Axes, sentences: Sequence[int], cell: int) -> None:
    """Draw coloured strips left of and above a map, one for each sentence."""
    from matplotlib.patches import Rectangle

    near, wide, gap = 5 / cell, 3 / cell, 1 / cell
    for which in sorted(set(sentences)):
        start, count = sentences.index(which), sentences.count(which)
        long = count - (gap if start + count < len(sentences) else 0)
        for corner, width, height in (((-near, start), wide, long), ((start, -near), long, wide)):
            strip = Rectangle(corner, width, height, color=SENTENCES[which % 2], linewidth=0)
            axes.add_patch(strip).set_clip_on(False)


def _write_tokens(axes: Axes, side: Literal["x", "y"], maps: AttentionMaps, size: float) -> None:
    """Write the tokens left of a map (side y), or upright above it (side x)."""
    axis = axes.yaxis if side == "y" else axes.xaxis
    axis.set_ticks([at + 0.5 for at in range(len(maps.tokens))])
    axis.set_ticklabels([printable(token) for token in maps.tokens], fontsize=size * POINT)
    axes.tick_params(side, pad=LABEL_GAP * POINT)
    if side == "x":
        axes.xaxis.tick_top()
    for at, label in enumerate(axis.get_ticklabels()):
        label.set_color(FAINT if maps.special[at] else SENTENCES[maps.sentences[at] % 2])
        if side == "x":
            label.set(rotation=90, rotation_mode="anchor", ha="left", va="center")


def _draw_legend(figure: Figure) -> None:
    """Draw the scale below the maps: colours go by the square root of the weight."""
    import numpy

    _, high = figure.get_size_inches() * INCH
    axes = _axes(figure, MARGIN + 3, high - MARGIN - LEGEND + 18, LEGEND_WIDTH, 9)
    scale = numpy.linspace(0, 1, LEGEND_WIDTH)[None] ** 2
    axes.imshow(shades(scale), interpolation="none", aspect="auto", extent=(0, 1, 0, 1))
    labels: dict[str, Any] = {"fontsize": 9 * POINT, "color": INK}
    axes.set_xticks([tick**0.5 for tick in TICKS], [f"{tick:g}" for tick in TICKS], **labels)
    axes.tick_params(pad=4)
    axes.annotate(LEGEND_TEXT, (1, 1), (9, 2), textcoords="offset points", va="top", **labels)
