"""A model folder as one report: where it is, what it holds, and what looks wrong about it.

    report = inspect_folder(find_model(DEFAULT_MODEL))
    report.warnings   # []

A folder that lacks its tokenizer or its weights still has a report, which says so. One that is not
BERT, or whose config or weights are broken, is a ModelError.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from bertcli.checkpoints import shapes
from bertcli.checkpoints.comparison import Fit, fit, grouped, parts
from bertcli.checkpoints.names import CLASSES
from bertcli.checkpoints.scan import (
    STATIC,
    WeightFiles,
    bert_folder,
    find_config,
    find_weights,
    is_static,
    read_config,
    require_weights,
    tokenizer_files,
)
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.checkpoints.tensors import read_tensors
from bertcli.embedding.sentence_config import COLBERT, Sentence, option_for, read_sentence
from bertcli.errors import ModelError
from bertcli.families.config_checks import HIDDEN_ACTS
from bertcli.files.paths import sha256
from bertcli.files.typed_json import read_object
from bertcli.hub import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.tokenizing.model_files import read_settings
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.tokenizing.tokenizer_classes import goes_on

LICENCES = ("license", "licence", "copying")  # how names of such files begin, in any case
PROJECTION = "linear.weight"  # of ColBERT's own folders: the vectors of tokens pass through it


@dataclass(frozen=True)
class TokenizerInfo:
    """A tokenizer, in summary."""

    file: str
    vocabulary_size: int
    largest_id: int
    lower_case: bool | None  # None where its normalizer has no such setting
    special_tokens: dict[str, int]
    limit: int | None
    types_of_pairs: int  # the highest token type that a pair has


def read_tokenizer(folder: Path) -> tuple[TokenizerInfo | None, list[str]]:
    """Read the tokenizer, and its warnings; a missing or broken one is one: there is the rest."""
    try:
        tokenizer = Tokenizer.load(folder)
        lower = getattr(tokenizer.core.normalizer, "lowercase", None)
        if lower is None:
            lower = read_settings(folder).switch("do_lower_case")
    except ModelError as failed:
        return None, [str(failed)]
    info = TokenizerInfo(
        file=tokenizer_files(bert_folder(folder))[0].name,
        vocabulary_size=len(tokenizer),
        largest_id=max(tokenizer.core.get_vocab().values(), default=-1),
        lower_case=lower,
        special_tokens=tokenizer.special_ids(),
        limit=tokenizer.limit,
        types_of_pairs=max(tokenizer.core.encode("a", "b").type_ids, default=0),
    )
    return info, [*tokenizer.warnings]


def tokenizer_details(folder: Path) -> dict[str, Any]:
    """Return the details of a tokenizer; ModelError when it is missing or broken."""
    tokenizer = Tokenizer.load(folder)
    core, vocabulary = tokenizer.core, tokenizer.core.get_vocab()
    file, continues = tokenizer_files(bert_folder(folder))[0], goes_on(core)
    added = {token.content: index for index, token in core.get_added_tokens_decoder().items()}
    marked = type(core.model).__name__ == "WordPiece"
    continuations = sum(continues(token) and (marked or token not in added) for token in vocabulary)
    return {
        "file": file.name,
        "sha256": sha256(file),
        "model": type(core.model).__name__,
        "normalizer": type(core.normalizer).__name__ if core.normalizer else None,
        "vocabulary_size": len(vocabulary),
        "words": len(vocabulary) - continuations,
        "continuations": continuations,
        "unused": sum(token.startswith("[unused") for token in vocabulary),
        "added_tokens": added,
        "roles": tokenizer.roles,
        "special_tokens": tokenizer.special_ids(),
        "lower_case": getattr(core.normalizer, "lowercase", None),
        "strip_accents": getattr(core.normalizer, "strip_accents", None),
        "limit": tokenizer.limit,
        "truncation_side": tokenizer.truncation_side,
        "padding_side": tokenizer.padding_side,
    }


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
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
                "file": tensor.file.name,
            }
            for tensor in self.tensors
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
                "tensors": len(self.tensors) or None,
            },
            **behind,
            "tokenizer": self.tokenizer and asdict(self.tokenizer) | tokenizer_details(tokenizer),
            "sentence": asdict(sentence)
            | {key: [module._asdict() for module in kind] for key, kind in modules.items()},
            "warnings": self.warnings,
        }


@dataclass(frozen=True)
class Node:
    """A part of a model: its name, its own tensors, and the parameters in and below it.

    Equal neighbours share a node: their names are a range, such as 0-11, and `times` is their
    count; all numbers are those of one of them. A tied tensor counts once.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    parameters: int
    children: tuple[Node, ...]
    times: int = 1


