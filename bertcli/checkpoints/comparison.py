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
    wanted: Mapping[str, Shape], found: Mapping[str, StoredTensor], tied: bool
) -> Comparison:
    """Compare an architecture with a checkpoint, whose words are ``tied`` to its predictions."""
    sources = {name: partner(name, found, tied) for name in wanted}
    shapes_of = {
        source: (found[source].model_shape, wanted[name])
        for name, source in sources.items()
        if source in found
    }
    return Comparison(
        used={name: found[source] for name, source in sources.items() if source in found},
        missing=tuple(name for name, source in sources.items() if source not in found),
        misshapen={name: both for name, both in shapes_of.items() if both[0] != both[1]},
        spare=tuple(name for name in found if name not in wanted),
    )


def by_canonical_name(
    tensors: Iterable[StoredTensor], family: Family, kind: str
) -> tuple[dict[str, StoredTensor], dict[str, tuple[StoredTensor, StoredTensor]]]:
    """Return tensors by their canonical names, and the pairs of them that have one name.

    ``kind`` is the class that is read.
    """
    found: dict[str, StoredTensor] = {}
    twice = {}
    for tensor in tensors:
        keys = names.canonical(tensor.name, family, kind)
        for place, key in enumerate(keys):
            one = tensor._replace(part=(place, len(keys)))
            if (other := found.setdefault(key, one)) is not one:
                twice[key] = other, one
    return found, twice


def partner(name: str, found: Collection[str], tied: bool) -> str:
    """Return the canonical name to read a tensor from: its own, or that of its tied partner.

    The two biases of a decoder are one even where the two matrices are not.
    """
    other = PARTNERS.get(name, name)
    one = other in found and (tied or name.endswith(".bias"))
    return other if one and (name not in found or (tied and name in names.TIED)) else name


def ties(config: BertConfig, found: Mapping[str, StoredTensor]) -> bool:
    """Tell whether the config ties tensors that, as far as a file has both, are of one shape."""
    return config.tie_word_embeddings and all(
        found[a].model_shape == found[b].model_shape for a, b in tied_pairs(found)
    )


def tied_pairs(found: Collection[str]) -> list[tuple[str, str]]:
    """Return the two names of each weight that a file has under both."""
    return [(a, b) for a, b in names.TIED.items() if a in found and b in found]


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
    found = {key: one for key, one in everything.items() if not names.ignored(key)}
    pooler = name != "BertModel" or "pooler" in names.heads_in(found)
    compared = compare(expected(config, name, pooler), found, ties(config, found))
    dtypes: dict[str, int] = {}
    for tensor in found.values():
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.numbers
    shared = {key for key in found if names.TIED.get(key) in found and config.tie_word_embeddings}
    renamed = {  # those that would be saved under another name today
        one.name
        for key, one in everything.items()
        if one.name not in {config.family.theirs(key, kind) for kind in (name, "BertModel", "")}
    }
    return Fit(
        missing=compared.missing,
        unused=compared.spare,
        misshapen=compared.misshapen,
        twice=tuple(key for key in twice if key in found),
        heads=tuple(names.heads_in(found)),
        renamed=len(renamed),
        dtypes=dtypes,
        in_file=sum(one.numbers for key, one in found.items() if key not in shared),
    )


def expected(config: BertConfig, name: str, pooler: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a class needs, under the names of names.py."""
    base = BASE if name == "BertModel" else ""
    return {base + key: shape for key, shape in shapes.expected(config, name, pooler).items()}


def parts(config: BertConfig, name: str, pooler: bool = True) -> dict[str, int]:
    """Return part of the model -> its parameters; a tied tensor belongs to the embeddings."""
    second = shapes.tied(config, name)
    named = {"embeddings": "embeddings", "encoder": "layers", "pooler": "pooler"}
    found = {"embeddings": 0, "layers": 0, "pooler": 0, "head": 0}
    for key, shape in expected(config, name, pooler).items():
        if key not in second:
            kind = key.removeprefix(BASE).partition(".")[0]
            found[named.get(kind, "head")] += prod(shape)
    return {part: numbers for part, numbers in found.items() if numbers}


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
