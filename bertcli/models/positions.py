"""Positions of tokens: in the embeddings, or in the attention scores.

Each scheme is a module for `embeddings.position_embeddings` and one for
`attention.self.distance_embedding`, of which one may add nothing. Letters as in attention.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.errors import ModelError
from bertcli.models.config import BertConfig


class NoDistance(nn.Module):
    """Absolute and sinusoidal positions enter through the embeddings: nothing to add here."""

    def forward(self, q: Tensor, k: Tensor, at: int) -> None:
        """Add nothing."""
        return None


class Distances(nn.Module):
    """One vector of the head's size for each distance from -(P-1) to P-1: `weight` [2P-1, D]."""

    def __init__(self, positions: int, head_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * positions - 1, head_size))

    def between(self, q: Tensor, k: Tensor, at: int) -> Tensor:
        """Look up the scaled vector between each query and each key, [Lq, Lk, D]."""
        i = torch.arange(at, at + q.shape[-2], device=q.device)[:, None]
        j = torch.arange(k.shape[-2], device=q.device)
        middle = self.weight.shape[0] // 2
        return F.embedding(i - j + middle, self.weight) / math.sqrt(q.shape[-1])


class RelativeKey(Distances):
    """Scores also compare the query with the distance to the key.

    Source: Self-Attention with Relative Position Representations, equation 5.
    """

    def forward(self, q: Tensor, k: Tensor, at: int) -> Tensor:
        """Add q . distance, [..., H, Lq, Lk]."""
        return torch.einsum("...id,ijd->...ij", q, self.between(q, k, at))


class RelativeKeyQuery(Distances):
    """Scores also compare the query, and the key, with the distance between them.

    Source: Improve Transformer Models with Better Relative Position Embeddings, method 4.
    """

    def forward(self, q: Tensor, k: Tensor, at: int) -> Tensor:
        """Add (q + k) . distance, [..., H, Lq, Lk]."""
        between = self.between(q, k, at)
        from_query = torch.einsum("...id,ijd->...ij", q, between)
        return from_query + torch.einsum("...jd,ijd->...ij", k, between)


class UnusedPositions(nn.Embedding):
    """The unused table of absolute positions in checkpoints with relative ones; adds nothing."""

    def forward(self, at: Tensor) -> Tensor:
        """Add zero, whatever the positions."""
        return self.weight.new_zeros(())


class SinusoidalPositions(nn.Module):
    """Positions as sines and cosines of falling frequency, without parameters.

    Source: Attention Is All You Need, section 3.5.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, at: Tensor) -> Tensor:
        """Turn positions [...] into vectors [..., hidden], sine and cosine alternating."""
        even = torch.arange(0, self.hidden_size, 2, device=at.device)
        angles = at[..., None] / 10000 ** (even / self.hidden_size)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return waves[..., : self.hidden_size]


def positions(config: BertConfig) -> nn.Module:
    """Return the module that adds positions to the embeddings; ModelError for an unknown scheme."""
    match config.position_embedding_type:
        case "absolute":
            return nn.Embedding(config.max_position_embeddings, config.hidden_size)
        case "relative_key" | "relative_key_query":
            return UnusedPositions(config.max_position_embeddings, config.hidden_size)
        case "sinusoidal":
            return SinusoidalPositions(config.hidden_size)
        case unknown:
            raise _unknown(unknown)


def distances(config: BertConfig) -> nn.Module:
    """Return the module that adds distances to attention; ModelError for an unknown scheme."""
    match config.position_embedding_type:
        case "absolute" | "sinusoidal":
            return NoDistance()
        case "relative_key":
            return RelativeKey(config.max_position_embeddings, config.head_size)
        case "relative_key_query":
            return RelativeKeyQuery(config.max_position_embeddings, config.head_size)
        case unknown:
            raise _unknown(unknown)


def _unknown(scheme: str) -> ModelError:
    known = "absolute, relative_key, relative_key_query, sinusoidal"
    return ModelError(f"position_embedding_type {scheme!r} is unknown", hint=f"known: {known}")
