"""What a BERT has to compute: FLOPs, a multiplication and an addition being two."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Shape(NamedTuple):
    """The sizes of a BERT that count."""

    layers: int
    hidden: int
    inner: int  # of the feed-forward

    @classmethod
    def read(cls, folder: Path) -> Shape:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        fields = ("num_hidden_layers", "hidden_size", "intermediate_size")
        return cls(*(config[name] for name in fields))

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """The matrices [k, n] of a layer: query, key and value in one, output, feed-forward."""
        h, i = self.hidden, self.inner
        return (h, 3 * h), (h, h), (h, i), (i, h)

    @property
    def linear(self) -> int:
        """FLOPs of all matrix products with weights, for one token."""
        return 2 * self.layers * sum(k * n for k, n in self.products)

    @property
    def attention(self) -> int:
        """FLOPs of scores and weighted sums, for one token and each token that it looks at."""
        return 4 * self.layers * self.hidden

    def of(self, lengths: Iterable[int]) -> int:
        """Return the FLOPs of texts of these lengths, nothing padded."""
        return sum(length * (self.linear + length * self.attention) for length in lengths)
