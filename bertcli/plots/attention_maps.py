"""Attention maps with their labels: tokens, sentences, layers and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

SCALE = 10_000  # a page has weights as whole numbers out of this: four decimals
MEAN = "mean"  # of all heads, in place of a head's number


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights: `maps[layer][head]` is a numpy array [L, L], rows sum to 1.

    Row i holds the weights from token i to each token. Layers and heads count from 0,
    as in the names of tensors; pruned heads are absent. A head may be MEAN: that of all heads.
    """

    model: str
    tokens: Sequence[str]
    sentences: Sequence[int]  # per token: 0 for the text, 1 for its pair
    special: Sequence[bool]  # per token: whether it is [CLS], [SEP] or [PAD]
    maps: Mapping[int, Mapping[int | str, Any]]
    layers: int  # of the model
    averaged: Mapping[int, int] = field(default_factory=dict)  # layer -> heads in its MEAN

    @cached_property
    def mean(self) -> Mapping[int, Any]:
        """Return layer -> the mean of its heads."""
        return {layer: sum(heads.values()) / len(heads) for layer, heads in self.maps.items()}

    @property
    def count(self) -> int:
        """How many maps there are."""
        return sum(map(len, self.maps.values()))

    def to_json(self) -> dict[str, Any]:
        """Return tokens and maps as JSON values, weights in the fewest digits that are exact."""
        from bertcli.files.array_json import json_of
        from bertcli.files.typed_json import parse

        return self._json(lambda weights: parse(next(json_of([weights]))))

    def rounded(self) -> dict[str, Any]:
        """Return the same with weights as whole numbers out of `scale`, for a page."""
        found = self._json(lambda weights: (weights * SCALE).round().astype(int).tolist())
        return {**found, "scale": SCALE, "averaged": self.averaged}

    def arrays(self) -> dict[str, Any]:
        """Return exact arrays: `attention` [layers, heads, L, L] and what its axes are.

        A head that was pruned in some of the layers is NaN there; `heads` -1 is the mean.
        """
        import numpy as np

        names = sorted({head for heads in self.maps.values() for head in heads}, key=str)
        names = [MEAN] if MEAN in names else sorted(names, key=int)
        length = len(self.tokens)
        gone = np.full((length, length), np.nan, np.float32)
        whole = [[heads.get(name, gone) for name in names] for heads in self.maps.values()]
        return {
            "attention": np.array(whole, np.float32).reshape(len(whole), -1, length, length),
            "layers": np.array([*self.maps], np.int64),
            "heads": np.array([-1 if name == MEAN else name for name in names], np.int64),
            "tokens": np.array(self.tokens, np.str_),
            "sentences": np.array(self.sentences, np.int64),
            "special": np.array(self.special, np.bool_),
        }

    def _json(self, written: Callable[[Any], Any]) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "sentences": list(self.sentences),
            "special": [int(one) for one in self.special],
            "layers": [
                {
                    "layer": layer,
                    "heads": [
                        {"head": head, "weights": written(weights)}
                        for head, weights in heads.items()
                    ],
                }
                for layer, heads in self.maps.items()
            ],
        }
