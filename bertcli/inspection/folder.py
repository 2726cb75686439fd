"""A model folder as one report: where it is, what it holds, and what looks wrong about it.

    report = inspect_folder(find_model(DEFAULT_MODEL))
    report.warnings   # []

A folder that lacks its tokenizer or its weights still has a report, which says so. One that is not
BERT, or whose config or weights are broken, is a ModelError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints import shapes
from bertcli.checkpoints.comparison import Fit, fit, grouped, parts
from bertcli.checkpoints.names import CLASSES
from bertcli.checkpoints.scan import WeightFiles, bert_folder, find_config, find_weights
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.checkpoints.tensors import read_tensors
from bertcli.embedding.sentence_config import COLBERT, Sentence, option_for, read_sentence
from bertcli.errors import ModelError
from bertcli.hub import ModelFolder
from bertcli.inspection.tokenizer_report import TokenizerInfo, read_tokenizer, tokenizer_details
from bertcli.models.config import BertConfig
from bertcli.models.config_checks import HIDDEN_ACTS

if TYPE_CHECKING:
    from bertcli.models.module_tree import Node

PROJECTION = "linear.weight"  # of ColBERT's own folders: the vectors of tokens pass through it


@dataclass(frozen=True)
class FolderReport:
    """All that `bertcli inspect` reports about a folder."""

    folder: ModelFolder
    bert: Path  # the folder with the BERT: a part of the folder, or all of it
    config_file: str
    config: BertConfig
    architecture: str  # the class that is compared with
    fit: Fit
    weights: WeightFiles
    tensors: Sequence[StoredTensor]
    tokenizer: TokenizerInfo | None
    sentence: Sentence
    parameters: dict[str, Any]
    pooler: bool  # whether the architecture is taken to have one
    tokenizer_error: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def declared(self) -> tuple[str, ...]:
        """The classes that config.json names, as it does."""
        return tuple(map(self.config.family.their_class, self.config.architectures))

    @property
    def option(self) -> str:
        """The option of embed that a model requires that makes no vectors of texts; else ""."""
        return option_for(self.folder.path)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        fit, weights = asdict(self.fit), self.weights
        tensors = [tensor_row(one) for one in self.tensors] if weights.files else None
        count = None if tensors is None else len(tensors)
        return {
            **place_row(self.folder),
            "family": self.config.family.title,
            "architecture": {"name": self.architecture, "declared": self.declared},
            "parameters": self.parameters | {"in_file": fit.pop("in_file") or None},
            "weights": weights_row(weights, fit.pop("dtypes"), count),
            "fit": fit,
            "tokenizer": self.tokenizer and asdict(self.tokenizer),
            "sentence": sentence_row(self.sentence),
            "warnings": self.warnings,
            "config": self.config.to_dict(),
            "tensors": tensors,
        }

    def tree(self) -> Node:
        """Return the modules of the model. Imports torch."""
        from bertcli.models.module_tree import module_tree

        return module_tree(self.config, self.architecture, self.pooler)


def tensor_row(tensor: StoredTensor) -> dict[str, Any]:
    """Return what is shown of a tensor."""
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "file": tensor.file.name,
    }


def place_row(folder: ModelFolder) -> dict[str, Any]:
    """Return what is shown of where a model was found."""
    return {
        "model": folder.name,
        "path": str(folder.path),
        "source": folder.source,
        "revision": folder.revision,
    }


def weights_row(weights: WeightFiles, dtypes: Mapping[str, int], tensors: int | None) -> Any:
    """Return what is shown of the files of weights."""
    sizes = {path.name: path.stat().st_size for path in weights.files}
    return {
        "format": weights.format,
        "files": sizes,
        "bytes": sum(sizes.values()),
        "dtypes": dtypes,
        "tensors": tensors,
    }


def sentence_row(sentence: Sentence) -> dict[str, Any]:
    """Return what a folder says about its vectors."""
    modules = {
        "of_tokens": [module._asdict() for module in sentence.of_tokens],
        "of_texts": [module._asdict() for module in sentence.of_texts],
    }
    return asdict(sentence) | modules


def inspect_folder(folder: ModelFolder) -> FolderReport:
    """Read what is in a folder. ModelError when it is not BERT, or a file of it is broken."""
    place = bert_folder(folder.path)
    config_path = find_config(place)
    if config_path is None:
        there = ", ".join(sorted(os.listdir(place))[:8]) or "nothing"
        raise ModelError(f"{place}: no config.json in this folder", f"in this folder: {there}")
    config = BertConfig.from_file(config_path)
    architecture = config.architectures[0] if config.architectures else "BertModel"
    known = architecture if architecture in CLASSES else "BertModel"
    weights = find_weights(place)
    tensors = read_tensors(weights)
    sentence = read_sentence(folder.path, pooling="none")
    try:
        compared = fit(config, known, tensors) if weights.files else Fit()
        known, compared = _without_head(config, known, compared, tensors, sentence)
        pooler = known != "BertModel" or not weights.files or "pooler" in compared.heads
        counts = _count(config, known, pooler)
    except ModelError as bad:
        raise ModelError(f"{config_path}: {bad}", bad.hint) from None
    warnings: list[str] = []
    tokenizer, error = read_tokenizer(place, warnings)
    report = FolderReport(
        folder=folder,
        bert=place,
        config_file=config_path.name,
        config=config,
        architecture=known,
        fit=compared,
        weights=weights,
        tensors=tensors,
        tokenizer=tokenizer,
        sentence=sentence,
        parameters=counts,
        pooler=pooler,
        tokenizer_error=error,
        warnings=warnings,
    )
    warnings.extend(_concerns(report))
    return report


def _without_head(
    config: BertConfig, name: str, found: Fit, tensors: Sequence[StoredTensor], sentence: Sentence
) -> tuple[str, Fit]:
    """Return the class that a model is compared with, and how it fits.

    Some sentence models name the class of the one they were trained from, whose head they lack.
    """
    if not found.missing or not sentence.modules:
        return name, found
    bare = fit(config, "BertModel", tensors)
    return (name, found) if bare.missing else ("BertModel", bare)


def report_json(
    report: FolderReport,
    *,
    with_tree: bool = False,
    with_tensors: bool = False,
) -> dict[str, Any]:
    """Return a report, with more of the tokenizer and the views asked for, as JSON values."""
    found = report.to_json()
    if report.tokenizer is not None:
        found["tokenizer"] |= tokenizer_details(report.bert)
    if with_tree:
        found["tree"] = report.tree().to_json()
    if with_tensors:
        found["tensors"] = found["tensors"] or []
    return found


def _count(config: BertConfig, name: str, pooler: bool) -> dict[str, Any]:
    return {
        "total": shapes.count(config, name, pooler),
        "without_pooler": shapes.count(config, pooler=False),
        "parts": parts(config, name, pooler),
    }


def _concerns(report: FolderReport) -> Iterator[str]:
    """Yield warnings about this folder."""
    yield from _about_architecture(report)
    yield from _about_weights(report)
    yield from _about_tokenizer(report)
    width = report.config.hidden_size
    pooled = report.sentence.dimension
    if pooled not in (None, width) and not report.sentence.of_tokens:
        yield f"pooling expects {pooled} dimensions per token, the model has {width}"
    option = report.option
    if option:
        yield f"the model makes no vector of a text: embed requires {option}"
    for name in () if option else report.sentence.unknown:
        yield f"sentence module {name} is unknown: embed requires --pooling"
    limit, fits = report.sentence.max_length, report.config.most_tokens
    if limit is not None and limit > fits:
        yield f"max_seq_length is {limit}, but the model has {fits} positions"


def _about_architecture(report: FolderReport) -> Iterator[str]:
    declared = report.config.architectures
    if declared and declared[0] not in (*CLASSES, COLBERT):
        title = report.config.family.title
        yield f"the architecture {declared[0]} is unknown: only its {title} can be used"
    act, pad = report.config.hidden_act, report.config.pad_token_id
    if act not in HIDDEN_ACTS:
        yield f"hidden_act {act!r} is unknown: this model cannot be loaded"
    if pad is not None and pad >= (rows := report.config.vocab_size):
        yield f"pad_token_id {pad} is outside the vocabulary of {rows}: it cannot be loaded"
    if extra := ", ".join(report.config.extra_embeddings):
        fields = ", ".join(report.config.fields_of_extra.values())
        yield f"extra embeddings ({extra}): texts come with ids of their words in {fields}"
    tokenizer = report.tokenizer
    if tokenizer and not report.config.takes_types(tokenizer.types_of_pairs):
        yield f"type_vocab_size is {report.config.type_vocab_size}: text pairs cannot be encoded"


def _about_weights(report: FolderReport) -> Iterator[str]:
    fit, weights = report.fit, report.weights
    match weights.format:
        case "none":
            yield "no weights in this folder: it can only tokenize"
        case "pytorch":
            yield "pytorch_model.bin instead of safetensors: slower to load, and a pickle"
        case "tensorflow":
            yield "a TensorFlow checkpoint instead of safetensors"
    if weights.format == "none":
        return
    if not report.pooler and report.config.structure.pooler:
        yield "no pooler weights: pooler output is not available"
    named = report.config.family.their_class(report.architecture)
    if fit.missing:
        yield f"missing for {named}: {grouped(fit.missing)}"
    own = PROJECTION if COLBERT in report.config.architectures else ""
    if unused := [name for name in fit.unused if name != own]:
        yield f"in the file, but no part of {named}: {grouped(unused)}"
    for name, (found, needed) in list(fit.misshapen.items())[:1]:
        more = f", and {len(fit.misshapen) - 1} more do not fit" if len(fit.misshapen) > 1 else ""
        yield f"{name} is {_by(found)}, {report.config_file} requires {_by(needed)}{more}"
    if odd := sorted(dtype for dtype in fit.dtypes if not dtype.startswith(("F", "BF"))):
        yield f"weights are stored as {', '.join(odd)}: these are not floating-point numbers"
    if fit.twice:
        yield f"stored under two names: {', '.join(fit.twice[:4])}"


def _about_tokenizer(report: FolderReport) -> Iterator[str]:
    if report.tokenizer is None:
        return
    tokens, rows = report.tokenizer.vocabulary_size, report.config.vocab_size
    if report.tokenizer.largest_id >= rows:
        yield (
            f"{tokens:,} tokens, but only {rows:,} word embeddings: this model can only tokenize "
            f"(ids go up to {report.tokenizer.largest_id:,})"
        )
    elif tokens < rows:
        yield f"{tokens:,} tokens for {rows:,} word embeddings: the last ones are never used"


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"
