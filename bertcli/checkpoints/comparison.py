"""Whether the tensors of a checkpoint match an architecture, and how many numbers they hold.

Tensors are compared under the names of names.py, so a file of any age is compared with today's.
`load` and `inspect` both compare here; a load gets a report, which refuses. No torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TypeAlias

from bertcli.checkpoints import shapes
from bertcli.checkpoints.names import (
    HEADS,
    TIED,
    canonical,
    classes_in,
    heads_in,
    ignored,
    name_in,
)
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.errors import ModelError, counted
from bertcli.families.bert import BERT
from bertcli.families.family import BASE, Family
from bertcli.models.config import BertConfig

Shape: TypeAlias = tuple[int, ...]
PARTNERS = {**TIED, **{first: second for second, first in TIED.items()}}


@dataclass(frozen=True)
class Comparison:
    """The tensors of an architecture and those of a checkpoint, all under canonical names."""

    used: Mapping[str, StoredTensor]  # the architecture's name -> where its numbers are
    missing: tuple[str, ...]
    misshapen: Mapping[str, tuple[Shape, Shape]]  # in the file, in the architecture
    spare: tuple[str, ...]  # in the file alone


def compare(
    needed: Mapping[str, Shape], stored: Mapping[str, StoredTensor], tied: bool
) -> Comparison:
    """Compare an architecture with a checkpoint, whose words are ``tied`` to its predictions."""
    used = {
        name: stored[source] for name in needed if (source := partner(name, stored, tied)) in stored
    }
    return Comparison(
        used=used,
        missing=tuple(name for name in needed if name not in used),
        misshapen={
            name: (tensor.model_shape, needed[name])
            for name, tensor in used.items()
            if tensor.model_shape != needed[name]
        },
        spare=tuple(name for name in stored if name not in needed),
    )


def by_canonical_name(
    tensors: Iterable[StoredTensor], family: Family, kind: str
) -> tuple[dict[str, StoredTensor], dict[str, tuple[StoredTensor, StoredTensor]]]:
    """Return tensors by their canonical names, and the pairs of them that have one name.

    ``kind`` is the class that is read.
    """
    stored: dict[str, StoredTensor] = {}
    twice = {}
    for tensor in tensors:
        keys = canonical(tensor.name, family, kind)
        for place, key in enumerate(keys):
            part = tensor._replace(part=(place, len(keys)))
            if (other := stored.setdefault(key, part)) is not part:
                twice[key] = other, part
    return stored, twice


def partner(name: str, available: Collection[str], tied: bool) -> str:
    """Return the canonical name to read a tensor from: its own, or that of its tied partner.

    The two biases of a decoder are one even where the two matrices are not.
    """
    other = PARTNERS.get(name, name)
    same = other in available and (tied or name.endswith(".bias"))
    return other if same and (name not in available or (tied and name in TIED)) else name


def ties(config: BertConfig, stored: Mapping[str, StoredTensor]) -> bool:
    """Tell whether the config ties tensors that, as far as a file has both, are of one shape."""
    return config.tie_word_embeddings and all(
        stored[a].model_shape == stored[b].model_shape for a, b in tied_pairs(stored)
    )


def tied_pairs(available: Collection[str]) -> list[tuple[str, str]]:
    """Return the two names of each weight that a file has under both."""
    return [(a, b) for a, b in TIED.items() if a in available and b in available]


@dataclass(frozen=True)
class Fit:
    """How the tensors in a file differ from those that the architecture needs."""

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    misshapen: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)
    twice: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()  # in the file, whether the architecture uses them or not
    renamed: int = 0  # tensors with an old name
    dtypes: Mapping[str, int] = field(default_factory=dict)  # dtype -> how many numbers have it
    in_file: int = 0  # numbers in the file, buffers apart and tied tensors once


def fit(config: BertConfig, name: str, tensors: Sequence[StoredTensor]) -> Fit:
    """Compare the tensors of a checkpoint with those of the class `name`.

    BertModel needs no pooler when the file has none.
    """
    everything, twice = by_canonical_name(tensors, config.family, name)
    stored = {key: tensor for key, tensor in everything.items() if not ignored(key)}
    pooler = name != "BertModel" or "pooler" in heads_in(stored)
    compared = compare(expected(config, name, pooler), stored, ties(config, stored))
    dtypes: Counter[str] = Counter()
    for tensor in stored.values():
        dtypes[tensor.dtype] += tensor.numbers
    shared = {key for key in stored if TIED.get(key) in stored and config.tie_word_embeddings}
    renamed = {  # those that would be saved under another name today
        tensor.name
        for key, tensor in everything.items()
        if tensor.name not in {config.family.theirs(key, kind) for kind in (name, "BertModel", "")}
    }
    return Fit(
        missing=compared.missing,
        unused=compared.spare,
        misshapen=compared.misshapen,
        twice=tuple(key for key in twice if key in stored),
        heads=tuple(heads_in(stored)),
        renamed=len(renamed),
        dtypes=dict(dtypes),
        in_file=sum(tensor.numbers for key, tensor in stored.items() if key not in shared),
    )


def expected(config: BertConfig, name: str, pooler: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a class needs, under the names of names.py."""
    base = BASE if name == "BertModel" else ""
    return {base + key: shape for key, shape in shapes.expected(config, name, pooler).items()}


