"""The attention maps of texts, with their labels: as numbers, as a page, and drawn.

`look` runs the model, which needs torch. `picture` makes the contents of a file. html is a page to
explore it, one self-contained file that makes no request: page.html, filled with page.css, page.js
and the data; a rule in it forbids every request. svg, png and pdf are drawn with matplotlib: one
map, or many, layers below each other and heads side by side, with tokens at the outer maps only.
Lengths there are pixels at 96 to the inch; every cell is a whole number of them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import model_files
from bertcli.errors import InputError, ModelError, OutputError, UsageError
from bertcli.files.paths import refuse_inputs
from bertcli.files.printable import printable
from bertcli.files.versions import require_torch
from bertcli.files.writers import open_output
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
    require_matplotlib,
    shades,
    without_glyph,
)
from bertcli.inspection.folder import FolderReport
from bertcli.models.config import BertConfig
from bertcli.records.records import Record
from bertcli.tokenizing.columns import EXTRA, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

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
        from bertcli.files.jsonl import json_of
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

        names = {head for heads in self.maps.values() for head in heads}
        heads_of = dict(sorted((-1 if name == MEAN else int(name), name) for name in names))
        length = len(self.tokens)
        gone = np.full((length, length), np.nan, np.float32)
        whole = [
            [heads.get(name, gone) for name in heads_of.values()] for heads in self.maps.values()
        ]
        return {
            "attention": np.array(whole, np.float32).reshape(len(whole), -1, length, length),
            "layers": np.array([*self.maps], np.int64),
            "heads": np.array([*heads_of], np.int64),
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
        figure, box = _figure(maps)
        return encode(figure, form, f"Attention of {maps.model}", box)


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
        "light": [*map(hexadecimal, ramp())],
        "dark": [*map(hexadecimal, ramp(dark=True))],
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


# --- drawn with matplotlib ---

INCH, POINT = 96, 0.75  # pixels to the inch; points to the pixel
LARGEST_CELL, SMALLEST_LABELLED = 26, 8
WIDTH = 1200  # of all maps together, if their cells are not too small or too large for it
GAP, TITLE_GAP = 14, 36  # between maps side by side, and below each other
LABEL_GAP = 8  # between a map and its tokens, with the strip of the sentence inside
LEGEND, LEGEND_WIDTH, LEGEND_HEIGHT = 40, 220, 9
LEGEND_TEXT = "attention weight,\nfrom row to column"
IMAGE = 400  # pixels of the image of a map: some viewers blur smaller ones


def _figure(maps: AttentionMaps) -> tuple[Figure, Bbox]:
    """Draw the maps of a layer side by side, or of one layer four in a row; return their box too.

    The figure is what the maps cover: titles, tokens and the legend are around it, in the box.
    """
    import numpy
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    length, heads = len(maps.tokens), max(map(len, maps.maps.values()))
    columns = heads if len(maps.maps) > 1 else min(heads, 4)
    rows = len(maps.maps) - 1 + ceil(heads / columns)
    cell = max(2, min(LARGEST_CELL, WIDTH // (columns * length)))
    side, repeated = cell * length, max(1, IMAGE // length)
    width, height = columns * (side + GAP) - GAP, rows * (side + TITLE_GAP) - TITLE_GAP
    figure = Figure((width / INCH, height / INCH))
    spaces = {"wspace": GAP / side, "hspace": TITLE_GAP / side}
    grid = figure.add_gridspec(rows, columns, left=0, right=1, bottom=0, top=1, **spaces)
    near, far = 2 / side, 5 / side  # of the strips of sentences
    tokens = [printable(token) for token in maps.tokens]
    colours = [
        FAINT if special else SENTENCES[sentence % 2]
        for special, sentence in zip(maps.special, maps.sentences, strict=True)
    ]
    panels = [
        (first + at // columns, at % columns, f"layer {layer} · {_name(head)}", weights)
        for first, (layer, heads_of_layer) in enumerate(maps.maps.items())
        for at, (head, weights) in enumerate(heads_of_layer.items())
    ]
    for row, column, title, weights in panels:
        axes = figure.add_subplot(grid[row, column])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, pad=LABEL_GAP * POINT, labeltop=True, labelbottom=False)
        image = shades(weights).repeat(repeated, 0).repeat(repeated, 1)
        axes.imshow(image, interpolation="none", extent=(0, length, length, 0))
        labelled = numpy.arange(length if cell >= SMALLEST_LABELLED else 0) + 0.5
        font = min(13, cell * 0.82) * POINT
        at_left, above = labelled[: 0 if column else None], labelled[: 0 if row else None]
        axes.set_yticks(at_left, tokens[: len(at_left)], fontsize=font)
        axes.set_xticks(above, tokens[: len(above)], fontsize=font, rotation=90)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            for label, colour in zip(labels, colours, strict=False):
                label.set_color(colour)
        for sentence in sorted(set(maps.sentences)):
            start = maps.sentences.index(sentence)
            end = start + maps.sentences.count(sentence)
            gap = 1 / cell if end < length else 0  # between sentences
            strip = {"color": SENTENCES[sentence % 2], "linewidth": 0, "clip_on": False}
            axes.axvspan(start, end - gap, 1 + near, 1 + far, **strip)
            axes.axhspan(start, end - gap, -far, -near, **strip)
        axes.set_title(title, fontsize=11 * POINT, color=INK, loc="left", pad=LABEL_GAP * POINT)
    place = (0, -LEGEND / height, LEGEND_WIDTH / width, LEGEND_HEIGHT / height)
    axes = figure.add_axes(place, frameon=False, yticks=[])
    axes.imshow(ramp()[None], interpolation="none", aspect="auto", extent=(0, 1, 0, 1))
    text: dict[str, Any] = {"fontsize": 9 * POINT, "color": INK}
    axes.set_xticks([tick**0.5 for tick in TICKS], [f"{tick:g}" for tick in TICKS], **text)
    axes.tick_params(length=0)
    axes.annotate(LEGEND_TEXT, (1, 1), (9, 2), textcoords="offset points", va="top", **text)
    box = figure.get_tightbbox().padded(GAP / INCH)
    return figure, Bbox(numpy.round(box.get_points() * INCH) / INCH)  # whole pixels: sharp edges


def _name(head: int | str) -> str:
    return "mean of heads" if head == MEAN else f"head {head}"


COLUMNS = ("input_ids", "token_type_ids", "tokens")


@dataclass(frozen=True)
class AttentionChoice:
    """Which maps are wanted; None is all. Negative numbers count from the end."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    mean: bool = False  # of all heads, in place of each

    def of(self, config: BertConfig) -> dict[int, dict[int, int]]:
        """Return layer -> head, as numbered before pruning -> its place among those left.

        UsageError for one not found.
        """
        if not config.depth:
            raise ModelError("this model has no layers, so no attention")
        heads = _resolved(self.heads, config.num_attention_heads, "head")
        chosen = {}
        for layer in _resolved(self.layers, config.depth, "layer"):
            pruned = config.pruned_heads.get(layer, ())
            if lost := sorted({*pruned} & {*(self.heads or ())}):
                raise UsageError(f"head {lost[0]} of layer {layer} was pruned (--heads)")
            left = [head for head in range(config.num_attention_heads) if head not in pruned]
            chosen[layer] = {head: at for at, head in enumerate(left) if head in heads}
        return chosen


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse, before anything is computed, what could not be written then."""
    if path.exists() and not overwrite:
        raise OutputError(f"{path}: already exists", "give --overwrite, or another name")
    form = path.suffix.lower()[1:]
    if form in DRAWN:
        require_matplotlib(f"{path}: drawing .{form}")


def write_maps(
    path: Path, texts: Sequence[AttentionMaps], report: FolderReport, *, overwrite: bool
) -> str:
    """Write the maps, and return a warning about what the format cannot show, or ""."""
    refuse_inputs(model_files(report.folder.path), [path])
    form = path.suffix.lower()[1:]
    content = picture(texts, form)
    with open_output(path, overwrite=overwrite) as output:
        output.write(content)
    tokens = "".join(token for maps in texts for token in maps.tokens)
    boxes = without_glyph(tokens) if form in ("png", "pdf") else ()
    if not boxes:
        return ""
    first = " ".join(sorted(boxes)[:10])
    return f"{form.upper()} draws these characters as boxes: {first}; SVG and HTML have them all"


def numbers(text: str | None, option: str) -> list[int] | None:
    """Read 0,5 or -1 or all, which is None."""
    if text is None or text.strip() == "all":
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{option} cannot be {text!r}", "numbers such as 0,5 or -1, or all"
        ) from None


def look(
    report: FolderReport, records: Sequence[Record], choice: AttentionChoice
) -> list[tuple[AttentionMaps, int]]:
    """Run the model over texts; return the chosen maps and how many tokens were truncated of each.

    ModelError when the folder cannot be loaded, UsageError for layers or heads that do not exist.
    """
    heads_of = choice.of(report.config)
    require_torch("--attention")

    from bertcli.checkpoints.load import load
    from bertcli.inference.runner import ModelSpec
    from bertcli.inference.runtime import open_tokenizer, refuse_pairs
    from bertcli.models.bert import BertModel
    from bertcli.models.forward_passes import attention_maps

    tokenizer = open_tokenizer(ModelSpec(report.bert, extra=True))
    model, _ = load(report.bert, BertModel, pooler=False)
    config, length = report.config, report.config.most_tokens
    if config.position_embedding_type == "sinusoidal":
        length = tokenizer.limit or length
    extra = ExtraColumns.of(config)
    layout = Layout((*COLUMNS, *extra.needed), max_length=length, truncation="longest_first")
    frame = {tokenizer.roles[role] for role in ("cls_token", "sep_token", "pad_token")}
    quiet = {index for token, index in tokenizer.special_ids().items() if token in frame}
    results = []
    for record in records:
        (encoded,) = extra.added(tokenizer.encode_records([record], layout), tokenizer)
        refuse_pairs([encoded], config)
        if not encoded.length:
            raise InputError("the text has no tokens")
        columns = encoded.columns
        ids, types = columns["input_ids"], columns["token_type_ids"]
        beside = {name: columns[EXTRA + name] for name in config.extra_embeddings}
        recorded = attention_maps(model, ids, types, max(heads_of) + 1, beside)
        maps: dict[int, dict[int | str, Any]] = {
            layer: {MEAN: recorded[layer].mean(axis=0)}
            if choice.mean
            else {head: recorded[layer][at] for head, at in heads.items()}
            for layer, heads in heads_of.items()
        }
        attention = AttentionMaps(
            model=report.folder.name,
            tokens=columns["tokens"],
            sentences=types,
            special=[index in quiet for index in ids],
            maps=maps,
            layers=config.depth,
            averaged={layer: config.heads(layer) for layer in heads_of} if choice.mean else {},
        )
        results.append((attention, encoded.cut))
    return results


def _resolved(chosen: Sequence[int] | None, count: int, kind: str) -> list[int]:
    if chosen is None:
        return list(range(count))
    for number in chosen:
        if not -count <= number < count:
            raise UsageError(
                f"{kind} {number} not found (--{kind}s)", f"{kind}s are 0 to {count - 1}"
            )
    return sorted({number % count for number in chosen})
