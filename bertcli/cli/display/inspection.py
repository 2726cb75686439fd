"""What `bertcli inspect` shows; the same without colours in a pipe."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal as size
from rich.json import JSON
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bertcli.cli.display.tables import drawing, facts, plain, rows_table, shortened
from bertcli.errors import counted
from bertcli.families.registry import BERT
from bertcli.files.printable import printable
from bertcli.inspection import FileReport, FolderReport, tokenizer_details
from bertcli.inspection.attention import AttentionMaps
from bertcli.inspection.drawing import hexadecimal, readable_on, shades
from bertcli.inspection.folder import StaticReport
from bertcli.inspection.verify import VerifyCheck
from bertcli.tasks.head import command_of, is_pooled_head

if TYPE_CHECKING:
    from bertcli.embedding.options import Sentence
    from bertcli.inspection.folder import Node
    from bertcli.models.config import BertConfig


USES = {  # by command
    "": "vectors of texts",
    "fill-mask": "predicts words at [MASK]",
    "next-sentence": "scores whether one sentence follows another",
    "classify": "classifies texts",
    "tag": "tags words",
    "answer": "finds answers in contexts",
    "choose": "chooses continuations",
}
LABELLED, SHORT = ("classify", "tag"), 300  # commands with labels; characters of a value
USUAL = ("Transformer", "StaticEmbedding", "Pooling", "Normalize")  # modules
WIDE = 1000  # characters of a line that a terminal wraps and Rich would cut
NAMES = 12  # characters, at least, of the names beside facts
COLOURED = 100_000  # characters of a config up to which it has colours, which take time
SIGNS = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("--", "dim")}


def show_model(
    report: FolderReport | StaticReport, views: Collection[str], verified: Iterable[VerifyCheck]
) -> bool:
    """Show these views of a model or a table, and return whether all requested checks passed."""
    with drawing() as screen:
        if not views:
            summary(screen, report)
        if "config" in views:
            config(screen, report)
        if "tokenizer" in views:
            place = report.bert if isinstance(report, FolderReport) else report.folder.path
            tokenizer(screen, tokenizer_details(place))
        if "tensors" in views:
            tensors(screen, report.tensor_rows)
        if "tree" in views and isinstance(report, FolderReport):
            tree(screen, report.tree())
        return "verify" not in views or checks(screen, verified)


def summary(screen: Console, report: FolderReport | StaticReport) -> None:
    """Show a model on one screen: which it is, where, and the facts."""
    folder = report.folder
    screen.print(plain(folder.name, "bold"))
    screen.print(plain(f"{folder.path} ({folder.source})", "dim"), soft_wrap=True)
    screen.print()
    rows = _static_facts(report) if isinstance(report, StaticReport) else _facts(report)
    screen.print(facts(rows, width=NAMES))
    warnings(screen, report.warnings)


def warnings(screen: Console, messages: Iterable[str]) -> None:
    """Show the warnings."""
    for warning in messages:
        screen.print(facts([(Text("warning", "yellow"), plain(warning, "yellow"))], width=NAMES))


def _facts(report: FolderReport) -> Iterator[tuple[str, Any]]:
    config, stored_heads = report.config, report.comparison.heads
    command = "classify" if is_pooled_head(report.folder.path) else command_of(report.folder)
    labels = ", ".join(config.id2label.values()) if command in LABELLED else ""
    yield "use", shortened(f"{USES[command]}: {labels}" if labels else USES[command], SHORT)
    yield "", f"bertcli {command or 'embed'} -m {report.folder.name}"
    heads, sets = config.num_attention_heads, config.distinct_layers
    shared = f" with {sets} sets of weights" if sets < config.depth else ""
    kind = "decoder" if config.is_decoder else "encoder"
    name = config.family.their_class(report.architecture)
    family = "" if config.family is BERT else f"{config.family.title} "
    yield ("architecture", Text.assemble((printable(name), "bold"), f", {family}{kind}"))
    yield (
        "",
        (
            f"{counted(config.depth, 'layer')}{shared}, {counted(heads, 'head')} of "
            f"{config.head_size}, "
            f"hidden {config.hidden_size}, feed-forward {config.intermediate_size} "
            f"({config.hidden_act})"
        ),
    )
    yield "", f"{config.most_tokens} positions ({_positions(config)}), {_types(report)}"
    if stored_heads or report.tensors:
        yield "heads", ", ".join(stored_heads) or "none"
    counts = report.parameters
    without = f"  BERT without pooler: {counts['without_pooler']:,}"
    yield "parameters", Text.assemble((f"{counts['total']:,}", "bold"), without)
    shares = {part: number / counts["total"] for part, number in counts["parts"].items()}
    yield "", ", ".join(f"{part} {share:.1%}" for part, share in shares.items())
    yield "weights", _weights(report)
    yield from tokenizer_facts(report.tokenizer)
    yield from sentence_facts(report.sentence, report.option)


def _positions(config: BertConfig) -> str:
    structure = config.structure
    kinds = {
        config.position_embedding_type: structure.absolute_positions,
        "rotary": structure.rotary,
        "disentangled": structure.disentangled,
        "bucketed": structure.buckets,
    }
    return " and ".join(filter(kinds.get, kinds)) or "none"


def _types(report: FolderReport) -> str:
    extra = "".join(f", {n} {name}" for name, n in report.config.extra_embeddings.items())
    types = report.config.type_vocab_size if report.config.structure.token_types else "no"
    return f"{types} token types{extra}"


def _weights(report: FolderReport) -> str:
    weights, dtypes = report.weights, report.comparison.dtypes
    if weights.format == "none":
        return "none"
    files = weights.files[0].name
    if len(weights.files) > 1:
        files += f" and {len(weights.files) - 1} more"
    kinds = ", ".join(sorted(dtypes, key=lambda dtype: -dtypes[dtype]))
    total = size(sum(path.stat().st_size for path in weights.files))
    tensors = counted(len(report.tensors), "tensor")
    return f"{files}, {total}, {tensors}{', ' if kinds else ''}{kinds}"


def tokenizer_facts(info: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Yield what a tokenizer is, with names."""
    if info is None:
        yield "tokenizer", "none"
        return
    case = {True: ", lower-cases", False: ", keeps case", None: ""}[info["lower_case"]]
    limit = f", at most {info['limit']} tokens" if info["limit"] else ""
    yield "tokenizer", f"{info['vocabulary_size']:,} tokens{case}{limit} ({info['file']})"
    yield (
        "",
        Text("  ").join(
            Text.assemble((printable(token), "cyan"), f" {index}")
            for token, index in info["special_tokens"].items()
        ),
    )