def parts(config: BertConfig, name: str, pooler: bool = True) -> dict[str, int]:
    """Return part of the model -> its parameters; a tied tensor belongs to the embeddings."""
    second = shapes.tied(config, name)
    named = {"embeddings": "embeddings", "encoder": "layers", "pooler": "pooler"}
    counts = {"embeddings": 0, "layers": 0, "pooler": 0, "head": 0}
    for key, shape in expected(config, name, pooler).items():
        if key not in second:
            kind = key.removeprefix(BASE).partition(".")[0]
            counts[named.get(kind, "head")] += prod(shape)
    return {part: numbers for part, numbers in counts.items() if numbers}


def grouped(keys: Iterable[str]) -> str:
    """Summarise tensors: the heads and parts that they belong to, with counts."""
    counts = Counter(
        next(
            (head for head, start in HEADS.items() if key.startswith(start)),
            ".".join(key.removeprefix(BASE).split(".")[:2]),
        )
        for key in keys
    )
    described = ", ".join(f"{label} ({number})" for label, number in [*counts.items()][:4])
    return described + (f" and {len(counts) - 4} more parts" if len(counts) > 4 else "")


CHOICE = "BertForMultipleChoice"
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LAYER = re.compile(r"bert\.encoder\.layer\.(\d+)\.")


@dataclass(frozen=True)
class LoadReport:
    """What a load found.

    Tensors are named as in the files; missing, mismatched and fresh ones as in the model.
    """

    folder: Path
    model: str  # name of the class
    dtype: str  # as torch calls it; of the model, which is that of the files unless asked otherwise
    files: tuple[Path, ...]
    heads: tuple[str, ...]  # in the files
    unused: tuple[str, ...] = ()  # heads in the files that the class does not have
    missing: tuple[str, ...] = ()
    mismatched: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)  # file's, model's
    misplaced: tuple[str, ...] = ()  # of BERT or of a head in use, but not of this config
    unexpected: tuple[str, ...] = ()  # of something that is not BERT
    unreadable: Mapping[str, str] = field(default_factory=dict)  # name -> its type
    layers: tuple[int, int] = (0, 0)  # in the files, in the config
    classes: tuple[str, ...] = ()  # that the heads in the files allow
    fresh: tuple[str, ...] = ()  # of the head: not read, but initialised at random
    family: Family = BERT

    @property
    def complete(self) -> bool:
        """Whether the files hold exactly this model."""
        return not (self.missing or self.mismatched or self.misplaced or self.unreadable)

    def with_fresh_head(self) -> LoadReport:
        """Return the report of a load that initialises what a head lacks, or has for other labels.

        What BERT itself lacks is still missing.
        """
        heads = tuple(name_in(True, start) for start in HEADS.values())
        fresh = [name for name in (*self.missing, *self.mismatched) if name.startswith(heads)]
        return replace(
            self,
            fresh=tuple(fresh),
            missing=tuple(name for name in self.missing if name not in fresh),
            mismatched={name: both for name, both in self.mismatched.items() if name not in fresh},
        )

    def refuse(self) -> None:
        """Raise a ModelError that names all that is wrong, unless the report is complete."""
        if self.complete:
            return
        where = self.files[0] if len(self.files) == 1 else self.folder
        raise ModelError(f"{where}: {'; '.join(self.faults())}", self._hint())

    def faults(self) -> list[str]:
        """List why the files do not hold this model, one phrase each."""
        faults = []
        inside, described = self.layers
        if inside != described:
            faults.append(f"{counted(inside, 'layer')} in the weights, {described} by the config")
        if self.missing:
            heads = ", ".join(self.heads) or "none"
            needed = _some([*map(self._in_files, self.missing)])
            named = self.family.their_class(self.model)
            faults.append(f"{named} needs {needed}; available heads: {heads}")
        if self.mismatched:
            shapes = [
                f"{self._in_files(name)} has shape {[*inside]} in the file and {[*described]} by "
                "the config"
                for name, (inside, described) in self.mismatched.items()
            ]
            faults.append(_some(shapes))
        if self.misplaced:
            faults.append(f"not part of this config: {_some(self.misplaced)}")
        if self.unreadable:
            types = [f"{name} ({kind})" for name, kind in self.unreadable.items()]
            faults.append(f"not floating-point numbers: {_some(types)}")
        return faults

    def _in_files(self, name: str) -> str:
        """Return how the files of this class call a tensor of the model."""
        base = BASE if self.model == "BertModel" else ""
        return self.family.theirs(base + name, self.model)

    def _hint(self) -> str:
        wrong = {*self.mismatched, *self.misplaced}
        if self.unreadable:
            return "quantised weights are not supported; use the original model"
        if wrong and all(name.endswith(("classifier.weight", "classifier.bias")) for name in wrong):
            return "id2label in config.json must have as many labels as the classifier"
        heads = tuple(start for head, start in HEADS.items() if head not in self.heads)
        if not wrong and all(name.startswith((*heads, "pooler.")) for name in self.missing):
            return f"these weights can be loaded as {', '.join(self.classes)}"
        return "config.json and the weights belong to different models, or one is incomplete"


