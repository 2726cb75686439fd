"""Report on a model folder: its location, files, tensors, tokenizer and warnings.

    report = inspect_folder(find_model(DEFAULT_MODEL))
    report.warnings   # []

A missing tokenizer or missing weights are warnings in the report. A folder that is not BERT, or has
a broken config or broken weights, raises ModelError.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.embedding.options import COLBERT, Sentence, option_for, read_sentence
from bertcli.errors import ModelError, on_command_line, option
from bertcli.families.structure import HEAD_PARTS
from bertcli.formats.safetensors import StoredTensor
from bertcli.io.paths import sha256
from bertcli.model_folder.files import CONFIGS, STATIC, TERM_TABLE, WEIGHTS, WeightFiles
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL, DEFAULT_WEIGHTS_SHA256, describe_graph
from bertcli.model_folder.shapes import expected_shapes, parameter_count, tied_names
from bertcli.model_folder.tensors import read_tensors
from bertcli.model_folder.weights import LoadReport, compare_tensors, report_on, shortlist
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

NAMELESS = ("none", "openvino")  # formats without named tensors
FORMAT_WARNINGS = {
    "none": "no weights in this folder: it can only tokenize",
    "pytorch": "pytorch_model.bin instead of safetensors: slower to load, and a pickle",
    "tensorflow": "a TensorFlow checkpoint instead of safetensors",
    "openvino": "an exported graph instead of weights: only embed and the like can run it",
}
LICENCES = ("license", "licence", "copying")  # prefixes of file names, lower case
PROJECTION = "linear.weight"  # the projection of token vectors in ColBERT's own folders


def tokenizer_details(tokenizer: Tokenizer, folder: ModelFolder) -> dict[str, Any]:
    """Return the details of the tokenizer of a folder, as JSON values.

    ``lower_case`` is None if unknown; ``types_of_pairs`` is the highest token type of a text pair.
    """
    core, vocabulary = tokenizer.core, tokenizer.core.get_vocab()
    file = folder.encoder.tokenizer_files[0]
    added = {token.content: index for index, token in core.get_added_tokens_decoder().items()}
    lower = getattr(core.normalizer, "lowercase", None)
    return {
        "file": file.name,
        "sha256": sha256(file),
        "model": type(core.model).__name__,
        "normalizer": type(core.normalizer).__name__ if core.normalizer else None,
        "vocabulary_size": len(vocabulary),
        "largest_id": max(vocabulary.values(), default=-1),
        "added_tokens": added,
        "roles": tokenizer.roles,
        "special_tokens": tokenizer.special_ids(),
        "lower_case": folder.tokenizer_settings.switch("do_lower_case") if lower is None else lower,
        "strip_accents": getattr(core.normalizer, "strip_accents", None),
        "limit": tokenizer.limit,
        "types_of_pairs": max(core.encode("a", "b").type_ids, default=0),
        "truncation_side": tokenizer.truncation_side,
        "padding_side": tokenizer.padding_side,
    }


def read_tokenizer(folder: ModelFolder) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the details of the tokenizer and its warnings.

    For a missing or broken tokenizer, the details are None and the error is the warning.
    """
    try:
        tokenizer = Tokenizer.load(folder)
        return tokenizer_details(tokenizer, folder), [*tokenizer.warnings]
    except ModelError as failed:
        return None, [on_command_line(failed.marked)]


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """The part of the report of `bertcli inspect` that all models have."""

    folder: ModelFolder
    weights: WeightFiles
    tensors: Sequence[StoredTensor]
    tokens: int  # number of word embeddings
    tokenizer: dict[str, Any] | None
    sentence: Sentence
    warnings: list[str]  # without a tokenizer, the first one gives the reason

    @property
    def tensor_rows(self) -> list[dict[str, Any]]:
        """Name, dtype, shape, bytes and file of each tensor."""
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

    def concerns(self) -> Iterator[str]:
        """Yield warnings about the weight format and about ids without a word embedding."""
        graph = describe_graph(self.folder, WEIGHTS)
        if self.weights.format == "none" and graph:
            yield f"no weights, but {graph[0]}: it can only tokenize"
        elif self.weights.format in FORMAT_WARNINGS:
            yield FORMAT_WARNINGS[self.weights.format]
        if self.tokenizer:
            tokens = self.tokenizer["vocabulary_size"]
            largest = self.tokenizer["largest_id"]
            rows = f"{self.tokens:,} word embeddings"
            if largest >= self.tokens:
                only = f"this model can only tokenize (ids go up to {largest:,})"
                yield f"{tokens:,} tokens, but only {rows}: {only}"
            elif tokens < self.tokens:
                yield f"{tokens:,} tokens for {rows}: the last ones are never used"

    def _json(
        self, first: Mapping[str, Any], dtypes: Mapping[str, int], **behind: Any
    ) -> dict[str, Any]:
        """Return the report as JSON values.

        The fields ``first`` come before the weights, the fields ``behind`` after them.
        """
        folder = self.folder
        sentence = self.sentence
        weights = self.weights
        sizes = {path.name: path.stat().st_size for path in weights.files}
        modules = [
            {"kind": module.class_name, "path": module.path} for module in sentence.of_texts
        ]
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
            "tokenizer": self.tokenizer,
            "sentence": asdict(sentence) | {"of_texts": modules},
            "warnings": self.warnings,
        }


