"""Attention maps of texts: as numbers, as an interactive page, and as pictures.

`record_attention` runs the model, which needs torch. `encode_maps` returns the contents of a file.
html is one self-contained file, whose content security policy forbids requests: page.html with
attention.html, page.css, attention.css, attention.js and the data. svg, png and pdf are drawn by
matplotlib, with layers below each other and heads side by side.
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

from bertcli.embedding.options import parse_layers
from bertcli.errors import BertcliError, InputError, ModelError, UsageError, option
from bertcli.formats.tables import to_compact_json
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

FIGURE_FORMATS = ("svg", "png", "pdf")  # which need matplotlib
FILE_FORMATS = ("html", *FIGURE_FORMATS, "json", "npz")
SCALE = 10_000  # a page has weights as integers from 0 to this
MEAN = -1  # the key of the mean over all heads; "mean" in JSON


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights: `maps[layer][head]` is a numpy array [L, L], rows sum to 1.

    Row i has the weights from token i to each token. Layers and heads count from 0, as in the names
    of tensors; pruned heads are absent. The head MEAN is the mean over all heads.
    """

    model: str
    tokens: Sequence[str]
    sentences: Sequence[int]  # per token: 0 for the text, 1 for its pair
    special: Sequence[bool]  # per token: True for [CLS], [SEP] and [PAD]
    maps: Mapping[int, Mapping[int, Any]]
    layers: int  # number of layers of the model

    @property
    def count(self) -> int:
        """The number of maps."""
        return sum(map(len, self.maps.values()))

    def to_json(self) -> dict[str, Any]:
        """Return tokens and maps as JSON values; weights have the fewest digits that are exact."""
        from bertcli.formats.jsonl import json_of
        from bertcli.io.typed_json import parse

        return self._json(lambda weights: parse(next(json_of([weights]))))

    def rounded(self) -> dict[str, Any]:
        """Return the same with weights as integers from 0 to `scale`, for a page."""
        values = self._json(lambda weights: (weights * SCALE).round().astype(int).tolist())
        values["scale"] = SCALE
        return values

    def arrays(self) -> dict[str, Any]:
        """Return exact arrays: `attention` [layers, heads, L, L], and the labels of its axes.

        A head that is pruned in a layer is NaN there; the head -1 is the mean.
        """
        import numpy as np

        heads: set[int] = set()
        for layer_maps in self.maps.values():
            heads.update(layer_maps)
        length = len(self.tokens)
        pruned = np.full((length, length), np.nan, np.float32)
        attention = [
            [layer_maps.get(head, pruned) for head in sorted(heads)]
            for layer_maps in self.maps.values()
        ]
        return {
            "attention": np.array(attention, np.float32),
            "layers": np.array(list(self.maps), np.int64),
            "heads": np.array(sorted(heads), np.int64),
            "tokens": np.array(self.tokens, np.str_),
            "sentences": np.array(self.sentences, np.int64),
            "special": np.array(self.special, np.bool_),
        }

    def _json(self, convert: Callable[[Any], Any]) -> dict[str, Any]:
        """Return tokens and maps as JSON values; `convert` is applied to each map."""
        layers = []
        for layer, maps in self.maps.items():
            heads = []
            for head, weights in maps.items():
                label = "mean" if head == MEAN else head
                heads.append({"head": label, "weights": convert(weights)})
            layers.append({"layer": layer, "heads": heads})
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "sentences": list(self.sentences),
            "special": list(map(int, self.special)),
            "layers": layers,
        }


def encode_maps(texts: Sequence[AttentionMaps], file_format: str) -> bytes:
    """Return the contents of a file: html, json and npz of any texts, svg, png and pdf of one.

    For several texts, json is a list, and the names of arrays in npz end with the number of the
    text: attention_0, tokens_0, attention_1.
    """
    match file_format:
        case "html":
            rows = [maps.rounded() for maps in texts]
            content = {"texts": rows, "modelLayers": texts[0].layers}
            return html_page("attention", "Attention", texts[0].model, content)
        case "json":
            rows = [maps.to_json() for maps in texts]
            text = json.dumps(rows if len(rows) > 1 else rows[0], ensure_ascii=False)
            return text.encode("utf-8", "replace") + b"\n"
        case "npz":
            return _encode_npz(texts)
    (maps,) = texts
    with figure_settings():
        return encode_figure(_figure(maps), file_format, f"Attention of {maps.model}")


