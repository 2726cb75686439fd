"""The attention maps of texts, with their tokens.

This needs torch, which is imported when it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import model_files
from bertcli.errors import InputError, ModelError, OutputError, UsageError
from bertcli.files.paths import refuse_inputs
from bertcli.files.versions import require_torch
from bertcli.files.writers import open_output
from bertcli.inspection.attention_picture import (
    DRAWN,
    MEAN,
    AttentionMaps,
    picture,
    unsupported_characters,
)
from bertcli.inspection.drawing import require_matplotlib
from bertcli.inspection.folder import FolderReport
from bertcli.models.config import BertConfig
from bertcli.records.records import Record
from bertcli.tokenizing.columns import EXTRA, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns

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
    warning, content = unsupported_characters(texts, form), picture(texts, form)
    with open_output(path, overwrite=overwrite) as output:
        output.write(content)
    return warning


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
