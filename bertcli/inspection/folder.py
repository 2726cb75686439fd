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
from typing import Any, NamedTuple, TypeAlias

from bertcli.embedding.options import (
    COLBERT,
    SentenceSettings,
    read_sentence_settings,
    required_option,
)
from bertcli.errors import ModelError, on_command_line, option
from bertcli.families.structure import HEAD_PARTS
from bertcli.formats.safetensors import StoredTensor
from bertcli.io.paths import sha256
from bertcli.model_folder.files import (
    CONFIGS,
    GRAPH_FORMATS,
    STATIC,
    TERM_TABLE,
    WEIGHTS,
    WeightFiles,
)
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL, DEFAULT_WEIGHTS_SHA256, describe_graph
from bertcli.model_folder.shapes import expected_shapes, parameter_count, tied_names
from bertcli.model_folder.tensors import read_tensors
from bertcli.model_folder.weights import LoadReport, compare_tensors, report_on, shortlist
from bertcli.models.config import BertConfig
from bertcli.tokenizing.tokenizer import Tokenizer

FORMATS_WITHOUT_TENSORS = ("none", *GRAPH_FORMATS)  # formats without named tensors
EXPORTED = "an exported graph instead of weights: only embed and the like can run it"
FORMAT_WARNINGS = {
    "none": "no weights in this folder: it can only tokenize",
    "pytorch": "pytorch_model.bin instead of safetensors: slower to load, and a pickle",
    "tensorflow": "a TensorFlow checkpoint instead of safetensors",
    **dict.fromkeys(GRAPH_FORMATS, EXPORTED),
}
LICENCES = ("license", "licence", "copying")  # prefixes of file names, lower case
COLBERT_PROJECTION = "linear.weight"  # the projection of token vectors in ColBERT's own folders


