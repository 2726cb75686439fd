"""Compare the weights of a folder with an architecture, and map them. Does not import torch.

    weights = read_weights(ModelFolder.open("bert-base-uncased"), "BertModel")
    weights.arrays["bert.pooler.dense.weight"].shape    # (768, 768)

Tensors are compared under the canonical names of names.py, so files with old names work as well.
Both `load` and `inspect` compare here; `report_on` reads no numbers, only names, shapes and types.
Files are memory-mapped: unused tensors cost nothing, and changes to an array stay in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bertcli.errors import ModelError
from bertcli.families.family import BASE
from bertcli.formats.safetensors import StoredTensor
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.names import HEADS, TIED, canonical_names, heads_in, is_ignored
from bertcli.model_folder.shapes import Shape, expected_shapes
from bertcli.model_folder.tensors import MappedFiles, as_float32, map_bits, read_tensors
from bertcli.models.config import BertConfig

if TYPE_CHECKING:
    import numpy as np

NO_HEAD = "choose a checkpoint with that head"
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class LoadReport:
    """The tensors in the files of a folder, compared with the tensors of a class.

    Names are canonical, except in ``misplaced`` and ``unreadable``, which use the names in the
    files.
    """

    model_folder: ModelFolder = field(repr=False)
    model: str  # name of the class
    config: BertConfig = field(repr=False)  # tied only if the numbers are equal
    pooler: bool  # True if the class has BERT's pooler
    needed: Mapping[str, Shape] = field(repr=False)  # tensors of the class
    stored: Mapping[str, StoredTensor] = field(repr=False)  # tensors of the files
    # Pairs of tensors in the files that map to one tensor of the model.
    twice: Mapping[str, tuple[StoredTensor, StoredTensor]] = field(repr=False)
    dtype: str = ""  # of the loaded model, in torch's spelling; by default that of the files
    fresh: tuple[str, ...] = ()  # tensors of the head to initialise at random
    mapped_files: MappedFiles = field(default_factory=MappedFiles, repr=False)

    @property
    def folder(self) -> Path:
        """The path of the model folder."""
        return self.model_folder.path

    @cached_property
    def used(self) -> dict[str, StoredTensor]:
        """Class tensor -> stored tensor that holds its numbers.

        The two biases of a decoder are one tensor even if the two matrices are not tied.
        """
        sources = dict(self.stored)
        tied = self.config.tie_word_embeddings
        for second, first in TIED.items():
            for name, twin in ((first, second), (second, first)):
                if twin in self.stored and (tied or name.endswith(".bias")):
                    sources.setdefault(name, self.stored[twin])
            if tied and first in sources:
                sources[second] = sources[first]
        return {name: sources[name] for name in self.needed if name in sources}

    @cached_property
    def weights(self) -> dict[str, StoredTensor]:
        """The stored tensors that are weights."""
        return {name: tensor for name, tensor in self.stored.items() if not is_ignored(name)}

    @property
    def dtypes(self) -> Counter[str]:
        """The number of stored values of each dtype."""
        counts: Counter[str] = Counter()
        for tensor in self.weights.values():
            counts[tensor.dtype] += tensor.numbers
        return counts

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with tensors."""
        return tuple(sorted({tensor.file for tensor in self.stored.values()}))

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The heads in the files."""
        return tuple(heads_in(self.stored))

    @cached_property
    def spare(self) -> tuple[str, ...]:
        """Stored tensors that the class does not have."""
        return tuple(name for name in self.weights if name not in self.needed)

    @property
    def unused(self) -> tuple[str, ...]:
        """Heads in the files that the class does not have."""
        heads = heads_in(self.needed)
        return tuple(head for head in heads_in(self.spare) if head not in heads)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Tensors of the class that are not in the files."""
        absent = (name for name in self.needed if name not in self.used)
        return tuple(name for name in absent if name not in self.fresh)

    @cached_property
    def mismatched(self) -> dict[str, tuple[Shape, Shape]]:
        """Tensors whose shape differs: name -> (shape in the files, shape of the model)."""
        return {
            name: (tensor.shape, self.needed[name])
            for name, tensor in self.used.items()
            if tensor.shape != self.needed[name] and name not in self.fresh
        }

    @property
    def misplaced(self) -> tuple[str, ...]:
        """Stored tensors of BERT or of a used head that this config does not have."""
        unused_prefixes = tuple(HEADS[head] for head in self.unused)
        used_prefixes = (BASE, *(HEADS[head] for head in heads_in(self.needed)))
        names = (name for name in self.spare if name.startswith(used_prefixes))
        return tuple(
            self.stored[name].name for name in names if not name.startswith(unused_prefixes)
        )

    @property
    def unreadable(self) -> dict[str, str]:
        """Tensors that are not floating-point numbers: name -> dtype."""
        tensors = self.used.values()
        return {tensor.name: tensor.dtype for tensor in tensors if tensor.dtype not in FLOATS}

    def with_fresh_head(self) -> LoadReport:
        """Return the report of a load with a fresh head.

        Missing or mismatched tensors of the head are initialised at random. Missing tensors of BERT
        itself are still reported as missing.
        """
        prefixes = tuple(HEADS.values())
        names = (name for name in (*self.missing, *self.mismatched) if name.startswith(prefixes))
        return replace(self, fresh=tuple(names))

    def refuse(self) -> None:
        """Raise ModelError with all faults, if there are any."""
        faults = self.faults()
        if not faults:
            return
        location = self.files[0] if len(self.files) == 1 else self.folder
        hint = "config.json and the weights belong to different models, or one is incomplete"
        if heads_in(self.missing):
            hint = NO_HEAD
        raise ModelError(f"{location}: {'; '.join(faults)}", hint)

    def faults(self) -> list[str]:
        """Return the reasons why the files do not contain this model, one phrase each."""
        faults = []
        if self.missing:
            heads = ", ".join(self.heads) or "none"
            needed = shortlist([*map(self._name_in_files, self.missing)])
            their_class = self.config.family.their_class(self.model)
            faults.append(f"{their_class} needs {needed}; available heads: {heads}")
        if self.mismatched:
            shapes = [
                f"{self._name_in_files(name)} has shape {[*stored]} in the file and {[*needed]} by "
                "the config"
                for name, (stored, needed) in self.mismatched.items()
            ]
            faults.append(shortlist(shapes))
        if self.misplaced:
            faults.append(f"not part of this config: {shortlist(self.misplaced)}")
        if self.unreadable:
            tensors = [f"{name} ({dtype})" for name, dtype in self.unreadable.items()]
            faults.append(
                f"not floating-point numbers, as in quantised models: {shortlist(tensors)}"
            )
        return faults

    def _name_in_files(self, name: str) -> str:
        """Return the name of a model tensor in files of this architecture."""
        return self.config.family.their_name(name, self.model)


