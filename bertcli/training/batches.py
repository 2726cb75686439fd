"""The rows that a step trains on, and rows as one batch, in numpy arrays. Does not import torch.

Letters as in the model: `B` rows, `L` their length, `T` tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bertcli.inference.runner import Tokens
from bertcli.tokenizing.columns import EXTRA, Encoded

Columns = dict[str, Any]  # an array [B, ...] a column of the rows


class TokenBatch(NamedTuple):
    """Concatenated rows."""

    ids: Any  # [T]
    types: Any  # [T]
    lengths: Any  # [B]
    starts: Any  # [B] place of each row's first token among ids
    extra: Mapping[str, Any] = {}  # an extra embedding -> [T]


class Order:
    """The order of rows: each epoch is shuffled on its own, and batches may span two epochs.

    A function of the seed and the step alone, so there is no state to save.
    """

    def __init__(self, rows: Any, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.shuffled = lru_cache(2)(self._shuffled)

    def _shuffled(self, epoch: int) -> Any:
        return np.random.default_rng((self.seed, epoch)).permutation(self.rows)

    def batch(self, step: int) -> Any:
        """Return the rows of a step, counted from 0."""
        count = len(self.rows)
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs = range(places[0] // count, places[-1] // count + 1)
        inside = [
            self.shuffled(epoch)[places[places // count == epoch] % count] for epoch in epochs
        ]
        return np.concatenate(inside)


def held_out(count: int, fraction: float) -> tuple[Any, Any]:
    """Split the rows into those to train on and the last ones, which are held out.

    The last ones, not random ones: copies of a text that are masked in other places are neighbours.
    """
    least = min(1, count - 1) if fraction else 0
    cut = count - max(least, int(count * fraction))
    return np.arange(cut), np.arange(cut, count)


def parts(rows: Columns, count: int) -> list[Columns]:
    """Split rows into this number of parts with about the same number of tokens."""
    longest_first = np.argsort(-rows["lengths"].astype(np.int64), kind="stable")
    dealt = (longest_first[part::count] for part in range(count))
    return [{name: column[numbers] for name, column in rows.items()} for numbers in dealt]


def token_batch(rows: Columns) -> TokenBatch:
    """Return the tokens of rows as one batch."""
    lengths = rows["lengths"].astype(np.int64)
    inside = np.arange(rows["input_ids"].shape[1]) < lengths[:, None]
    extra = {
        name.removeprefix(EXTRA): rows[name][inside] for name in rows if name.startswith(EXTRA)
    }
    ids, types = rows["input_ids"][inside], rows["token_type_ids"][inside]
    return TokenBatch(ids, types, lengths, np.cumsum(lengths) - lengths, extra)


def in_batches(rows: Any, size: int) -> Iterator[Any]:
    """Yield rows in batches of this size; the last one may be smaller."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


@dataclass(frozen=True)
class TokenRows:
    """Examples as arrays: what each of their tokens has, and what each of them has."""

    starts: Any  # [n + 1] places of the first tokens
    tokens: Mapping[str, Any]  # name -> [T]
    targets: Mapping[str, Any] = field(default_factory=dict)  # name -> [n, ...]

    @classmethod
    def of(cls, items: Sequence[Encoded], **targets: Any) -> TokenRows:
        """Return encoded records with their targets."""
        flat = Tokens.of(items)
        tokens = {"input_ids": flat.ids, "token_type_ids": flat.types}
        extra = {EXTRA + name: ids for name, ids in flat.extra.items()}
        return cls(flat.offsets, tokens | extra, targets)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def rows(self, numbers: Any) -> Columns:
        """Return rows by their numbers, their tokens padded with 0, [B, L]."""
        starts = self.starts[numbers]
        lengths = self.starts[numbers + 1] - starts
        inside = np.arange(lengths.max(initial=0)) < lengths[:, None]
        places = (starts[:, None] + np.arange(inside.shape[1]))[inside]
        rows: Columns = {"lengths": lengths}
        for name, flat in self.tokens.items():
            rows[name] = np.zeros(inside.shape, flat.dtype)
            rows[name][inside] = flat[places]
        return rows | {name: column[numbers] for name, column in self.targets.items()}
