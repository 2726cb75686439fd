"""The output of `bertcli inspect`, without colours in a pipe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bertcli.cli.display.tables import described, drawing, facts, rows_table, shortened
from bertcli.embedding.options import required_option
from bertcli.inspection import FileReport, FolderReport
from bertcli.inspection.attention import SENTENCE_COLORS, AttentionMaps, head_name
from bertcli.inspection.folder import StaticReport, VerifyCheck, shape_text, tokenizer_details
from bertcli.io.printable import printable
from bertcli.tasks.head import command_of, is_pooled_head
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcli.inspection.folder import Node
    from bertcli.training.instances import Instances, TrainingInstance


SUMMARY_FIELDS = {  # section of a report -> its fields in the summary (--json has all)
    "architecture": ("name", "library"),
    "config": (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "id2label",
    ),
    "fit": ("heads",),
    "table": ("tokens", "dimensions"),
    "parameters": ("total", "without_pooler"),
    "weights": ("files", "bytes", "dtypes", "tensors"),
    "tokenizer": ("file", "vocabulary_size", "lower_case", "limit", "special_tokens"),
    "sentence": ("modules", "pooling", "normalize", "max_length", "prompts"),
}
MANIFEST_FIELDS = (  # manifest fields in the summary (--json has all)
    "model",
    "pooling",
    "layers",
    "normalize",
    "max_length",
    "precision",
    "counts",
    "versions",
)
LONGEST_VALUE = 300  # maximum characters of a value
CHECK_SIGNS = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("--", "dim")}


def show_model(
    report: FolderReport | StaticReport, views: Collection[str], verified: Iterable[VerifyCheck]
) -> bool:
    """Show views of a model or static table. Return False if a requested check failed."""
    values = report.to_json()
    with drawing() as screen:
        if not views:
            summary(screen, report, values)
        if "config" in views:
            screen.print_json(data=values["config"])
        if "tokenizer" in views:
            folder = report.bert if isinstance(report, FolderReport) else report.folder
            details = report.tokenizer or tokenizer_details(Tokenizer.load(folder), folder)
            screen.print(facts(details.items()))
        if "tensors" in views:
            rows = [row | {"shape": shape_text(row["shape"])} for row in report.tensor_rows]
            screen.print(rows_table(rows, f"{len(rows)} tensors"))
        if "tree" in views and isinstance(report, FolderReport):
            screen.print(tree(report.tree()))
        return "verify" not in views or checks(screen, verified)


def summary(
    screen: Console, report: FolderReport | StaticReport, values: Mapping[str, Any]
) -> None:
    """Show the summary of a model: name, path, the command to use it, and the main fields."""
    folder = report.folder
    command = "embed"
    if isinstance(report, FolderReport):
        pooled = is_pooled_head(folder)
        command = "classify" if pooled else command_of(folder) or command
    rows = [
        ("model", folder.name),
        ("path", f"{folder.path} ({folder.source})"),
        ("use", f"bertcli {command} -m {folder.name}"),
    ]
    if isinstance(report, FolderReport):
        rows.append(("family", values["family"]))
    for section, names in SUMMARY_FIELDS.items():
        fields = values.get(section) or {}
        chosen = {}
        for name in names:
            if fields.get(name) not in (None, [], (), {}):
                chosen[name] = fields[name]
        if chosen:
            rows.append((section, shortened(described(chosen), LONGEST_VALUE)))
    if command == "embed" and not (report.sentence.pooling or required_option(folder)):
        rows.append(("pooling", "not specified; embed uses mean"))
    screen.print(facts(rows))
    warnings(screen, report.warnings)


def warnings(screen: Console, messages: Iterable[str]) -> None:
    """Print warnings."""
    for warning in messages:
        screen.print(f"warning: {warning}", style="yellow")


def tree(node: Node) -> Tree:
    """Return the modules of a model as a tree, with shapes and numbers of parameters."""
    line = Text(node.name, "bold")
    for name, shape in node.shapes.items():
        line.append(f"  {name} {shape_text(shape)}")
    if node.parameters:
        suffix = " each" if node.times > 1 else ""
        line.append(f"  {node.parameters:,}{suffix}", "dim")
    drawn = Tree(line, guide_style="dim")
    drawn.children.extend(map(tree, node.children))
    return drawn


def checks(screen: Console, verified: Iterable[VerifyCheck]) -> bool:
    """Show each check as it completes. Return False if one failed."""
    all_passed = True
    for result in verified:
        sign, style = CHECK_SIGNS[result.ok]
        line = Text.assemble((f"{sign:<6}", style), result.what)
        line.append(f"  {result.detail}" if result.detail else "", "dim")
        screen.print(line, soft_wrap=True)
        all_passed = all_passed and result.ok is not False
    return all_passed


MAX_ARRAYS = 20  # arrays shown without --tensors


def show_vectors(report: FileReport, verified: VerifyCheck | None, *, all_arrays: bool) -> None:
    """Show a file of vectors and its check. Without ``all_arrays``, show the first ones."""
    rows = []
    for array in report.arrays[: None if all_arrays else MAX_ARRAYS]:
        norm = array["norm"]
        rows.append(
            {
                "name": array["name"],
                "dtype": array["dtype"],
                "shape": shape_text(array["shape"]),
                "norms": f"{norm['min']:.4g} to {norm['max']:.4g}" if norm else "",
                "NaN": array["nan"],
                "infinite": array["inf"],
            }
        )
    with drawing() as screen:
        values = report.to_json()
        names = ("file", "format", "bytes", "records", "fields")
        screen.print(facts((name, values[name]) for name in names if values[name]))
        screen.print(rows_table(rows))
        if len(rows) < len(report.arrays):
            screen.print(f"and {len(report.arrays) - len(rows)} more: --tensors shows all")
        if report.manifest is not None:
            fields = dict(report.manifest)
            for section in ("fingerprint", "options"):  # "options" is inside "fingerprint"
                if isinstance(fields.get(section), dict):
                    fields |= fields[section]
            screen.print("manifest")
            screen.print(facts((name, fields[name]) for name in MANIFEST_FIELDS if name in fields))
        warnings(screen, report.warnings)
        checks(screen, filter(None, [verified]))


def show_instances(
    instances: Instances, examples: Sequence[TrainingInstance], *, verified: bool
) -> None:
    """Show statistics of training instances, and examples in the format of Google's code."""
    index = instances.index
    with drawing() as screen:
        names = ("max_length", "max_predictions", "vocab_size", "extra_embeddings")
        screen.print(facts((name, index[name]) for name in names if index[name]))
        screen.print(facts(index.object("statistics").items()))
        for number, example in enumerate(examples):
            screen.print(f"instance {number}", style="bold")
            for line in str(example).splitlines():
                screen.print(Text(printable(line)), soft_wrap=True)
        if len(examples) < len(instances):
            screen.print(f"and {len(instances) - len(examples):,} more")
        if verified:
            screen.print("files: the sha256 of each is as recorded")