def _encode_npz(texts: Sequence[AttentionMaps]) -> bytes:
    import numpy as np

    arrays = {}
    for number, maps in enumerate(texts):
        suffix = f"_{number}" if len(texts) > 1 else ""
        for name, array in maps.arrays().items():
            arrays[name + suffix] = array
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def html_page(name: str, heading: str, title: str, content: Any) -> bytes:
    """Return the page `name` ("attention" or "map") with the content that its script reads."""
    from html import escape
    from importlib.resources import files
    from string import Template

    data = to_compact_json(content)
    # Texts must not end the script element.
    for character in "<\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")

    def read(file_name: str) -> str:
        return (files("bertcli.inspection") / file_name).read_text(encoding="utf-8")

    page = Template(read("page.html")).substitute(
        name=name.capitalize(),
        heading=escape(heading),
        title=escape(title),
        style=read("page.css") + read(f"{name}.css"),
        body=read(f"{name}.html"),
        script=read(f"{name}.js"),
        data=data,
    )
    return page.encode("utf-8", "replace")


# --- pictures, drawn by matplotlib without a display ---
# Functions import matplotlib when they draw, because it is an extra: `plots`.

DOTS_PER_INCH = 192  # of a PNG
TITLE_COLOR = "#1c2430"
SPECIAL_COLOR = "#8b95a3"  # of special tokens
SENTENCE_COLORS = ("#0e7c86", "#c2570c")  # of the tokens of a text, and of its pair
SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 8.25,  # points
    "text.parse_math": False,  # a $ in a token is a dollar
    "savefig.bbox": "tight",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "bertcli",  # deterministic ids
    "pdf.fonttype": 42,  # TrueType, so that text can be copied
}


