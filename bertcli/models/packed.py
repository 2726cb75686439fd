"""The same BertModel over a batch without padding.

The texts lie one after the other in one row of `T` tokens. Everything but attention treats each
token alone, so only the kernel and the positions need to know where a text ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from bertcli.models.attention import packed
from bertcli.models.bert import BertModel


def starts(lengths: Sequence[int]) -> list[int]:
    """Say where each text starts: `hidden[starts(lengths)]` are the first tokens."""
    return [0, *accumulate(lengths)][: len(lengths)]


def positions(lengths: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Count each text's tokens from 0, [T]."""
    return torch.cat([torch.arange(length, device=device) for length in lengths])


def encode(
    model: BertModel,
    ids: Tensor,
    lengths: Sequence[int],
    types: Tensor | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Give the last hidden states [T, hidden] of ids [T]; ValueError unless lengths add up to T.

    `hidden.split(lengths)` are the texts. Fastest when texts of equal length are neighbours.
    """
    if sum(lengths) != ids.shape[0]:
        raise ValueError(f"lengths add up to {sum(lengths)}, but there are {ids.shape[0]} tokens")
    at = positions(lengths, ids.device)
    kernel = model.direction(packed(lengths))
    return model(ids, types=types, at=at, extra=extra, kernels=kernel)
