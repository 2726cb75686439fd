"""The tokens of examples in memory, and rows of them as columns. Does not import torch.

`n` examples, `T` tokens of all of them; rows of a step are padded to the longest, `L`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcli.tokenizing.columns import EXTRA, Encoded
from bertcli.training.batches import Columns

TOKEN_COLUMNS = {"input_ids": np.int32, "token_type_ids": np.uint8}


@dataclass(frozen=True)
class TokenRows:
    """Examples as arrays: what each of their tokens has, and what each of them has."""

    starts: Any  # [n + 1] places of the first tokens
    tokens: Mapping[str, Any]  # name -> [T]
    targets: Mapping[str, Any] = field(default_factory=dict)  # name -> [n, ...]

    @classmethod
    def of(cls, items: Sequence[Encoded], **targets: Any) -> TokenRows:
        """Return encoded records with their targets."""
        lengths = np.array([item.length for item in items], np.int64)
        extra = [name for name in items[0].columns if name.startswith(EXTRA)] if items else []
        tokens = {
            name: np.fromiter(
                (value for item in items for value in item.columns[name]), kind, lengths.sum()
            )
            for name, kind in (TOKEN_COLUMNS | dict.fromkeys(extra, np.int32)).items()
        }
        return cls(np.concatenate([[0], np.cumsum(lengths)]), tokens, targets)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def places(self, rows: Any, name: str) -> Any:
        """Return the places of the tokens of rows for which a column is not 0."""
        inside = [np.arange(self.starts[row], self.starts[row + 1]) for row in rows]
        found = np.concatenate(inside) if inside else np.zeros(0, np.int64)
        return found[self.tokens[name][found] > 0]

    def columns(self, rows: Any) -> Columns:
        """Return rows by their numbers, their tokens padded with 0, [B, L]."""
        starts = self.starts[rows]
        lengths = self.starts[rows + 1] - starts
        inside = np.arange(lengths.max(initial=0)) < lengths[:, None]
        places = (starts[:, None] + np.arange(inside.shape[1]))[inside]
        found: Columns = {"lengths": lengths}
        for name, flat in self.tokens.items():
            found[name] = np.zeros(inside.shape, flat.dtype)
            found[name][inside] = flat[places]
        return found | {name: column[rows] for name, column in self.targets.items()}