def sentence_facts(sentence: Sentence, option: str = "") -> Iterator[tuple[str, str]]:
    """Yield how vectors of texts are made, with names; an option that embed requires instead."""
    if option and not sentence.modules:
        yield "sentences", f"no vectors of texts: {option} is what embed makes"
        return
    if sentence.pooling is None and not sentence.modules:
        yield "sentences", "pooling not specified; embed uses mean"
        return
    pooling = " + ".join(sentence.pooling or ("no",))
    length = f", at most {sentence.max_length} tokens" if sentence.max_length else ""
    yield (
        "sentences",
        f"{pooling} pooling, {'' if sentence.normalize else 'not '}normalised{length}",
    )
    others = [part for part in sentence.modules if part not in USUAL]
    if others:
        yield "", f"also: {', '.join(others)}"
    if sentence.prompts:
        yield "", f"prompts: {', '.join(sentence.prompts)}"


def config(screen: Console, report: FolderReport | StaticReport) -> None:
    """Show the config as JSON."""
    values = report.config
    text = json.dumps(values) if isinstance(values, dict) else values.to_json()
    if len(text) > COLOURED:
        screen.file.write(text)  # all of it is ASCII
    else:
        screen.print(JSON(text), soft_wrap=True)


def tokenizer(screen: Console, details: Mapping[str, Any]) -> None:
    """Show a tokenizer, fact by fact."""
    words = {True: "yes", False: "no", None: "not specified"}
    rows = []
    for name, value in details.items():
        if isinstance(value, dict):
            shown = "  ".join(f"{key} {item}" for key, item in value.items()) or "none"
        elif value is None or isinstance(value, bool):
            shown = words[value]
        else:
            shown = f"{value:,}" if isinstance(value, int) else value
        rows.append((name.replace("_", " "), shown))
    screen.print(facts(rows, width=NAMES))


