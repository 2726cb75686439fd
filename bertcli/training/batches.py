"""The rows that a step trains on, and rows as one batch, in numpy arrays. Does not import torch.

Letters as in the model: `B` rows, `L` their length, `T` tokens of all of them; `M` masked tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bertcli.tokenizing.columns import EXTRA, Encoded

MULTIPLE = 8  # that padded batches are made wide to, for the tensor cores of GPUs


Columns = dict[str, Any]  # an array [B, ...] a column of the rows


class TokenBatch(NamedTuple):
    """Concatenated rows."""

    ids: Any  # [T]; padded: [B * width]
    types: Any  # as ids
    lengths: Any  # [B]
    starts: Any  # [B] place of each row's first token among ids
    width: int  # 0 when nothing is padded
    extra: Mapping[str, Any] = {}  # an extra embedding -> as ids


class MaskedBatch(NamedTuple):
    """Rows, and the tokens to predict."""

    tokens: TokenBatch
    masked: Any  # [M] places among ids
    words: Any  # [M] the original tokens
    follows: Any  # [B] 0 when the second sentence follows the first, 1 when it is a random one


class Order:
    """The order of rows: each epoch is shuffled on its own, and batches may span two epochs.

    A function of the seed and the step alone, so there is no state to save.
    """

    def __init__(self, rows: Any, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.shuffled: dict[int, Any] = {}

    def batch(self, step: int) -> Any:
        """Return the rows of a step, counted from 0."""
        start, count = step * self.batch_size, len(self.rows)
        places = np.arange(start, start + self.batch_size)
        epochs = range(places[0] // count, places[-1] // count + 1)
        self.shuffled = {  # earlier ones are not needed again
            epoch: self.shuffled[epoch]
            if epoch in self.shuffled
            else np.random.default_rng((self.seed, epoch)).permutation(self.rows)
            for epoch in epochs
        }
        inside = [
            self.shuffled[epoch][places[places // count == epoch] % count] for epoch in epochs
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


def token_batch(rows: Columns, *, padded: bool) -> TokenBatch:
    """Return the tokens of rows as one batch."""
    longest, lengths = rows["input_ids"].shape[1], rows["lengths"].astype(np.int64)
    width, starts = 0, np.cumsum(lengths) - lengths
    inside: Any = np.arange(longest) < lengths[:, None]
    if padded:
        width = min(-(-int(lengths.max()) // MULTIPLE) * MULTIPLE, longest)
        inside, starts = (slice(None), slice(width)), np.arange(len(lengths)) * width

    def flat(name: str) -> Any:
        return rows[name][inside].ravel().astype(np.int64)

    extra = {name.removeprefix(EXTRA): flat(name) for name in rows if name.startswith(EXTRA)}
    return TokenBatch(flat("input_ids"), flat("token_type_ids"), lengths, starts, width, extra)


def collate(rows: Columns, *, padded: bool) -> MaskedBatch:
    """Return rows of instances as one batch."""
    tokens = token_batch(rows, padded=padded)
    chosen = np.arange(rows["masked_lm_ids"].shape[1]) < rows["masked_lm_counts"][:, None]
    return MaskedBatch(
        tokens,
        masked=(tokens.starts[:, None] + rows["masked_lm_positions"])[chosen],
        words=rows["masked_lm_ids"][chosen].astype(np.int64),
        follows=rows["next_sentence_labels"].astype(np.int64),
    )


def in_batches(rows: Any, size: int) -> Iterator[Any]:
    """Yield rows in batches of this size; the last one may be smaller."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


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
        places = np.concatenate([np.zeros(0, np.int64), *inside])
        return places[self.tokens[name][places] > 0]

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