@dataclass(frozen=True)
class Node:
    """A submodule of a model: its name, its own tensors, its children and its parameter count.

    The count includes the children. Consecutive equal submodules share a node: its name is a range
    such as 0-11, `times` is their number, and `parameters` is the count of one of them. A tied
    tensor counts once.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    parameters: int
    children: tuple[Node, ...]
    times: int = 1


def _node(name: str, tensors: Mapping[str, tuple[tuple[int, ...], int]]) -> Node:
    """Return the node of a submodule with these tensors: name -> (shape, parameter count)."""
    parts: dict[str, dict[str, tuple[tuple[int, ...], int]]] = {}
    for key, tensor in tensors.items():
        part, _, inner = key.partition(".")
        parts.setdefault(part if inner else "", {})[inner or key] = tensor
    own = {key: shape for key, (shape, _) in parts.pop("", {}).items()}
    children: list[Node] = []
    for child in (_node(part, inside) for part, inside in parts.items()):
        first = children[-1] if children else Node("", {}, 0, ())
        alike = (first.shapes, first.children) == (child.shapes, child.children)
        if alike and child.name.isdecimal() and first.name[:1].isdecimal():
            start = first.name.partition("-")[0]
            children[-1] = replace(first, name=f"{start}-{child.name}", times=first.times + 1)
        else:
            children.append(child)
    return Node(name, own, sum(count for _, count in tensors.values()), tuple(children))


@dataclass(frozen=True, kw_only=True)
class FolderReport(ModelReport):
    """The report of `bertcli inspect` about a model with an encoder."""

    bert: ModelFolder  # the folder of the BERT: a subfolder, or the folder itself
    config: BertConfig
    comparison: LoadReport  # the weights compared with the tensors of the architecture
    parameters: dict[str, int]

    @property
    def architecture(self) -> str:
        """The architecture with which the weights are compared."""
        return self.comparison.model

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        comparison = self.comparison
        fit = {
            "missing": comparison.missing,
            "unused": comparison.spare,
            "misshapen": comparison.mismatched,
            "twice": [*comparison.twice],
            "heads": comparison.heads,
        }
        family = self.config.family
        declared = [*map(family.their_class, self.config.architectures)]
        first = {
            "family": family.title,
            "architecture": {"name": self.architecture, "declared": declared},
            "parameters": self.parameters,
        }
        return {
            **self._json(first, comparison.dtypes, fit=fit),
            "config": self.config.to_dict(),
            "tensors": self.tensor_rows if self.weights.files else None,
        }

    def concerns(self) -> Iterator[str]:
        """Yield warnings about the config, the weights and the sentence modules."""
        config, comparison, title = self.config, self.comparison, self.config.family.title
        if config.architectures and config.architectures[0] not in (*HEAD_PARTS, COLBERT):
            name = config.architectures[0]
            yield f"the architecture {name} is unknown: only its {title} can be used"
        try:
            config.refuse_unbuildable(self.architecture)
        except ModelError as bad:
            yield f"{bad.marked}: this model cannot be loaded"
        if extra := ", ".join(config.extra_embeddings):
            fields = ", ".join(config.fields_of_extra.values())
            yield f"extra embeddings ({extra}): texts come with ids of their words in {fields}"
        if self.tokenizer and not config.takes_types(self.tokenizer["types_of_pairs"]):
            yield f"type_vocab_size is {config.type_vocab_size}: text pairs cannot be encoded"
        yield from super().concerns()
        if self.weights.format not in NAMELESS:
            if not comparison.pooler and config.structure.pooler:
                yield "no pooler weights: pooler output is not available"
            yield from comparison.faults()
            own = PROJECTION if COLBERT in config.architectures else ""
            stored = comparison.stored
            told = {*comparison.misplaced}
            spare = (name for name in comparison.spare if name != own)
            if unused := [name for name in spare if stored[name].name not in told]:
                named = config.family.their_class(self.architecture)
                yield f"in the file, but no part of {named}: {shortlist(unused)}"
            if comparison.twice:
                yield f"stored under two names: {shortlist(comparison.twice)}"
        needed = option_for(self.folder)
        if needed:
            yield f"the model makes no vector of a text: embed requires {needed}"
        for name in () if needed else self.sentence.unknown:
            yield f"sentence module {name} is unknown: embed requires {option('pooling')}"
        limit = self.sentence.max_length
        fits = config.most_tokens
        if limit is not None and limit > fits:
            yield f"max_seq_length is {limit}, but the model has {fits} positions"

    def tree(self) -> Node:
        """Return the tree of submodules of the model."""
        tied = tied_names(self.config, self.architecture)
        shapes = expected_shapes(self.config, self.architecture, self.comparison.pooler)
        counted = {
            name: (shape, 0 if name in tied else prod(shape)) for name, shape in shapes.items()
        }
        return _node(self.architecture, counted)


def inspect_folder(folder: ModelFolder) -> FolderReport:
    """Return the report on a folder. Raises ModelError if it is not BERT or a file is broken."""
    place = folder.encoder
    config = folder.config
    architecture = config.architectures[0] if config.architectures else "BertModel"
    if architecture not in HEAD_PARTS:
        architecture = "BertModel"
    weights = place.weights
    listed = weights.format not in NAMELESS
    tensors = read_tensors(weights) if listed else []
    sentence = read_sentence(folder, pooling="none")
    try:
        comparison = compare_tensors(place, config, architecture, tensors, None if listed else True)
        if not listed:  # the tensors are unknown, so none can be missing
            comparison = replace(comparison, needed={})
        elif comparison.missing and sentence.modules:
            # Some sentence models declare the architecture they were trained from, but lack its
            # head.
            headless = compare_tensors(place, config, "BertModel", tensors)
            comparison = comparison if headless.missing else headless
        counts = {
            "total": parameter_count(config, comparison.model, comparison.pooler),
            "without_pooler": parameter_count(config, "BertModel", False),
        }
    except ModelError as bad:
        raise ModelError(f"{place.config_file}: {bad.marked}", bad.marked_hint) from None
    tokenizer, warnings = read_tokenizer(place)
    report = FolderReport(
        folder=folder,
        bert=place,
        config=config,
        comparison=comparison,
        weights=weights,
        tensors=tensors,
        tokens=config.vocab_size,
        tokenizer=tokenizer,
        warnings=warnings,
        sentence=sentence,
        parameters=counts,
    )
    report.warnings.extend(map(on_command_line, report.concerns()))
    return report


def by(shape: Iterable[Any]) -> str:
    """Return a shape as text, such as "2 x 3"; "a number" for an empty shape."""
    return " x ".join(map(str, shape)) or "a number"


# --- a table of token vectors ---


@dataclass(frozen=True, kw_only=True)
class StaticReport(ModelReport):
    """The report of `bertcli inspect` about a table of token vectors."""

    width: int
    config: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        dtypes: Counter[str] = Counter()
        for tensor in self.tensors:
            dtypes[tensor.dtype] += tensor.numbers
        first = {
            "architecture": {"name": STATIC, "declared": [], "library": self.sentence.static},
            "parameters": {"total": dtypes.total()},
            "table": {"tokens": self.tokens, "dimensions": self.width},
        }
        return {**self._json(first, dtypes), "config": self.config, "tensors": self.tensor_rows}


def inspect_static(folder: ModelFolder) -> StaticReport:
    """Return the report on a table of token vectors. Raises ModelError if it is broken."""
    from bertcli.engines.static_engine import read_table

    inner = folder.encoder
    weights = inner.require_weights()
    table = read_table(inner)
    tokenizer, warnings = read_tokenizer(folder)
    report = StaticReport(
        folder=folder,
        weights=weights,
        tensors=read_tensors(weights),
        tokens=table.config.vocab_size,
        width=table.config.hidden_size,
        tokenizer=tokenizer,
        warnings=warnings,
        sentence=read_sentence(folder),
        config=dict(inner.json_object(CONFIGS[0])),
    )
    report.warnings.extend(map(on_command_line, report.concerns()))
    return report


# --- one-line summary of a model ---


class ModelFacts(NamedTuple):
    """The one-line summary of a model."""

    family: str = ""  # display name of the encoder family; "" if unknown
    width: int | None = None  # dimensions of a hidden state
    license: str = ""  # name of the license file in the folder
    loads: bool = False
    problem: str = ""  # why the model does not load


def facts_of(folder: ModelFolder) -> ModelFacts:
    """Return the summary of a folder. An error is not raised, but reported as ``problem``."""
    names = sorted(os.listdir(folder.path))
    facts = ModelFacts(license=next((n for n in names if n.lower().startswith(LICENCES)), ""))
    try:
        if folder.is_static:
            table = inspect_static(folder)
            return facts._replace(family=STATIC, width=table.width, loads=True)
        place = folder.encoder
        config = place.config
        facts = facts._replace(family=config.family.title, width=config.hidden_size)
        report_on(place, "BertModel").refuse()
    except ModelError as bad:
        return facts._replace(problem=str(bad))
    return facts._replace(loads=True)


# --- `bertcli inspect --verify` ---
# The tensors are those of the architecture; all numbers of the model and its modules are finite;
# hashes match; the tokenizer fits the word embeddings.


@dataclass(frozen=True)
class VerifyCheck:
    """A check and its result; `ok` is None if there was nothing to compare with."""

    what: str
    ok: bool | None
    detail: str


def verify_model(report: FolderReport | StaticReport) -> Iterator[VerifyCheck]:
    """Yield the result of each check as soon as it is done."""
    if report.weights.format != "openvino":  # for an exported graph, only hashes are checked
        if isinstance(report, FolderReport):
            yield _loads(report)
        from bertcli.model_folder.tensors import map_tensor

        arrays = ((stored.name, map_tensor(stored)) for stored in report.tensors)
        yield _finite("every number is finite", arrays)
    yield from _modules(report)
    for path in report.weights.files:
        yield _hash(report.folder, path)
    what = "the tokenizer fits the word embeddings"
    rows = report.tokens
    if report.tokenizer is None:
        yield VerifyCheck(what, False, report.warnings[0])
    else:
        tokens = report.tokenizer["vocabulary_size"]
        fits = report.tokenizer["largest_id"] < rows
        yield VerifyCheck(what, fits, f"{tokens:,} tokens, {rows:,} embeddings")


def _loads(report: FolderReport) -> VerifyCheck:
    named = report.config.family.their_class(report.architecture)
    what = f"every tensor of {named} is present, with its shape"
    try:
        loaded = report_on(report.bert, report.architecture)
        loaded.refuse()
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    numbers = parameter_count(loaded.config, loaded.model, loaded.pooler)
    return VerifyCheck(what, True, f"{numbers:,} parameters, {loaded.dtype}")


def _modules(report: ModelReport) -> Iterator[VerifyCheck]:
    """Check that the modules and the layers of ColBERT and BGE-M3 have only finite numbers."""
    from bertcli.embedding.late_interaction import BGE, linear
    from bertcli.embedding.sentence_modules import READERS, linear_in
    from bertcli.embedding.sparse import BGE as SPARSE_BGE
    from bertcli.embedding.sparse import read_terms

    def terms(place: ModelFolder) -> Any:
        return read_terms(place, Tokenizer.load(folder))

    folder = report.folder
    readers: dict[str, Callable[[], Any]] = {}
    for module in (*folder.modules, *chain(*folder.routes.values())):
        kind = module.class_name.rpartition(".")[2]
        place = folder.subfolder(module.path)
        if kind == TERM_TABLE:
            readers[f"{module.path} ({kind})"] = partial(terms, place)
        elif kind in READERS and kind != "Normalize":
            readers[f"{module.path} ({kind})"] = partial(READERS[kind], place)
    for name in (BGE, SPARSE_BGE):
        if (folder / name).exists():
            readers[name] = partial(linear, folder / name)
    if isinstance(report, FolderReport) and COLBERT in report.config.architectures:
        layer = partial(linear_in, report.bert.weights, report.bert, "linear.")
        readers["the linear layer of ColBERT"] = layer
    for name, read in readers.items():
        fields = (pair for part in [read] for pair in vars(part()).items())  # read in _finite
        yield _finite(f"{name}: every number is finite", fields)


def _finite(what: str, values: Iterable[tuple[str, Any]]) -> VerifyCheck:
    """Check that all arrays among named values are finite, also after conversion to float32.

    The values may be read lazily; a ModelError while reading is a failed check.
    """
    import numpy as np

    infinite = []
    too_large = []
    numbers = 0
    try:
        for name, array in values:
            if not isinstance(array, np.ndarray):
                continue
            numbers += array.size
            finite = np.isfinite(array)
            if wrong := int((~finite).sum()):
                infinite.append(f"{name} ({wrong:,})")
            if array.dtype == np.float64:
                with np.errstate(over="ignore"):
                    overflows = finite & ~np.isfinite(array.astype(np.float32))
                if wrong := int(overflows.sum()):
                    too_large.append(f"{name} ({wrong:,})")
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    problems = []
    if infinite:
        problems.append(f"NaN or infinite: {shortlist(infinite)}")
    if too_large:
        problems.append(f"beyond float32: {shortlist(too_large)}")
    if problems:
        return VerifyCheck(what, False, "; ".join(problems))
    return VerifyCheck(what, numbers > 0, f"{numbers:,} numbers")


def _hash(folder: ModelFolder, path: Path) -> VerifyCheck:
    """Compare a file with its known hash.

    Sources: the default model, the manifest of `bertcli export`, the file name in the hub cache.
    """
    blob = Path(os.path.realpath(path)).name  # the hub cache names a large file by its hash
    published = blob if re.fullmatch("[0-9a-f]{64}", blob) else None
    if folder.name == DEFAULT_MODEL and path.name == "model.safetensors":
        published = DEFAULT_WEIGHTS_SHA256
    hashes = folder.json_object("manifest.json").get("sha256")  # written by `bertcli export`
    if isinstance(hashes, dict):
        published = hashes.get(path.relative_to(folder.path).as_posix()) or published
    return hash_check(path, published)


def hash_check(path: Path, published: Any) -> VerifyCheck:
    """Compare the sha256 of a file with the ``published`` one; None: nothing to compare with."""
    what = f"sha256 of {path.name}"
    if not path.is_file():
        return VerifyCheck(what, False, f"{path}: not a regular file")
    digest = sha256(path)
    if not isinstance(published, str):
        if digest == DEFAULT_WEIGHTS_SHA256:
            return VerifyCheck(what, True, f"{digest}, that of {DEFAULT_MODEL}")
        return VerifyCheck(what, None, f"{digest} (no hash to compare with)")
    same = digest == published
    return VerifyCheck(what, same, digest if same else f"{digest}, not {published}")