def tensors(screen: Console, stored: Sequence[Mapping[str, Any]]) -> None:
    """Show tensors, a line each, whatever the width of the screen."""
    drawn = Table.grid("", "", "", "", padding=(0, 2, 0, 0))
    for row in stored:
        nbytes = f"{row['bytes']:>13,} bytes"
        drawn.add_row(row["name"], row["dtype"], by(row["shape"]), nbytes)
    in_full(screen, drawn)
    total = size(sum(row["bytes"] for row in stored))
    screen.print(Text(f"{counted(len(stored), 'tensor')}, {total}", "bold"))


def in_full(screen: Console, drawn: Tree | Table) -> None:
    """Show lines that a terminal wraps, and that Rich would cut."""
    width, screen.width = screen.width, WIDE
    screen.print(drawn)
    screen.width = width


def tree(screen: Console, root: Node) -> None:
    """Show the parts of a model as a tree: name, shapes, and the parameters below."""
    drawn = Tree(_module(root), guide_style="dim")
    _branch(drawn, root)
    in_full(screen, drawn)


def _branch(drawn: Tree, node: Node) -> None:
    for child in node.children:
        _branch(drawn.add(_module(child)), child)


def _module(node: Node) -> Text:
    line = Text(node.name, "bold")
    for name, shape in node.shapes.items():
        line.append(f"  {name} {by(shape)}")
    if node.parameters:
        suffix = " each" if node.times > 1 else ""
        line.append(f"  {node.parameters:,}{suffix}", "dim")
    return line


def checks(screen: Console, verified: Iterable[VerifyCheck]) -> bool:
    """Show each check when it is done, and return whether all passed."""
    sound = True
    for result in verified:
        sign, style = SIGNS[result.ok]
        line = Text.assemble((f"{sign:<6}", style), printable(result.what))
        line.append(f"  {printable(result.detail)}" if result.detail else "", "dim")
        screen.print(line, soft_wrap=True)
        sound = sound and result.ok is not False
    return sound


def by(shape: Iterable[Any]) -> str:
    """Return a shape as 2 x 3."""
    return " x ".join(map(str, shape)) or "scalar"


def _static_facts(report: StaticReport) -> Iterator[tuple[str, Any]]:
    yield "architecture", f"a table of token vectors, as {report.sentence.static} writes it"
    yield "", f"{report.tokens:,} tokens, {report.width} dimensions, no encoder"
    names = ", ".join(f"{tensor.name} {tensor.dtype}" for tensor in report.tensors)
    total = size(sum(path.stat().st_size for path in report.weights.files))
    yield "weights", f"{report.weights.files[0].name}, {total}, {names}"
    yield from tokenizer_facts(report.tokenizer)
    yield from sentence_facts(report.sentence)


ROWS = 20  # arrays that are shown
# What is shown of a fingerprint and its options; --json has all.
MADE_WITH = ("model", "pooling", "max_length", "normalize", "weights")


def show_vectors(report: FileReport, verified: VerifyCheck | None, *, whole: bool) -> None:
    """Show a file of vectors and its check; `whole`: all of its arrays, however many."""
    with drawing() as screen:
        screen.print(plain(str(report.path), "bold"), soft_wrap=True)
        records = [] if report.records is None else [counted(report.records, "record")]
        screen.print(Text(", ".join([report.format, size(report.nbytes), *records]), "dim"))
        if report.fields:
            kinds = ", ".join(f"{name} ({kind})" for name, kind in report.fields.items())
            screen.print(plain(f"fields: {kinds}"))
        screen.print()
        if len(report.arrays) == 1:
            screen.print(facts(_array(report.arrays[0]), width=NAMES))
        elif report.arrays:
            screen.print(_arrays(report.arrays[: None if whole else ROWS]))
        if not whole and len(report.arrays) > ROWS:
            screen.print(Text(f"and {len(report.arrays) - ROWS} more: --tensors shows all", "dim"))
        if report.manifest is not None:
            screen.print(Text("\nmanifest", "bold"))
            screen.print(facts(_manifest_facts(report.manifest), width=NAMES))
        warnings(screen, report.warnings)
        checks(screen, filter(None, [verified]))


