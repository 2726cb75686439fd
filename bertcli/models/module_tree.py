"""The modules of a BERT as a tree with shapes and numbers, built without memory for weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import nn

from bertcli.models.config import BertConfig
from bertcli.models.heads import ARCHITECTURES


@dataclass(frozen=True)
class Node:
    """A module: its name and class, its own tensors, and the parameters in and below it.

    Equal neighbours share a node: their names are a range, such as 0-11, and `times` is their
    count; all numbers are those of one of them.
    """

    name: str
    kind: str
    detail: str  # what print(model) shows in brackets, where it has no tensors that say it
    shapes: dict[str, tuple[int, ...]]
    parameters: int
    children: tuple[Node, ...]
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the tree as JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "detail": self.detail,
            "times": self.times,
            "parameters": self.parameters,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "children": [child.to_json() for child in self.children],
        }


def module_tree(config: BertConfig, name: str, pooler: bool = True) -> Node:
    """Return the tree of the class `name`; `pooler` is for BertModel. A tied tensor counts once."""
    with torch.device("meta"):
        made: Callable[..., nn.Module] = ARCHITECTURES[name]
        model = made(config, pooler) if name == "BertModel" else made(config)
    return _node("", model)


def _node(name: str, module: nn.Module) -> Node:
    shapes = {key: tuple(one.shape) for key, one in module.named_parameters(recurse=False)}
    children = tuple(_merged(_node(key, child) for key, child in module.named_children()))
    return Node(
        name=name,
        kind=type(module).__name__,
        detail="" if shapes or children else module.extra_repr(),
        shapes=shapes,
        parameters=sum(one.numel() for one in module.parameters()),
        children=children,
    )


def _merged(nodes: Iterator[Node]) -> Iterator[Node]:
    """Merge neighbours that differ only in their number, as the layers of an encoder."""
    for key, alike in groupby(nodes, lambda node: node.name.isdecimal() and _alike(node)):
        found = list(alike)
        if not key or len(found) == 1:
            yield from found
            continue
        yield replace(found[0], name=f"{found[0].name}-{found[-1].name}", times=len(found))


def _alike(node: Node) -> str:
    return repr((node.kind, node.detail, node.shapes, node.children))