LABEL_WIDTH = 14  # width of the token label of a row, in characters
CELL_WIDTH = 3  # width of a weight in per cent, in characters


def attention_view(screen: Console, maps: AttentionMaps) -> None:
    """Print one attention map per layer, the mean of the selected heads."""
    labels = [
        Text(token, "dim" if special else SENTENCE_COLORS[sentence % 2])
        for token, special, sentence in zip(maps.tokens, maps.special, maps.sentences, strict=True)
    ]
    labels = labels[: max(1, (screen.width - LABEL_WIDTH - 2) // CELL_WIDTH)]
    for layer, heads in maps.maps.items():
        name = f"mean of {len(heads)} heads" if len(heads) > 1 else head_name(*heads)
        title = Text.assemble((f"layer {layer}", "bold"), f" (of 0 to {maps.layers - 1}), {name}")
        screen.print(title.append(": each row looks at the columns", "dim"))
        drawn = Table(box=None, padding=0)
        drawn.add_column(justify="right", max_width=LABEL_WIDTH, no_wrap=True)
        drawn.add_column()
        for label in labels:
            letters = Text("\n".join(label.plain), label.style)
            drawn.add_column(letters, justify="right", vertical="bottom", width=CELL_WIDTH)
        mean: Any = sum(heads.values()) / len(heads)
        for label, weights in zip(labels, mean.tolist(), strict=False):
            cells = []
            for weight in weights[: len(labels)]:
                grey = round(255 * (1 - weight**0.5))
                background = f"rgb({grey},{grey},{grey})"
                color = "black" if grey > 140 else "white"
                per_cent = f"{round(100 * weight) or ''}".rjust(CELL_WIDTH)
                cells.append(Text(per_cent, f"{color} on {background}"))
            drawn.add_row(label, Text(" ▏", label.style), *cells)
        screen.print(drawn)
        if len(labels) < len(maps.tokens):
            note = f"the first {len(labels)} of {len(maps.tokens)} tokens"
            screen.print(Text(f"{note}: -o attention.html shows all", "dim"))