def _array(array: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def measures(of: Mapping[str, Any]) -> str:
        names = ("min", "mean", "max")
        return "  ".join(f"{name} {of[name]:.6g}" for name in names if of[name] is not None)

    if array["name"]:
        yield "name", array["name"]
    yield "shape", f"{by(array['shape'])}  {array['dtype']}"
    if array["norm"]:
        yield "norms", f"{measures(array['norm'])}  of {counted(array['vectors'], 'vector')}"
    if array["min"] is not None:
        yield "values", measures(array)
    yield "not finite", f"{array['nan']:,} NaN, {array['inf']:,} infinite"


def _arrays(arrays: Iterable[Mapping[str, Any]]) -> Table:
    rows = []
    for array in arrays:
        norm = array["norm"]
        norms = f"{norm['min']:.4g} .. {norm['max']:.4g}" if norm else ""
        row = {"name": array["name"], "type": array["dtype"], "shape": by(array["shape"])}
        rows.append({**row, "norms": norms, "NaN": array["nan"], "inf": array["inf"]})
    return rows_table(rows)


def _manifest_facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is shown of a manifest: what its vectors were made with, then all else."""
    rest, made = {**manifest}, manifest.get("fingerprint")
    if isinstance(made, dict):
        del rest["fingerprint"]
        options = made.get("options")
        made = made | options if isinstance(options, dict) else made
        rest = {name: made[name] for name in MADE_WITH if name in made} | rest
    for name, value in rest.items():
        if name == "weights" and isinstance(value, dict):
            value = ", ".join(f"{file} {str(digest)[:12]}" for file, digest in value.items())
        if name == "inputs" and isinstance(value, list):
            files = [item for item in value if isinstance(item, dict)]
            digests = [str(file.get("sha256") or "(read once)")[:12] for file in files]
            names = [str(file.get("name")) for file in files]
            value = ", ".join(map(" ".join, zip(names, digests, strict=True)))
        yield name, shortened(value if isinstance(value, str) else json.dumps(value), SHORT)


SENTENCES = ("cyan", "yellow")
LABEL, CELL = 14, 3  # characters of a token beside its row, and of a weight in per cent


def attention_view(screen: Console, maps: AttentionMaps) -> None:
    """Print a map for each layer: that of the only head, or the mean of all that were chosen."""
    labels = [
        plain(token, "dim" if special else SENTENCES[sentence % 2])
        for token, special, sentence in zip(maps.tokens, maps.special, maps.sentences, strict=True)
    ]
    labels = labels[: max(1, (screen.width - LABEL - 2) // CELL)]
    for layer, heads in maps.maps.items():
        count = maps.averaged.get(layer, len(heads))
        which = f"mean of {count} heads" if count > 1 else f"head {next(iter(heads))}"
        title = Text.assemble((f"layer {layer}", "bold"), f" (of 0 to {maps.layers - 1}), {which}")
        screen.print(title.append(": each row looks at the columns", "dim"))
        drawn = Table(box=None, padding=0)
        drawn.add_column(justify="right", max_width=LABEL, no_wrap=True)
        drawn.add_column()
        for label in labels:
            letters = Text("\n".join(label.plain), label.style)
            drawn.add_column(letters, justify="right", vertical="bottom", width=CELL)
        for label, weights in zip(labels, maps.mean[layer].tolist(), strict=False):
            cells = []
            for weight in weights[: len(labels)]:
                back = shades(weight)
                style = Style(color=readable_on(back), bgcolor=hexadecimal(back))
                cells.append(Text(f"{round(100 * weight) or ''}".rjust(CELL), style))
            drawn.add_row(label, Text(" ▏", label.style), *cells)
        screen.print(drawn)
        if len(labels) < len(maps.tokens):
            note = f"the first {len(labels)} of {len(maps.tokens)} tokens"
            screen.print(Text(f"{note}: -o attention.html shows all", "dim"))