def require_matplotlib(purpose: str) -> None:
    """Import matplotlib. Raises BertcliError, with the purpose, if that fails."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # not its notes on the font cache
    try:
        import matplotlib.figure  # noqa: F401
    except (ImportError, OSError, RuntimeError, ValueError) as error:  # MPLBACKEND=nonsense
        message = f"{purpose} needs matplotlib: {error}"
        raise BertcliError(message, install_command("plots")) from None


@contextmanager
def figure_settings() -> Iterator[None]:
    """Use our settings of matplotlib; restore those of the user afterwards."""
    import matplotlib.style

    with matplotlib.style.context(["default", SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def encode_figure(figure: Figure, file_format: str, title: str) -> bytes:
    """Return the contents of a file with the figure, without the date."""
    metadata: dict[str, dict[str, Any]] = {
        "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")) | {"Title": printable(title)},
        "png": {"Software": None},
        "pdf": dict.fromkeys(("Creator", "CreationDate", "Producer")) | {"Title": printable(title)},
    }
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, dpi=DOTS_PER_INCH, metadata=metadata[file_format])
    return buffer.getvalue()


LEGEND = "attention weight, from row to column"
# Inches:
MAX_SIDE = 2.5  # of a map
TOKEN_SIDE = 0.2


def _figure(maps: AttentionMaps) -> Figure:
    """Draw the maps: heads side by side, layers below each other; one layer in rows of four."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    count = maps.count
    length = len(maps.tokens)
    heads = max(map(len, maps.maps.values()))
    columns = heads if len(maps.maps) > 1 else min(4, count)
    rows = ceil(count / columns)
    side = min(MAX_SIDE, TOKEN_SIDE * length)
    font_size = 50 * side / length  # points, so that lines of labels touch
    figure = Figure((columns * (side + 1), rows * (side + 1)))
    grid = figure.subplots(rows, columns, squeeze=False)
    colours = [
        SPECIAL_COLOR if special else SENTENCE_COLORS[sentence % 2]
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
        axes.set_title(title, color=TITLE_COLOR)
        axes.set_xticks(range(length), tokens, fontsize=font_size, rotation=90)
        axes.set_yticks(range(length), tokens, fontsize=font_size)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            for label, colour in zip(labels, colours, strict=True):
                label.set_color(colour)
        axes.label_outer()
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    figure.colorbar(image, ax=grid, aspect=40, fraction=0.02, label=LEGEND)
    return figure


def head_name(head: int) -> str:
    """Return the title of a head."""
    return "mean of all heads" if head == MEAN else f"head {head}"


TOKEN_COLUMNS = ("input_ids", "token_type_ids", "tokens")
Selection: TypeAlias = Sequence[int] | None  # of layers or heads; None: all, -1: the last


def _select_heads(
    config: BertConfig, layers: Selection, heads: Selection
) -> dict[int, dict[int, int]]:
    """Return the selected heads: layer -> head, numbered as before pruning -> its index now.

    Raises UsageError for a layer or head that does not exist.
    """
    if not config.num_hidden_layers:
        raise ModelError("this model has no layers, so no attention")
    selected_heads = _resolve_numbers(heads, config.num_attention_heads, "head")
    selected = {}
    for layer in _resolve_numbers(layers, config.num_hidden_layers, "layer"):
        pruned = config.pruned_heads.get(layer, ())
        requested_and_pruned = sorted(set(pruned) & set(heads or ()))
        if requested_and_pruned:
            head = requested_and_pruned[0]
            raise UsageError(f"head {head} of layer {layer} was pruned ({option('heads')})")
        present = [head for head in range(config.num_attention_heads) if head not in pruned]
        selected[layer] = {
            head: index for index, head in enumerate(present) if head in selected_heads
        }
    return selected


def write_maps(
    path: Path, texts: Sequence[AttentionMaps], report: FolderReport, *, overwrite: bool
) -> None:
    """Write the maps to a file, in the format of its suffix."""
    refuse_inputs(report.folder.model_files, [path])
    content = encode_maps(texts, path.suffix.lower()[1:])
    write_file(path, content, overwrite=overwrite)


def parse_selection(text: str | None, name: str) -> Selection:
    """Parse numbers of layers or heads, such as "0,5" and "-1"; "all" is None."""
    return None if text in (None, "all") else parse_layers(text, name)


def record_attention(
    report: FolderReport,
    records: Sequence[Record],
    layers: Selection = None,
    heads: Selection = None,
    mean: bool = False,
) -> list[tuple[AttentionMaps, int]]:
    """Run the model; return the maps and the number of dropped tokens of each record.

    With ``mean``, a layer has one map, the mean over its heads. Raises ModelError if the model
    cannot be loaded, UsageError for layers or heads that do not exist.
    """
    selected = _select_heads(report.config, layers, heads)
    require_torch(option("attention"))

    from bertcli.engines.runtime import open_tokenizer, refuse_pairs
    from bertcli.model_folder.load import load
    from bertcli.models.bert import BertModel
    from bertcli.models.forward_passes import attention_maps

    tokenizer = open_tokenizer(report.bert, reads_extra_ids=True)
    model, _ = load(report.bert, BertModel, pooler=False)
    config = report.config
    extra = ExtraColumns(config.fields_of_extra, config.extra_embeddings)
    layout = Layout(
        (*TOKEN_COLUMNS, *extra.needed_columns),
        max_length=config.most_tokens,
        truncation="longest_first",
    )
    special_tokens = {tokenizer.roles[role] for role in ("cls_token", "sep_token", "pad_token")}
    results = []
    for record in records:
        (encoded,) = extra.add_to(tokenizer.encode_records([record], layout), tokenizer)
        refuse_pairs([encoded], config)
        if not encoded.length:
            raise InputError("the text has no tokens")
        columns = encoded.columns
        ids, types, tokens = (columns[name] for name in TOKEN_COLUMNS)
        extra_ids = {name: columns[EXTRA + name] for name in config.extra_embeddings}
        recorded = attention_maps(model, ids, types, max(selected) + 1, extra_ids)
        maps: dict[int, dict[int, Any]] = {}
        for layer, heads_of_layer in selected.items():
            if mean:
                maps[layer] = {MEAN: recorded[layer].mean(axis=0)}
            else:
                maps[layer] = {
                    head: recorded[layer][index] for head, index in heads_of_layer.items()
                }
        attention = AttentionMaps(
            model=report.folder.name,
            tokens=tokens,
            sentences=types,
            special=[token in special_tokens for token in tokens],
            maps=maps,
            layers=config.num_hidden_layers,
        )
        results.append((attention, encoded.dropped_tokens))
    return results


def _resolve_numbers(selection: Selection, count: int, noun: str) -> list[int]:
    """Return the selected numbers of layers or heads, from 0 to count - 1, ascending.

    Raises UsageError for a number outside -count to count - 1.
    """
    if selection is None:
        return list(range(count))
    for number in selection:
        if not -count <= number < count:
            raise UsageError(
                f"{noun} {number} not found (--{noun}s)", f"{noun}s are 0 to {count - 1}"
            )
    return sorted({number % count for number in selection})
