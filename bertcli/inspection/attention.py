"""The attention maps of texts, with their labels: as numbers, as a page, and drawn.

`look` runs the model, which needs torch. `picture` makes the contents of a file. html is a page to
explore it, one self-contained file that makes no request, as a rule in it forbids every request:
page.html, filled with attention.html, its style behind that of all pages (page.css), its script and
the data. svg, png and pdf are drawn with matplotlib: one map, or many, layers below each other and
heads side by side.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bertcli.embedding.options import layers_in
from bertcli.errors import BertcliError, InputError, ModelError, UsageError, option
from bertcli.formats.tables import compact
from bertcli.inspection.folder import FolderReport
from bertcli.io.paths import refuse_inputs
from bertcli.io.printable import printable
from bertcli.models.config import BertConfig
from bertcli.records.record import Record
from bertcli.runs.row_run import write_file
from bertcli.tokenizing.batch import EXTRA, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.versions import install_command, require_torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("svg", "png", "pdf")  # with matplotlib
PICTURES = ("html", *DRAWN, "json", "npz")
SCALE = 10_000  # a page has weights as whole numbers out of this: four decimals
MEAN = -1  # the number of the mean of all heads, which JSON calls "mean"


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
    maps: Mapping[int, Mapping[int, Any]]
    layers: int  # of the model

    @property
    def count(self) -> int:
        """How many maps there are."""
        return sum(map(len, self.maps.values()))

    def to_json(self) -> dict[str, Any]:
        """Return tokens and maps as JSON values, weights in the fewest digits that are exact."""
        from bertcli.formats.jsonl import json_of
        from bertcli.io.typed_json import parse

        return self._json(lambda weights: parse(next(json_of([weights]))))

    def rounded(self) -> dict[str, Any]:
        """Return the same with weights as whole numbers out of `scale`, for a page."""
        maps = self._json(lambda weights: (weights * SCALE).round().astype(int).tolist())
        return {**maps, "scale": SCALE}

    def arrays(self) -> dict[str, Any]:
        """Return exact arrays: `attention` [layers, heads, L, L] and what its axes are.

        A head that was pruned in some of the layers is NaN there; `heads` -1 is the mean.
        """
        import numpy as np

        heads = sorted({head for of_layer in self.maps.values() for head in of_layer})
        length = len(self.tokens)
        gone = np.full((length, length), np.nan, np.float32)
        whole = [[of_layer.get(head, gone) for head in heads] for of_layer in self.maps.values()]
        return {
            "attention": np.array(whole, np.float32),
            "layers": np.array([*self.maps], np.int64),
            "heads": np.array(heads, np.int64),
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
                        {"head": "mean" if head == MEAN else head, "weights": written(weights)}
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
            rows = [maps.rounded() for maps in texts]
            content = {"texts": rows, "modelLayers": texts[0].layers}
            return filled_page("attention", "Attention", texts[0].model, content)
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


def filled_page(name: str, heading: str, title: str, content: Any) -> bytes:
    """Return a page of this name with its content, which is what its script reads."""
    from html import escape
    from importlib.resources import files
    from string import Template

    data = compact(content)
    # Safe inside a script element, whatever the texts are.
    for character in "<\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    page, body, common, style, script = (
        (files("bertcli.inspection") / file).read_text(encoding="utf-8")
        for file in ("page.html", f"{name}.html", "page.css", f"{name}.css", f"{name}.js")
    )
    filled = Template(page).substitute(
        name=name.capitalize(),
        heading=escape(heading),
        title=escape(title),
        style=common + style,
        body=body,
        script=script,
        data=data,
    )
    return filled.encode("utf-8", "replace")


# --- drawn with matplotlib, without a display, the same everywhere ---
# It is imported inside the functions that draw, never earlier: it is the extra `plots`.

DENSITY = 192  # pixels to the inch of a PNG
INK, FAINT = "#1c2430", "#8b95a3"
SENTENCES = ("#0e7c86", "#c2570c")  # of the text, and of its pair
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same text everywhere
    "font.size": 8.25,  # points
    "text.parse_math": False,  # a $ in a token is a dollar
    "savefig.bbox": "tight",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bertcli",  # ids in the file depend on its contents alone
    "pdf.fonttype": 42,  # TrueType, which text can be copied from
}


def require_matplotlib(purpose: str) -> None:
    """Import matplotlib. BertcliError that names the purpose when that fails."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no notes on its cache of fonts
    try:
        import matplotlib.figure  # noqa: F401
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # MPLBACKEND=nonsense
        why = f"{purpose} needs matplotlib: {error}"
        raise BertcliError(why, install_command("plots")) from None


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with our settings; those of the user are restored afterwards."""
    import matplotlib.style

    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def encode(figure: Figure, form: str, title: str) -> bytes:
    """Return the file of a figure, without a date."""
    metadata: dict[str, dict[str, Any]] = {
        "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")) | {"Title": printable(title)},
        "png": {"Software": None},
        "pdf": dict.fromkeys(("Creator", "CreationDate", "Producer")) | {"Title": printable(title)},
    }
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=DENSITY, metadata=metadata[form])
    return buffer.getvalue()


LEGEND = "attention weight, from row to column"
SIDE, WORD = 2.5, 0.2  # inches of a map at most, and of a token


def _figure(maps: AttentionMaps) -> Figure:
    """Draw the maps, heads side by side and layers below each other, or one layer four in a row."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    count, heads = maps.count, max(map(len, maps.maps.values()))
    columns = heads if len(maps.maps) > 1 else min(4, count)
    rows, length = ceil(count / columns), len(maps.tokens)
    side = min(SIDE, WORD * length)
    font = 50 * side / length  # points: the lines of the labels touch
    figure = Figure((columns * (side + 1), rows * (side + 1)))
    grid = figure.subplots(rows, columns, squeeze=False)
    colours = [
        FAINT if special else SENTENCES[sentence % 2]
        for special, sentence in zip(maps.special, maps.sentences, strict=True)
    ]
    tokens = [printable(token) for token in maps.tokens]
    panels = [
        (f"layer {layer} · {head_name(head)}", weights)
        for layer, heads_of_layer in maps.maps.items()
        for head, weights in heads_of_layer.items()
    ]
    for axes, (title, weights) in zip(grid.flat, panels, strict=False):
        image = axes.imshow(weights, "YlGnBu", norm=PowerNorm(0.5, 0, 1), interpolation="none")
        axes.set_title(title, color=INK)
        axes.set_xticks(range(length), tokens, fontsize=font, rotation=90)
        axes.set_yticks(range(length), tokens, fontsize=font)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            for label, colour in zip(labels, colours, strict=True):
                label.set_color(colour)
        axes.label_outer()
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    figure.colorbar(image, ax=grid, aspect=40, fraction=0.02, label=LEGEND)
    return figure