def _node(name: str, tensors: Mapping[str, tuple[int, ...]], counts: Mapping[str, int]) -> Node:
    inside = {key.partition(".")[0]: None for key in tensors if "." in key}  # in their order
    parts = []
    for part in inside:
        start = f"{part}."
        below = {key.removeprefix(start): tensors[key] for key in tensors if key.startswith(start)}
        parts.append(_node(part, below, {key: counts[start + key] for key in below}))
    children = []
    for layers, alike in groupby(parts, lambda part: part.name.isdecimal() and _alike(part)):
        first, *others = alike
        if layers and others:
            first = replace(first, name=f"{first.name}-{others[-1].name}", times=1 + len(others))
            others = []
        children += [first, *others]
    own = {key: shape for key, shape in tensors.items() if "." not in key}
    return Node(name, own, sum(counts.values()), tuple(children))


def _alike(node: Node) -> str:
    return repr((node.shapes, node.children))


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
        return {
            **self._json(first, fit.pop("dtypes"), self.bert, fit=fit),
            "config": self.config.to_dict(),
            "tensors": self.tensor_rows if self.weights.files or with_tensors else None,
            **({"tree": asdict(self.tree())} if with_tree else {}),
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
        """Return the parts of the model."""
        second = shapes.tied(self.config, self.architecture)
        tensors = shapes.expected(self.config, self.architecture, self.pooler)
        counted = {name: 0 if name in second else prod(shape) for name, shape in tensors.items()}
        return _node(self.architecture, tensors, counted)


def inspect_folder(folder: ModelFolder) -> FolderReport:
    """Read what is in a folder. ModelError when it is not BERT, or a file of it is broken."""
    place = bert_folder(folder.path)
    config_path = find_config(place)
    if config_path is None:
        names = ", ".join(sorted(os.listdir(place))[:8]) or "nothing"
        raise ModelError(f"{place}: no config.json in this folder", f"in this folder: {names}")
    config = BertConfig.from_file(config_path)
    architecture = config.architectures[0] if config.architectures else "BertModel"
    if architecture not in CLASSES:
        architecture = "BertModel"
    weights = find_weights(place)
    listed = weights.format not in ("none", "openvino")  # tensors by their names
    tensors = read_tensors(weights) if listed else []
    sentence = read_sentence(folder.path, pooling="none")
    try:
        compared = fit(config, architecture, tensors) if listed else Fit()
        if compared.missing and sentence.modules:
            # Some sentence models name the class they were trained from, whose head they lack.
            headless = fit(config, "BertModel", tensors)
            if not headless.missing:
                architecture, compared = "BertModel", headless
        pooler = architecture != "BertModel" or not listed or "pooler" in compared.heads
        counts = {
            "total": shapes.count(config, architecture, pooler),
            "without_pooler": shapes.count(config, pooler=False),
            "parts": parts(config, architecture, pooler),
        }
    except ModelError as bad:
        raise ModelError(f"{config_path}: {bad}", bad.hint) from None
    tokenizer, tokenizer_warnings = read_tokenizer(place)
    return FolderReport(
        folder=folder,
        bert=place,
        config_file=config_path.name,
        config=config,
        architecture=architecture,
        fit=compared,
        weights=weights,
        tensors=tensors,
        tokenizer=tokenizer,
        tokenizer_warnings=tokenizer_warnings,
        sentence=sentence,
        parameters=counts,
        pooler=pooler,
    )


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
        case "openvino":
            yield "an exported graph instead of weights: only embed and the like can run it"
    if weights.format in ("none", "openvino"):
        return
    if not report.pooler and report.config.structure.pooler:
        yield "no pooler weights: pooler output is not available"
    named = report.config.family.their_class(report.architecture)
    if fit.missing:
        yield f"missing for {named}: {grouped(fit.missing)}"
    own = PROJECTION if COLBERT in report.config.architectures else ""
    if unused := [name for name in fit.unused if name != own]:
        yield f"in the file, but no part of {named}: {grouped(unused)}"
    for name, (stored, needed) in list(fit.misshapen.items())[:1]:
        more = f", and {len(fit.misshapen) - 1} more do not fit" if len(fit.misshapen) > 1 else ""
        yield f"{name} is {_by(stored)}, {report.config_file} requires {_by(needed)}{more}"
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


# --- a table of token vectors, of which less is to be said ---


@dataclass(frozen=True, kw_only=True)
class StaticReport(ModelReport):
    """All that `bertcli inspect` reports about a table of token vectors."""

    tokens: int  # that have a vector
    width: int
    config: dict[str, Any]

    @property
    def numbers(self) -> int:
        """How many numbers its files hold."""
        return sum(tensor.numbers for tensor in self.tensors)

    def to_json(self, *, with_tensors: bool = False) -> dict[str, Any]:
        """Return the report as JSON values."""
        dtypes: Counter[str] = Counter()
        for tensor in self.tensors:
            dtypes[tensor.dtype] += tensor.numbers
        first = {
            "architecture": {"name": STATIC, "declared": [], "library": self.sentence.static},
            "parameters": {"total": self.numbers, "in_file": self.numbers},
            "table": {"tokens": self.tokens, "dimensions": self.width},
        }
        return {
            **self._json(first, dtypes, self.folder.path),
            "config": self.config,
            **({"tensors": self.tensor_rows} if with_tensors else {}),
        }

    def _concerns(self) -> Iterator[str]:
        if self.weights.format == "pytorch":
            yield "pytorch_model.bin instead of safetensors: slower to load, and a pickle"
        if self.tokenizer and self.tokenizer.largest_id >= self.tokens:
            yield (
                f"token ids go up to {self.tokenizer.largest_id:,}, but only {self.tokens:,} "
                "tokens have a vector: this model cannot be used"
            )


def inspect_static(folder: ModelFolder) -> StaticReport:
    """Read what is in the folder of a table. ModelError when it is incomplete or broken."""
    from bertcli.inference.static_engine import read_table

    inner = bert_folder(folder.path)
    weights, table, config = require_weights(inner), read_table(inner), find_config(inner)
    tokenizer, warnings = read_tokenizer(folder.path)
    return StaticReport(
        folder=folder,
        weights=weights,
        tensors=read_tensors(weights),
        tokens=table.tokens,
        width=table.width,
        tokenizer=tokenizer,
        tokenizer_warnings=warnings,
        sentence=read_sentence(folder.path),
        config=dict(read_object(config)) if config else {},
    )


# --- a model in a line ---


@dataclass(frozen=True)
class ModelFacts:
    """A model in a line."""

    family: str = ""  # of the encoder, for people; "" where bertcli knows none
    width: int | None = None  # of its hidden states
    license: str = ""  # the file in its folder
    loads: bool = False
    problem: str = ""  # why it does not load


def facts_of(folder: Path) -> ModelFacts:
    """Look at a folder; what is wrong with it is one of the facts."""
    names = sorted(os.listdir(folder))
    facts = ModelFacts(license=next((n for n in names if n.lower().startswith(LICENCES)), ""))
    try:
        if is_static(folder):
            table = inspect_static(ModelFolder(str(folder), folder, "folder", None))
            return replace(facts, family=STATIC, width=table.width, loads=True)
        place = bert_folder(folder)
        config = read_config(place)
        facts = replace(facts, family=config.family.title, width=config.hidden_size)
        compared = fit(config, "BertModel", read_tensors(require_weights(place)))
    except ModelError as bad:
        return replace(facts, problem=str(bad))
    lost = (*compared.missing, *compared.misshapen)
    problem = f"missing, or of another shape: {lost[0]}" if lost else ""
    return replace(facts, loads=not problem, problem=problem)