def _some(names: Collection[str]) -> str:
    others = len(names) - 3
    return ", ".join([*names][:3]) + (f" and {others} more" if others > 0 else "")


# --- making one ---


def report_on(
    folder: Path,
    config: BertConfig,
    model: str,
    needed: Mapping[str, Shape],
    stored: Mapping[str, StoredTensor],
) -> LoadReport:
    """Report on canonical names and shapes of a model's tensors and of those in the files."""
    headed = not all(name.startswith(BASE) for name in needed)
    compared = compare(needed, stored, config.tie_word_embeddings)
    types = {tensor.name: tensor.dtype for tensor in compared.used.values()}
    heads = heads_in(needed)
    unused = tuple(head for head in heads_in(compared.spare) if head not in heads)
    foreign, kin = tuple(HEADS[head] for head in unused), (BASE, *(HEADS[head] for head in heads))
    odd = [name for name in compared.spare if not (name.startswith(foreign) or ignored(name))]
    classes = classes_in(stored, config)
    scores = stored.get("classifier.weight")
    if CHOICE in classes and (scores is None or scores.model_shape[:1] != (1,)):
        classes.remove(CHOICE)  # which alone has one score
    layers = {match[1] for name in stored if (match := LAYER.match(name))}
    return LoadReport(
        folder=folder,
        model=model,
        dtype=_widest(types.values()),
        files=tuple(sorted({tensor.file for tensor in stored.values()})),
        heads=tuple(heads_in(stored)),
        unused=unused,
        missing=tuple(name_in(headed, name) for name in compared.missing),
        mismatched={name_in(headed, name): both for name, both in compared.misshapen.items()},
        misplaced=tuple(stored[name].name for name in odd if name.startswith(kin)),
        unexpected=tuple(stored[name].name for name in odd if not name.startswith(kin)),
        unreadable={name: kind for name, kind in types.items() if kind not in FLOATS},
        layers=(len(layers), config.distinct_layers),
        classes=tuple(map(config.family.their_class, classes)),
        family=config.family,
    )


def _widest(types: Collection[str]) -> str:
    """Return the narrowest type that holds the numbers of all, as torch promotes them."""
    halves = {kind for kind in types if kind in ("F16", "BF16")}
    if "F64" in types:
        return "float64"
    if len(halves) != 1 or "F32" in types:
        return "float32"
    return FLOATS[halves.pop()]
