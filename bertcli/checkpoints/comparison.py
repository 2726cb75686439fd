"""Whether the tensors of a checkpoint match an architecture, and how many numbers they hold.

Tensors are compared under the names of names.py, so a file of any age is compared with today's.
`load` and `inspect` both compare here. No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from bertcli.checkpoints import names, shapes
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.families.family import BASE, Family
from bertcli.models.config import BertConfig

Shape: TypeAlias = tuple[int, ...]
PARTNERS = {**names.TIED, **{first: second for second, first in names.TIED.items()}}


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
    sources = {name: partner(name, stored, tied) for name in needed}
    shapes_of = {
        source: (stored[source].model_shape, needed[name])
        for name, source in sources.items()
        if source in stored
    }
    return Comparison(
        used={name: stored[source] for name, source in sources.items() if source in stored},
        missing=tuple(name for name, source in sources.items() if source not in stored),
        misshapen={name: both for name, both in shapes_of.items() if both[0] != both[1]},
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
        keys = names.canonical(tensor.name, family, kind)
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
    return other if same and (name not in available or (tied and name in names.TIED)) else name


def ties(config: BertConfig, stored: Mapping[str, StoredTensor]) -> bool:
    """Tell whether the config ties tensors that, as far as a file has both, are of one shape."""
    return config.tie_word_embeddings and all(
        stored[a].model_shape == stored[b].model_shape for a, b in tied_pairs(stored)
    )


def tied_pairs(available: Collection[str]) -> list[tuple[str, str]]:
    """Return the two names of each weight that a file has under both."""
    return [(a, b) for a, b in names.TIED.items() if a in available and b in available]


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
    stored = {key: tensor for key, tensor in everything.items() if not names.ignored(key)}
    pooler = name != "BertModel" or "pooler" in names.heads_in(stored)
    compared = compare(expected(config, name, pooler), stored, ties(config, stored))
    dtypes: dict[str, int] = {}
    for tensor in stored.values():
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.numbers
    shared = {key for key in stored if names.TIED.get(key) in stored and config.tie_word_embeddings}
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
        heads=tuple(names.heads_in(stored)),
        renamed=len(renamed),
        dtypes=dtypes,
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
    counts: dict[str, int] = {}
    for key in keys:
        head = next((name for name, start in names.HEADS.items() if key.startswith(start)), None)
        label = head or ".".join(key.removeprefix(BASE).split(".")[:2])
        counts[label] = counts.get(label, 0) + 1
    described = [f"{label} ({number})" for label, number in counts.items()]
    more = f" and {len(described) - 4} more parts" if len(described) > 4 else ""
    return ", ".join(described[:4]) + more