def head_name(head: int) -> str:
    """Return what a head is called beside its map."""
    return "mean of all heads" if head == MEAN else f"head {head}"


COLUMNS = ("input_ids", "token_type_ids", "tokens")
Numbers: TypeAlias = Sequence[int] | None  # of layers or heads; None is all, -1 the last


def _chosen(config: BertConfig, layers: Numbers, heads: Numbers) -> dict[int, dict[int, int]]:
    """Return layer -> head, as numbered before pruning -> its place among those left.

    UsageError for one not found.
    """
    if not config.num_hidden_layers:
        raise ModelError("this model has no layers, so no attention")
    chosen_heads = _resolved(heads, config.num_attention_heads, "head")
    chosen = {}
    for layer in _resolved(layers, config.num_hidden_layers, "layer"):
        pruned = config.pruned_heads.get(layer, ())
        if lost := sorted({*pruned} & {*(heads or ())}):
            raise UsageError(f"head {lost[0]} of layer {layer} was pruned ({option('heads')})")
        left = [head for head in range(config.num_attention_heads) if head not in pruned]
        chosen[layer] = {head: at for at, head in enumerate(left) if head in chosen_heads}
    return chosen


def write_maps(
    path: Path, texts: Sequence[AttentionMaps], report: FolderReport, *, overwrite: bool
) -> None:
    """Write the maps."""
    refuse_inputs(report.folder.model_files, [path])
    content = picture(texts, path.suffix.lower()[1:])
    write_file(path, content, overwrite=overwrite)


def numbers(text: str | None, name: str) -> Numbers:
    """Read 0,5 or -1 or all, which is None."""
    return None if text in (None, "all") else layers_in(text, name)


def look(
    report: FolderReport,
    records: Sequence[Record],
    layers: Numbers = None,
    heads: Numbers = None,
    mean: bool = False,
) -> list[tuple[AttentionMaps, int]]:
    """Run the model over texts; return the chosen maps and how many tokens were truncated of each.

    With ``mean``, a map is that of all heads of a layer, in place of each.
    ModelError when the folder cannot be loaded, UsageError for layers or heads that do not exist.
    """
    heads_of = _chosen(report.config, layers, heads)
    require_torch(option("attention"))

    from bertcli.engines.runtime import open_tokenizer, refuse_pairs
    from bertcli.model_folder.load import load
    from bertcli.models.bert import BertModel
    from bertcli.models.forward_passes import attention_maps

    tokenizer = open_tokenizer(report.bert, extra=True)
    model, _ = load(report.bert, BertModel, pooler=False)
    config = report.config
    extra = ExtraColumns(config.fields_of_extra, config.extra_embeddings)
    columns_needed = (*COLUMNS, *extra.needed)
    layout = Layout(columns_needed, max_length=config.most_tokens, truncation="longest_first")
    frame = {tokenizer.roles[role] for role in ("cls_token", "sep_token", "pad_token")}
    results = []
    for record in records:
        (encoded,) = extra.added(tokenizer.encode_records([record], layout), tokenizer)
        refuse_pairs([encoded], config)
        if not encoded.length:
            raise InputError("the text has no tokens")
        columns = encoded.columns
        ids, types, tokens = (columns[name] for name in COLUMNS)
        beside = {name: columns[EXTRA + name] for name in config.extra_embeddings}
        recorded = attention_maps(model, ids, types, max(heads_of) + 1, beside)
        maps: dict[int, dict[int, Any]] = {
            layer: {MEAN: recorded[layer].mean(axis=0)}
            if mean
            else {head: recorded[layer][at] for head, at in places.items()}
            for layer, places in heads_of.items()
        }
        attention = AttentionMaps(
            model=report.folder.name,
            tokens=tokens,
            sentences=types,
            special=[token in frame for token in tokens],
            maps=maps,
            layers=config.num_hidden_layers,
        )
        results.append((attention, encoded.cut))
    return results


def _resolved(chosen: Numbers, count: int, kind: str) -> list[int]:
    if chosen is None:
        return list(range(count))
    for number in chosen:
        if not -count <= number < count:
            raise UsageError(
                f"{kind} {number} not found (--{kind}s)", f"{kind}s are 0 to {count - 1}"
            )
    return sorted({number % count for number in chosen})