def shortlist(names: Collection[str]) -> str:
    """Return the first three names, and the number of the others."""
    listing = ", ".join([*names][:3])
    if len(names) > 3:
        return f"{listing} and {len(names) - 3} more"
    return listing


# --- comparison ---


def compare_tensors(
    folder: ModelFolder,
    config: BertConfig,
    architecture: str,
    tensors: Iterable[StoredTensor],
    pooler: bool | None = None,
) -> LoadReport:
    """Return a report that compares stored tensors with those of a class.

    ``pooler`` is for BertModel: by default it has one if there are weights for it.
    """
    stored: dict[str, StoredTensor] = {}
    twice = {}
    for tensor in tensors:
        names = canonical_names(tensor.name, config.family, architecture)
        for index, name in enumerate(names):
            slice_ = tensor.stacked_tensor(index, len(names))
            if name not in stored:
                stored[name] = slice_
            elif not is_ignored(name):
                twice[name] = (stored[name], slice_)
    if architecture != "BertModel":
        pooler = True
    elif pooler is None:
        pooler = "pooler" in heads_in(stored)
    base = BASE if architecture == "BertModel" else ""
    shapes = expected_shapes(config, architecture, pooler)
    needed = {base + name: shape for name, shape in shapes.items()}
    report = LoadReport(folder, architecture, config, pooler, needed, stored, twice)
    return replace(report, dtype=_widest_dtype(report.used.values()))