def tokenizer_details(tokenizer: Tokenizer, folder: ModelFolder) -> dict[str, Any]:
    """Return the details of the tokenizer of a folder, as JSON values.

    ``lower_case`` is None if unknown; ``types_of_pairs`` is the highest token type of a text pair.
    """
    core = tokenizer.core
    vocabulary = core.get_vocab()
    file = folder.encoder.tokenizer_files[0]
    added = {token.content: index for index, token in core.get_added_tokens_decoder().items()}
    lower_case = getattr(core.normalizer, "lowercase", None)
    if lower_case is None:
        lower_case = folder.tokenizer_settings.switch("do_lower_case")
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
        "lower_case": lower_case,
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
    """What the report of `bertcli inspect` has for all models."""

    folder: ModelFolder
    weights: WeightFiles
    tensors: Sequence[StoredTensor]
    tokens: int  # number of word embeddings
    tokenizer: dict[str, Any] | None
    sentence: SentenceSettings
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
            vocabulary_size = self.tokenizer["vocabulary_size"]
            largest_id = self.tokenizer["largest_id"]
            embeddings = f"{self.tokens:,} word embeddings"
            if largest_id >= self.tokens:
                yield (
                    f"{vocabulary_size:,} tokens, but only {embeddings}: "
                    f"this model can only tokenize (ids go up to {largest_id:,})"
                )
            elif vocabulary_size < self.tokens:
                yield f"{vocabulary_size:,} tokens for {embeddings}: the last ones are never used"

    def _common_json(
        self,
        before_weights: Mapping[str, Any],
        dtypes: Mapping[str, int],
        after_weights: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what all reports have, as JSON values, with additions before and after weights.

        ``dtypes`` are the numbers of stored values of each dtype.
        """
        folder = self.folder
        sentence = self.sentence
        weights = self.weights
        sizes = {path.name: path.stat().st_size for path in weights.files}
        modules = [{"kind": module.class_name, "path": module.path} for module in sentence.of_texts]
        return {
            "model": folder.name,
            "path": str(folder.path),
            "source": folder.source,
            "revision": folder.revision,
            **before_weights,
            "weights": {
                "format": weights.format,
                "files": sizes,
                "bytes": sum(sizes.values()),
                "dtypes": dtypes,
                "tensors": len(self.tensors) or None,
            },
            **after_weights,
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


ShapeAndCount: TypeAlias = tuple[tuple[int, ...], int]  # of a tensor: shape and parameter count


def _node(name: str, tensors: Mapping[str, ShapeAndCount]) -> Node:
    """Return the node of a submodule with these tensors, whose names start below it."""
    own_shapes = {}
    child_tensors: dict[str, dict[str, ShapeAndCount]] = {}
    for tensor_name, (shape, count) in tensors.items():
        child_name, _, name_in_child = tensor_name.partition(".")
        if name_in_child:
            child_tensors.setdefault(child_name, {})[name_in_child] = (shape, count)
        else:
            own_shapes[tensor_name] = shape
    children: list[Node] = []
    for child_name, inner_tensors in child_tensors.items():
        child = _node(child_name, inner_tensors)
        if children and _are_equal_layers(children[-1], child):
            children[-1] = _with_one_more(children[-1], child.name)
        else:
            children.append(child)
    total = sum(count for _, count in tensors.values())
    return Node(name, own_shapes, total, tuple(children))


def _are_equal_layers(previous: Node, child: Node) -> bool:
    """Return True for neighbours that are named by numbers and have equal tensors."""
    if not (child.name.isdecimal() and previous.name[:1].isdecimal()):
        return False
    return (previous.shapes, previous.children) == (child.shapes, child.children)


def _with_one_more(node: Node, last_name: str) -> Node:
    """Return a node that stands for one more equal submodule: "0" or "0-3" becomes "0-4"."""
    first_name = node.name.partition("-")[0]
    return replace(node, name=f"{first_name}-{last_name}", times=node.times + 1)


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
        model = {
            "family": family.title,
            "architecture": {"name": self.architecture, "declared": declared},
            "parameters": self.parameters,
        }
        return {
            **self._common_json(model, comparison.dtypes, {"fit": fit}),
            "config": self.config.to_dict(),
            "tensors": self.tensor_rows if self.weights.files else None,
        }

    def concerns(self) -> Iterator[str]:
        """Yield warnings about the config, the weights and the sentence modules."""
        config = self.config
        if config.architectures and config.architectures[0] not in (*HEAD_PARTS, COLBERT):
            name = config.architectures[0]
            yield f"the architecture {name} is unknown: only its {config.family.title} can be used"
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
        if self.weights.format not in FORMATS_WITHOUT_TENSORS:
            yield from self._weight_concerns()
        if needed := required_option(self.folder):
            yield f"the model has no text vectors: embed requires {needed}"
        else:
            for name in self.sentence.unknown:
                yield f"sentence module {name} is unknown: embed requires {option('pooling')}"
        limit = self.sentence.max_length
        position_count = config.most_tokens
        if limit is not None and limit > position_count:
            yield f"max_seq_length is {limit}, but the model has {position_count} positions"

    def _weight_concerns(self) -> Iterator[str]:
        """Yield warnings about tensors that are missing, unused, misplaced or stored twice."""
        config = self.config
        comparison = self.comparison
        if not comparison.pooler and config.structure.pooler:
            yield "no pooler weights: pooler output is not available"
        yield from comparison.faults()
        used_elsewhere = COLBERT_PROJECTION if COLBERT in config.architectures else ""
        in_faults = {*comparison.misplaced}
        unused = [
            name
            for name in comparison.spare
            if name != used_elsewhere and comparison.stored[name].name not in in_faults
        ]
        if unused:
            their_class = config.family.their_class(self.architecture)
            yield f"in the file, but no part of {their_class}: {shortlist(unused)}"
        if comparison.twice:
            yield f"stored under two names: {shortlist(comparison.twice)}"

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
    encoder = folder.encoder
    config = folder.config
    weights = encoder.weights
    tensors = []
    if weights.format not in FORMATS_WITHOUT_TENSORS:
        tensors = read_tensors(weights)
    sentence = read_sentence_settings(folder, pooling="none")
    try:
        comparison = _comparison(encoder, tensors, is_sentence_model=bool(sentence.modules))
        counts = {
            "total": parameter_count(config, comparison.model, comparison.pooler),
            "without_pooler": parameter_count(config, "BertModel", False),
        }
    except ModelError as bad:
        raise ModelError(f"{encoder.config_file}: {bad.marked}", bad.marked_hint) from None
    tokenizer, warnings = read_tokenizer(encoder)
    report = FolderReport(
        folder=folder,
        bert=encoder,
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


def _comparison(
    encoder: ModelFolder, tensors: Sequence[StoredTensor], *, is_sentence_model: bool
) -> LoadReport:
    """Return the comparison of stored tensors with the architecture in config.json.

    An unknown architecture is compared as a BertModel.
    """
    config = encoder.config
    architecture = config.architectures[0] if config.architectures else "BertModel"
    if architecture not in HEAD_PARTS:
        architecture = "BertModel"
    if encoder.weights.format in FORMATS_WITHOUT_TENSORS:  # none can be missing
        comparison = compare_tensors(encoder, config, architecture, [], True)
        return replace(comparison, needed={})
    comparison = compare_tensors(encoder, config, architecture, tensors)
    if comparison.missing and is_sentence_model:
        # Some sentence models declare the architecture they were trained from, but lack its head.
        headless = compare_tensors(encoder, config, "BertModel", tensors)
        if not headless.missing:
            return headless
    return comparison


def shape_text(shape: Iterable[Any]) -> str:
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
        model = {
            "architecture": {"name": STATIC, "declared": [], "library": self.sentence.static},
            "parameters": {"total": dtypes.total()},
            "table": {"tokens": self.tokens, "dimensions": self.width},
        }
        return {
            **self._common_json(model, dtypes, {}),
            "config": self.config,
            "tensors": self.tensor_rows,
        }


def inspect_static(folder: ModelFolder) -> StaticReport:
    """Return the report on a table of token vectors. Raises ModelError if it is broken."""
    from bertcli.engines.static_engine import read_table

    table_folder = folder.encoder
    weights = table_folder.require_weights()
    table = read_table(table_folder)
    tokenizer, warnings = read_tokenizer(folder)
    report = StaticReport(
        folder=folder,
        weights=weights,
        tensors=read_tensors(weights),
        tokens=table.config.vocab_size,
        width=table.config.hidden_size,
        tokenizer=tokenizer,
        warnings=warnings,
        sentence=read_sentence_settings(folder),
        config=dict(table_folder.json_object(CONFIGS[0])),
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
    licences = [name for name in names if name.lower().startswith(LICENCES)]
    facts = ModelFacts(license=licences[0] if licences else "")
    try:
        if folder.is_static:
            table = inspect_static(folder)
            return facts._replace(family=STATIC, width=table.width, loads=True)
        config = folder.encoder.config
        facts = facts._replace(family=config.family.title, width=config.hidden_size)
        report_on(folder.encoder, "BertModel").refuse()
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
    if report.weights.format not in GRAPH_FORMATS:  # only hashes are checked of a graph
        if isinstance(report, FolderReport):
            yield _check_tensors(report)
        from bertcli.model_folder.tensors import map_tensor

        arrays = ((stored.name, map_tensor(stored)) for stored in report.tensors)
        yield _check_finite("every number is finite", arrays)
    yield from _check_modules(report)
    for path in report.weights.files:
        yield hash_check(path, _published_hash(report.folder, path))
    yield _check_tokenizer(report)


def _check_tokenizer(report: ModelReport) -> VerifyCheck:
    """Check that each token id has a word embedding."""
    what = "the tokenizer fits the word embeddings"
    if report.tokenizer is None:
        return VerifyCheck(what, False, report.warnings[0])
    vocabulary_size = report.tokenizer["vocabulary_size"]
    fits = report.tokenizer["largest_id"] < report.tokens
    return VerifyCheck(what, fits, f"{vocabulary_size:,} tokens, {report.tokens:,} embeddings")


def _check_tensors(report: FolderReport) -> VerifyCheck:
    """Check that the files have all tensors of the architecture, in the right shapes."""
    their_class = report.config.family.their_class(report.architecture)
    what = f"every tensor of {their_class} is present, with its shape"
    try:
        comparison = report_on(report.bert, report.architecture)
        comparison.refuse()
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    count = parameter_count(comparison.config, comparison.model, comparison.pooler)
    return VerifyCheck(what, True, f"{count:,} parameters, {comparison.dtype}")


def _check_modules(report: ModelReport) -> Iterator[VerifyCheck]:
    """Check that the modules and the layers of ColBERT and BGE-M3 have only finite numbers."""
    from bertcli.embedding.late_interaction import BGE_LAYER, read_pickled_linear
    from bertcli.embedding.sentence_modules import MODULE_READERS, read_linear
    from bertcli.embedding.sparse import BGE_LAYER as SPARSE_BGE_LAYER
    from bertcli.embedding.sparse import read_term_table

    def read_table(module_folder: ModelFolder) -> Any:
        return read_term_table(module_folder, Tokenizer.load(folder))

    folder = report.folder
    readers: dict[str, Callable[[], Any]] = {}  # label -> reads the module
    for module in (*folder.modules, *chain(*folder.routes.values())):
        class_name = module.class_name.rpartition(".")[2]
        module_folder = folder.subfolder(module.path)
        label = f"{module.path} ({class_name})"
        if class_name == TERM_TABLE:
            readers[label] = partial(read_table, module_folder)
        elif class_name in MODULE_READERS and class_name != "Normalize":
            readers[label] = partial(MODULE_READERS[class_name], module_folder)
    for name in (BGE_LAYER, SPARSE_BGE_LAYER):
        if (folder / name).exists():
            readers[name] = partial(read_pickled_linear, folder / name)
    if isinstance(report, FolderReport) and COLBERT in report.config.architectures:
        layer = partial(read_linear, report.bert.weights, report.bert, "linear.")
        readers["the linear layer of ColBERT"] = layer
    for label, read_module in readers.items():
        yield _check_finite(f"{label}: every number is finite", _attributes(read_module))


def _attributes(read_module: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
    """Read a module when the first value is requested; yield its attributes."""
    yield from vars(read_module()).items()


def _check_finite(what: str, values: Iterable[tuple[str, Any]]) -> VerifyCheck:
    """Check that all arrays among named values are finite, also after conversion to float32.

    The values may be read lazily; a ModelError while reading is a failed check.
    """
    import numpy as np

    infinite = []
    too_large = []
    count = 0
    try:
        for name, array in values:
            if not isinstance(array, np.ndarray):
                continue
            count += array.size
            is_finite = np.isfinite(array)
            if infinite_count := int((~is_finite).sum()):
                infinite.append(f"{name} ({infinite_count:,})")
            if array.dtype == np.float64:
                with np.errstate(over="ignore"):
                    overflows = is_finite & ~np.isfinite(array.astype(np.float32))
                if overflow_count := int(overflows.sum()):
                    too_large.append(f"{name} ({overflow_count:,})")
    except ModelError as failed:
        return VerifyCheck(what, False, str(failed))
    problems = []
    if infinite:
        problems.append(f"NaN or infinite: {shortlist(infinite)}")
    if too_large:
        problems.append(f"beyond float32: {shortlist(too_large)}")
    if problems:
        return VerifyCheck(what, False, "; ".join(problems))
    return VerifyCheck(what, count > 0, f"{count:,} numbers")


def _published_hash(folder: ModelFolder, path: Path) -> Any:
    """Return the known sha256 of a file of a model, or None.

    Sources: the manifest of `bertcli export`, the default model, the file name in the hub cache.
    """
    blob = Path(os.path.realpath(path)).name  # the hub cache names a large file by its hash
    published = blob if re.fullmatch("[0-9a-f]{64}", blob) else None
    if folder.name == DEFAULT_MODEL and path.name == "model.safetensors":
        published = DEFAULT_WEIGHTS_SHA256
    hashes = folder.json_object("manifest.json").get("sha256")  # written by `bertcli export`
    if isinstance(hashes, dict):
        published = hashes.get(path.relative_to(folder.path).as_posix()) or published
    return published


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
    if digest != published:
        return VerifyCheck(what, False, f"{digest}, not {published}")
    return VerifyCheck(what, True, digest)
