"""Attention maps with their labels: tokens, sentences, layers and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

SCALE = 10_000  # weights are written as whole numbers out of this: four decimals


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights: `maps[layer][head]` is a numpy array [L, L], rows sum to 1.

    Row i holds the weights from token i to each token. Layers and heads count from 0,
    as in the names of tensors; pruned heads are absent.
    """

    model: str
    tokens: Sequence[str]
    sentences: Sequence[int]  # per token: 0 for the text, 1 for its pair
    special: Sequence[bool]  # per token: whether it is [CLS], [SEP] or [PAD]
    maps: Mapping[int, Mapping[int, Any]]
    layers: int  # of the model

    @cached_property
    def mean(self) -> Mapping[int, Any]:
        """Return layer -> the mean of its heads."""
        return {layer: sum(heads.values()) / len(heads) for layer, heads in self.maps.items()}

    @property
    def count(self) -> int:
        """How many maps there are."""
        return sum(map(len, self.maps.values()))

    def to_json(self) -> dict[str, Any]:
        """Return tokens and maps as JSON values; weights are whole numbers out of `scale`."""
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "sentences": list(self.sentences),
            "special": [int(one) for one in self.special],
            "scale": SCALE,
            "layers": [
                {
                    "layer": layer,
                    "heads": [
                        {"head": head, "weights": (weights * SCALE).round().astype(int).tolist()}
                        for head, weights in heads.items()
                    ],
                }
                for layer, heads in self.maps.items()
            ],
        }