def _widest_dtype(tensors: Iterable[StoredTensor]) -> str:
    """Return the dtype, in torch's spelling, that holds the numbers of all tensors."""
    dtypes = {tensor.dtype for tensor in tensors}
    if "F64" in dtypes:
        return FLOATS["F64"]
    if len(dtypes) == 1:
        return FLOATS.get(dtypes.pop(), "float32")
    return "float32"


# --- numbers ---


@dataclass(frozen=True)
class Weights:
    """The complete weights of a class."""

    config: BertConfig
    architecture: str  # name of the class
    # Canonical name, with `bert.` before BERT's own tensors -> numbers: float32, float16, or uint16
    # (the bits of bfloat16). A tied tensor is one array under both names.
    arrays: Mapping[str, np.ndarray]


def report_on(
    folder: ModelFolder,
    architecture: str | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
) -> LoadReport:
    """Return a report that compares the tensors of a folder with a class, without reading numbers.

    ``architecture`` is the class, by default the first one in config.json. ``pooler`` is for
    BertModel: by default it has one if there are weights for it. ``labels`` replace those of the
    config. Raises ModelError if the files cannot be read at all, or the config contradicts itself.
    """
    folder = folder.encoder
    config = folder.config
    if labels:
        config = config.with_labels(labels)
    if architecture is None:
        architecture = next(iter(config.architectures), "BertModel")
    if pooler and not config.structure.pooler:
        title = config.family.title
        raise ModelError(f"{folder}: models of the family {title} have no pooler", "pool otherwise")
    mapped_files = MappedFiles()
    tensors = read_tensors(folder.require_weights(), mapped_files)
    try:
        config.refuse_unbuildable(architecture)
        report = compare_tensors(folder, config, architecture, tensors, pooler)
        report = replace(report, mapped_files=mapped_files)
    except ModelError as bad:  # that error does not name the file
        raise ModelError(f"{folder.config_file}: {bad.marked}", bad.marked_hint) from None
    for first, second in report.twice.values():
        raise ModelError(
            f"{second.file}: {first.name} and {second.name} are the same tensor of the model"
        )
    # As in transformers, the numbers are checked: if they differ, the config's tie is ignored.
    tied = architecture != "BertModel" and report.config.tie_word_embeddings
    if tied and not _tied_numbers_agree(report):
        untied = replace(report.config, tie_word_embeddings=False)
        report = replace(report, config=untied)
    return report


def _tied_numbers_agree(report: LoadReport) -> bool:
    """Return False if the files have a tied weight under both names, with different numbers."""
    import numpy as np

    stored = report.stored
    for second, first in TIED.items():
        if first not in stored or second not in stored:
            continue
        if stored[first].dtype != stored[second].dtype:
            return False
        first_bits = map_bits(stored[first], report.mapped_files)
        second_bits = map_bits(stored[second], report.mapped_files)
        if not np.array_equal(first_bits, second_bits):
            return False
    return True


def read_weights(folder: ModelFolder, architecture: str, pooler: bool | None = None) -> Weights:
    """Return the memory-mapped weights of a class; arguments and errors as for `report_on`.

    Raises ModelError, with file and tensors, unless every tensor of the class is present in its
    shape.
    """
    import numpy as np

    report = report_on(folder, architecture, pooler)
    report.refuse()
    arrays: dict[StoredTensor, np.ndarray] = {}
    for stored in report.used.values():
        if stored not in arrays:
            array = map_bits(stored, report.mapped_files)
            if stored.dtype == "F64":
                arrays[stored] = as_float32(array, stored)
            else:
                arrays[stored] = np.require(array, requirements=("C", "A"))
    arrays_by_name = {name: arrays[stored] for name, stored in report.used.items()}
    return Weights(report.config, architecture, arrays_by_name)
