"""Whether the tensors of a checkpoint match its architecture, and how many numbers they hold.

Tensors are compared under the names of names.py, so a file of any age is compared with today's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from bertcli.checkpoints import names, shapes
from bertcli.checkpoints.tensors import StoredTensor
from bertcli.models.config import BertConfig


@dataclass(frozen=True)
class Fit:
    """How the tensors in a file differ from those that the architecture needs."""

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    misshapen: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    twice: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()  # in the file, whether the architecture uses them or not
    renamed: int = 0  # tensors with an old name
    dtypes: Mapping[str, int] = field(default_factory=dict)  # dtype -> how many numbers have it
    in_file: int = 0  # numbers in the file, buffers apart and tied tensors once


def compare(config: BertConfig, name: str, tensors: Sequence[StoredTensor]) -> Fit:
    """Compare the tensors of a checkpoint with those of the class `name`.

    BertModel needs no pooler when the file has none.
    """
    canonical = names.canonical(tensor.name for tensor in tensors)
    found: dict[str, StoredTensor] = {}
    twice = []
    for tensor in tensors:
        if (key := canonical[tensor.name]) in found:
            twice.append(key)
        if not names.ignored(key):
            found[key] = tensor
    pooler = name != "BertModel" or "pooler" in names.heads_in(found)
    needed = expected(config, name, pooler)
    dtypes: dict[str, int] = {}
    for tensor in found.values():
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.numbers
    shared = {key for key in found if names.TIED.get(key) in found} if _ties(config) else set()
    return Fit(
        missing=tuple(key for key in needed if key not in _with_ties(config, found)),
        unused=tuple(key for key in found if key not in needed),
        misshapen={
            key: (tensor.model_shape, needed[key])
            for key, tensor in found.items()
            if key in needed and tensor.model_shape != needed[key]
        },
        twice=tuple(twice),
        heads=tuple(names.heads_in(found)),
        renamed=sum(_is_renamed(old, new) for old, new in canonical.items()),
        dtypes=dtypes,
        in_file=sum(one.numbers for key, one in found.items() if key not in shared),
    )


def expected(config: BertConfig, name: str, pooler: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a class needs, under the names of names.py."""
    needed = shapes.expected(config, name)
    canonical = names.canonical(needed)
    return {
        canonical[key]: shape
        for key, shape in needed.items()
        if pooler or not shapes.is_pooler(key)
    }


def parts(config: BertConfig, name: str, pooler: bool = True) -> dict[str, int]:
    """Return part of the model -> its parameters; a tied tensor belongs to the embeddings."""
    second = shapes.tied(config, name)
    found = {"embeddings": 0, "layers": 0, "pooler": 0, "head": 0}
    for key, shape in expected(config, name, pooler).items():
        if key not in second:
            found[_part(key)] += prod(shape)
    return {part: numbers for part, numbers in found.items() if numbers}


def grouped(keys: Iterable[str]) -> str:
    """Summarise tensors: the heads and parts that they belong to, with counts."""
    counts: dict[str, int] = {}
    for key in keys:
        head = next((name for name, start in names.HEADS.items() if key.startswith(start)), None)
        label = head or ".".join(key.removeprefix(names.BASE).split(".")[:2])
        counts[label] = counts.get(label, 0) + 1
    described = [f"{label} ({number})" for label, number in counts.items()]
    more = f" and {len(described) - 4} more parts" if len(described) > 4 else ""
    return ", ".join(described[:4]) + more


def _part(key: str) -> str:
    kind = key.removeprefix(names.BASE).partition(".")[0]
    return {"embeddings": "embeddings", "encoder": "layers", "pooler": "pooler"}.get(kind, "head")


def _ties(config: BertConfig) -> bool:
    return config.tie_word_embeddings


def _with_ties(config: BertConfig, found: Iterable[str]) -> set[str]:
    """Return the available names: those in the file and those tied to them."""
    present = set(found)
    if _ties(config):
        for second, first in names.TIED.items():
            if first in present or second in present:
                present |= {first, second}
    return present


def _is_renamed(old: str, new: str) -> bool:
    return old not in (new, new.removeprefix(names.BASE))
