"""From the vectors of a text's tokens to one vector a text.

Letters: `T` packed tokens, `n` texts, `B` texts of one length, `L` that length, `D` dimensions.

Texts lie one after the other without padding, and neighbours of equal length are reduced together.
Each is summed over its own tokens alone, in their order, so that a vector does not depend on what
else is in the batch. Source: sentence-transformers 6.2, Pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.errors import UsageError
from bertcli.inference.encoder import first_tokens
from bertcli.models.bert import BertModel


def _mean(kept: Tensor, skip: int) -> Tensor:
    return kept.mean(1)


def _mean_sqrt_len(kept: Tensor, skip: int) -> Tensor:
    """Return the sum over the root of the length: between a mean and a sum."""
    total: Tensor = kept.sum(1) / kept.shape[1] ** 0.5
    return total


def _weighted_mean(kept: Tensor, skip: int) -> Tensor:
    """Return the mean with weights 1, 2, 3, ... of all tokens, those left out included (SGPT)."""
    places = torch.arange(skip + 1, skip + 1 + kept.shape[1], device=kept.device, dtype=kept.dtype)
    weighted = kept * places.reshape(-1, *[1] * (kept.ndim - 2))
    return weighted.sum(1) / places.sum()


# kept [B, L - skip, ..., D], number of tokens left out before them -> [B, ..., D]
POOLINGS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "cls": lambda kept, skip: kept[:, 0],
    "max": lambda kept, skip: kept.amax(1),
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda kept, skip: kept[:, -1],
}


@dataclass(frozen=True)
class Pooling:
    """What is kept of the states of texts: poolings by name, or "pooler" or "none" alone."""

    modes: tuple[str, ...]
    skip: int = 0  # tokens at the start of each text that are left out: those of a prompt

    def __call__(
        self, model: BertModel, states: Tensor, lengths: Sequence[int]
    ) -> Sequence[Tensor] | Tensor:
        """Return a vector [..., D] per text, or with "none" one per token, [L, ..., D]."""
        match self.modes:
            case ("none",):
                kept: Sequence[Tensor] = states.split(list(lengths))
                return kept
            case ("pooler",):
                vectors: Tensor = model.pooler(first_tokens(states, lengths))
                return vectors.float()
        return pool(states, lengths, self.modes, [self.skip] * len(lengths))


def pool(
    states: Tensor,
    lengths: Sequence[int],
    modes: Sequence[str],
    skip: Sequence[int] | None = None,
) -> Tensor:
    """Pool token states [T, ..., D] of texts of these lengths: [n, ..., D * len(modes)].

    The results of several modes lie one behind the other. ``skip`` counts for each text the tokens
    at its start that are left out, [CLS] included: those of a prompt that is not to be pooled.
    Half precision is summed, and returned, in float32. ValueError when lengths and tokens disagree,
    or a text has no tokens.
    """
    if sum(lengths) != states.shape[0] or not all(lengths):
        raise ValueError(f"lengths {list(lengths)} do not make up {states.shape[0]} tokens")
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise UsageError(f"unknown --pooling {unknown[0]!r}", f"one of {', '.join(POOLINGS)}")
    if not lengths:
        return states.new_empty(0, *states.shape[1:-1], states.shape[-1] * len(modes))
    skips = [0] * len(lengths) if skip is None else skip
    alike = groupby(zip(lengths, skips, strict=True))
    runs = [(len(list(same)), length, left_out) for (length, left_out), same in alike]
    parts = states.split([count * length for count, length, _ in runs])
    pooled = [
        _run(part.unflatten(0, (count, length)), left_out, modes)
        for part, (count, length, left_out) in zip(parts, runs, strict=True)
    ]
    return torch.cat(pooled)


def _run(states: Tensor, skip: int, modes: Sequence[str]) -> Tensor:
    """Pool texts of one length, [B, L, ..., D]."""
    kept = states.to(torch.promote_types(states.dtype, torch.float32))
    if skip >= kept.shape[1]:
        return torch.cat([_of_nothing(kept, mode) for mode in modes], -1)
    return torch.cat([POOLINGS[mode](kept[:, skip:], skip) for mode in modes], -1)


def _of_nothing(states: Tensor, mode: str) -> Tensor:
    """Return what sentence-transformers gives when every token is left out."""
    first = states[:, 0]
    match mode:
        case "cls":
            return first
        case "max":
            return torch.full_like(first, -torch.inf)
        case _:
            return torch.zeros_like(first)


def pool_windows(vectors: Tensor, counts: Sequence[int], weights: Sequence[float]) -> Tensor:
    """Put the windows of long texts together: vectors of windows -> [n, ..., D], n texts.

    Each text has ``counts`` windows, one after the other. Its vector is their mean, weighted by
    ``weights``, one a window: the tokens in it. A text of one window keeps its vector as it is.
    """
    if sum(counts) != vectors.shape[0] or len(weights) != vectors.shape[0]:
        raise ValueError(
            f"{sum(counts)} windows counted, {len(weights)} weights, {vectors.shape[0]} given"
        )
    if all(count == 1 for count in counts):
        return vectors
    share = torch.tensor(weights, device=vectors.device, dtype=vectors.dtype)
    parts = zip(vectors.split(list(counts)), share.split(list(counts)), strict=True)
    return torch.stack([_average(mine, share) for mine, share in parts])


def _average(vectors: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of [k, ..., D] over k; a lone vector is not touched."""
    if len(vectors) == 1:
        return vectors[0]
    share = (weights / weights.sum()).reshape(-1, *[1] * (vectors.ndim - 1))
    return (vectors * share).sum(0)


def finish(vectors: Tensor, *, dim: int | None = None, normalize: bool = False) -> Tensor:
    """Cut vectors [..., D] to their first ``dim`` dimensions, and then to length 1.

    A vector of zeros stays one. Raises UsageError when there are not so many dimensions.
    """
    if dim is not None:
        check_dim(dim, vectors.shape[-1])
        vectors = vectors[..., :dim]
    return F.normalize(vectors, p=2, dim=-1) if normalize else vectors


def check_dim(dim: int, width: int) -> None:
    """Raise UsageError unless vectors of this width have so many dimensions."""
    if not 1 <= dim <= width:
        raise UsageError(
            f"--dim {dim} is not possible: the vectors have {width} dimensions",
            f"give a number from 1 to {width}",
        )
