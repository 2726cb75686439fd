"""A model folder as one report: where it is, what it holds, and what looks wrong about it.

    report = inspect_folder(find_model(DEFAULT_MODEL))
    report.warnings   # []

A folder that lacks its tokenizer or its weights still has a report, which says so. One that is not
BERT, or whose config or weights are broken, is a ModelError.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
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


@dataclass(frozen=True, kw_only=True)
class ModelReport(ABC):
    """What `bertcli inspect` reports about any model."""

    folder: ModelFolder
    weights: WeightFiles
    tensors: Sequence[StoredTensor]
    tokenizer: TokenizerInfo | None
    tokenizer_warnings: Sequence[str]  # the first says why there is no tokenizer
    sentence: Sentence

    @cached_property
    def warnings(self) -> list[str]:
        """What looks wrong."""
        return [*self.tokenizer_warnings, *self._concerns()]

    @abstractmethod
    def _concerns(self) -> Iterator[str]:
        """Yield what looks wrong beside the tokenizer."""

    @property
    def tensor_rows(self) -> list[dict[str, Any]]:
        """What is shown of each tensor."""
        return [
            {
                "name": one.name,
                "dtype": one.dtype,
                "shape": list(one.shape),
                "bytes": one.nbytes,
                "file": one.file.name,
            }
            for one in self.tensors
        ]

    def _json(
        self, first: Mapping[str, Any], dtypes: Mapping[str, int], tokenizer: Path, **behind: Any
    ) -> dict[str, Any]:
        """Return the report as JSON values: ``first``, and ``behind`` the weights, are its own.

        ``tokenizer`` is the folder that it is in.
        """
        folder, sentence, weights = self.folder, self.sentence, self.weights
        sizes = {path.name: path.stat().st_size for path in weights.files}
        modules = {"of_tokens": sentence.of_tokens, "of_texts": sentence.of_texts}
        return {
            "model": folder.name,
            "path": str(folder.path),
            "source": folder.source,
            "revision": folder.revision,
            **first,
            "weights": {
                "format": weights.format,
                "files": sizes,
                "bytes": sum(sizes.values()),
                "dtypes": dtypes,
                "tensors": len(self.tensors) if weights.files else None,
            },
            **behind,
            "tokenizer": self.tokenizer and asdict(self.tokenizer) | tokenizer_details(tokenizer),
            "sentence": asdict(sentence)
            | {name: [one._asdict() for one in some] for name, some in modules.items()},
            "warnings": self.warnings,
        }


@dataclass(frozen=True, kw_only=True)
class FolderReport(ModelReport):
    """All that `bertcli inspect` reports about a folder."""

    bert: Path  # the folder with the BERT: a part of the folder, or all of it
    config_file: str
    config: BertConfig
    architecture: str  # the class that is compared with
    fit: Fit
    parameters: dict[str, Any]
    pooler: bool  # whether the architecture is taken to have one

    @property
    def declared(self) -> tuple[str, ...]:
        """The classes that config.json names, as it does."""
        return tuple(map(self.config.family.their_class, self.config.architectures))

    @property
    def option(self) -> str:
        """The option of embed that a model requires that makes no vectors of texts; else ""."""
        return option_for(self.folder.path)

    def to_json(self, *, with_tree: bool = False, with_tensors: bool = False) -> dict[str, Any]:
        """Return the report, with the views that are asked for, as JSON values."""
        fit = asdict(self.fit)
        first = {
            "family": self.config.family.title,
            "architecture": {"name": self.architecture, "declared": self.declared},
            "parameters": self.parameters | {"in_file": fit.pop("in_file") or None},
        }
        there = self.weights.files or with_tensors
        return {
            **self._json(first, fit.pop("dtypes"), self.bert, fit=fit),
            "config": self.config.to_dict(),
            "tensors": self.tensor_rows if there else None,
            **({"tree": self.tree().to_json()} if with_tree else {}),
        }

    def _concerns(self) -> Iterator[str]:
        yield from _about_architecture(self)
        yield from _about_weights(self)
        yield from _about_tokenizer(self)
        width = self.config.hidden_size
        pooled = self.sentence.dimension
        if pooled not in (None, width) and not self.sentence.of_tokens:
            yield f"pooling expects {pooled} dimensions per token, the model has {width}"
        option = self.option
        if option:
            yield f"the model makes no vector of a text: embed requires {option}"
        for name in () if option else self.sentence.unknown:
            yield f"sentence module {name} is unknown: embed requires --pooling"
        limit, fits = self.sentence.max_length, self.config.most_tokens
        if limit is not None and limit > fits:
            yield f"max_seq_length is {limit}, but the model has {fits} positions"

    def tree(self) -> Node:
        """Return the modules of the model. Imports torch."""
        from bertcli.models.module_tree import module_tree

        return module_tree(self.config, self.architecture, self.pooler)


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
    tokenizer, said = read_tokenizer(place)
    return FolderReport(
        folder=folder,
        bert=place,
        config_file=config_path.name,
        config=config,
        architecture=known,
        fit=compared,
        weights=weights,
        tensors=tensors,
        tokenizer=tokenizer,
        tokenizer_warnings=said,
        sentence=sentence,
        parameters=counts,
        pooler=pooler,
    )


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


def _count(config: BertConfig, name: str, pooler: bool) -> dict[str, Any]:
    return {
        "total": shapes.count(config, name, pooler),
        "without_pooler": shapes.count(config, pooler=False),
        "parts": parts(config, name, pooler),
    }


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
