"""Positions of tokens: in the embeddings, or in the attention scores.

Each scheme is a module for `embeddings.position_embeddings` and one for
`attention.self.distance_embedding`, a `Distance`; one of them may do nothing. Letters as in
attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.families.structure import Disentangled, Rotary
from bertcli.models.config import BertConfig
from bertcli.models.distance_tables import (
    EXACT,
    distance_buckets,
    distance_rows,
    rotary_turns,
)


def after_padding(padding: int, ids: Tensor, at: Tensor) -> Tensor:
    """Return rows of the table of positions, [..., L], that begin behind the id of the padding.

    Padding has its id and is not counted. `ids` are [..., L], or vectors [..., L, width]; `at` is 0
    where a text starts, so several may follow one another in ids [T].
    Source: make_positions of fairseq, create_position_ids_from_input_ids of transformers.
    """
    if ids.is_floating_point():
        return at + padding + 1
    real = (ids != padding).long()
    before = real.cumsum(-1) - real
    starts = (torch.arange(ids.shape[-1], device=ids.device) - at).clamp(min=0).expand(ids.shape)
    place = before - before.gather(-1, starts) + at.expand(ids.shape).gather(-1, starts)
    return (place + 1) * real + padding


def hide(hidden: Tensor, q: Tensor, near: Tensor | None) -> Tensor:
    """Return what to add to the scores of q: `near`, and a large penalty where `hidden`."""
    # Not -inf: a row of padding alone would become NaN, which spreads.
    penalty = torch.zeros_like(hidden, dtype=q.dtype)
    penalty = penalty.masked_fill(hidden, torch.finfo(q.dtype).min / 2)
    return penalty if near is None else near + penalty


class Distance:
    """How a layer knows the positions of tokens: by changing queries and keys, and their scores.

    q, k are [..., H, L, D], and `at` is the position of the first query among the keys. Absolute
    and sinusoidal positions enter through the embeddings: this class changes nothing. `makers` are
    the layers that make queries and keys.
    """

    makers: dict[str, nn.Linear]

    def rotate(self, q: Tensor, k: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Return queries and keys as they are multiplied."""
        return q, k

    def __call__(self, q: Tensor, k: Tensor, at: int) -> Tensor | None:
        """Return what is added to the scores, [..., H, Lq, Lk] or what fits it, or None."""
        return None


def _places(x: Tensor, at: int = 0) -> Tensor:
    """Return the places of the tokens of x [..., L, D], [L]."""
    return torch.arange(at, at + x.shape[-2], device=x.device)


def _apart(q: Tensor, k: Tensor, at: int) -> Tensor:
    """Return how far each query stands behind each key, [Lq, Lk]."""
    return _places(q, at)[:, None] - _places(k)


class RelativeKey(nn.Module, Distance):
    """Scores also compare the query with the distance to the key, or both with it.

    There is one vector of the head's size for each distance from -(P-1) to P-1: `weight` [2P-1, D].
    Source: Self-Attention with Relative Position Representations, equation 5; Improve Transformer
    Models with Better Relative Position Embeddings, method 4.
    """

    def __init__(self, positions: int, head_size: int, both: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * positions - 1, head_size))
        self.both = both

    def forward(self, q: Tensor, k: Tensor, at: int) -> Tensor:
        """Add q . distance or (q + k) . distance, [..., H, Lq, Lk]."""
        middle = self.weight.shape[0] // 2
        between = F.embedding(_apart(q, k, at) + middle, self.weight) / math.sqrt(q.shape[-1])
        scores = torch.einsum("...id,ijd->...ij", q, between)
        return scores + torch.einsum("...jd,ijd->...ij", k, between) if self.both else scores


class Buckets(Distance):
    """One learned score a head for each bucket of distances, from a table that layers share.

    Near distances have a bucket each, those further away share one by their logarithm.
    Source: T5, section 2.1; the buckets of MPNet.
    """

    def __init__(self, table: nn.Module) -> None:
        self.table = table  # a module of the encoder, not of each layer
        self.bucket = distance_buckets().tolist()  # a list, as it may be made on `meta`

    def __call__(self, q: Tensor, k: Tensor, at: int) -> Tensor:
        """Add the score of each distance, [H, Lq, Lk]."""
        bucket = torch.tensor(self.bucket, device=q.device)
        scores = self.table(bucket).T  # [H, distances]
        return scores[:, _apart(q, k, at).clamp(-EXACT, EXACT) + EXACT]


class RotaryPositions(Distance):
    """Queries and keys are turned by angles that grow with their position.

    Dimension i of the first half and dimension i of the second are a pair.
    Source: RoFormer, section 3.2.2.
    """

    def __init__(self, head_size: int, rotary: Rotary) -> None:
        self.turns = rotary_turns(head_size, rotary).tolist()  # a list, as it may be on `meta`

    def rotate(self, q: Tensor, k: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Turn each query and each key by its place."""
        return self._turned(q, _places(q, at)), self._turned(k, _places(k))

    def _turned(self, x: Tensor, places: Tensor) -> Tensor:
        turns = torch.tensor(self.turns, dtype=torch.float32, device=x.device)
        angles = places[:, None].float() * turns
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class DistanceVectors(nn.Module):
    """The vectors of distances, which the layers of a DeBERTa share: [2 span, hidden]."""

    def __init__(self, config: BertConfig, disentangled: Disentangled) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * disentangled.span, config.hidden_size)
        self.LayerNorm: nn.Module = nn.Identity()
        if disentangled.norm:
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self) -> Tensor:
        """Return the vectors as layers use them."""
        return self.dropout(self.LayerNorm(self.table.weight))


class DisentangledDistance(nn.Module, Distance):
    """Queries meet the vectors of distances, and so do keys.

    Source: DeBERTa, section 3.1, equation 4; its buckets are those of make_log_bucket_position.
    """

    def __init__(self, config: BertConfig, terms: Disentangled, vectors: nn.Module) -> None:
        super().__init__()
        self.terms, self.shared, self.head_size = terms, (vectors,), config.head_size
        sizes = config.hidden_size, config.num_attention_heads * config.head_size
        if terms.word_to_distance and not terms.shared:
            self.key = nn.Linear(*sizes)
        if terms.distance_to_word and not terms.shared:
            self.query = nn.Linear(*sizes)
        self.rows = distance_rows(terms).tolist()  # a list, as it may be made on `meta`

    def rotate(self, q: Tensor, k: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Shrink queries, as their scores are one part of several."""
        return q / math.sqrt(self.terms.parts), k

    def forward(self, q: Tensor, k: Tensor, at: int) -> Tensor | None:
        """Add the scores of queries and keys with the distance between them, [..., H, Lq, Lk]."""
        if self.terms.parts == 1:
            return None
        longest = self.terms.longest
        apart = _apart(q, k, at).clamp(-2 * longest, 2 * longest) + 2 * longest
        rows = torch.tensor(self.rows, device=q.device)[apart]  # [Lq, Lk]
        vectors, total = self.shared[0](), q.new_zeros(())
        if self.terms.word_to_distance:
            total = total + self._met(q, "key", vectors, rows)
        if self.terms.distance_to_word:
            total = total + self._met(k, "query", vectors, rows.T).transpose(-1, -2)
        return total / math.sqrt(self.head_size * self.terms.parts)

    def _met(self, x: Tensor, part: str, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of x [..., H, L, D] with the keys or queries of distances in `rows`."""
        maker = self.makers[part] if self.terms.shared else self.get_submodule(part)
        of_distances = maker(vectors).unflatten(-1, (-1, self.head_size)).transpose(0, 1)
        met = x @ of_distances.transpose(-1, -2)  # [..., H, L, 2 span]
        return met.gather(-1, rows.expand(*met.shape[:-2], *rows.shape))


class Within(Distance):
    """Hides some tokens from each; positions are known in some other way."""

    def __init__(self, within: Distance) -> None:
        self.within = within

    def rotate(self, q: Tensor, k: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Turn as it is done where nothing is hidden."""
        return self.within.rotate(q, k, at)


class SlidingWindow(Within):
    """Tokens see so many neighbours on each side.

    Source: Longformer, section 3.1.
    """

    def __init__(self, reach: int, within: Distance) -> None:
        super().__init__(within)
        self.reach = reach

    def __call__(self, q: Tensor, k: Tensor, at: int) -> Tensor | None:
        """Add the penalty of tokens that are further away."""
        near: Tensor | None = self.within(q, k, at)
        if k.shape[-2] <= self.reach + 1:
            return near  # all see all
        return hide(_apart(q, k, at).abs() > self.reach, q, near)


class Backwards(Within):
    """Tokens see those before them alone."""

    def __call__(self, q: Tensor, k: Tensor, at: int) -> Tensor:
        """Add the penalty of later tokens."""
        return hide(_apart(q, k, at) < 0, q, self.within(q, k, at))


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
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1)
        return waves.flatten(-2)[..., : self.hidden_size]


def nothing_added(ids: Tensor) -> float:
    """Return zero, in place of a table of the embeddings that this model lacks."""
    return 0.0


def positions(config: BertConfig) -> Callable[[Tensor], Any]:
    """Return the module that adds positions to the embeddings."""
    if not config.structure.absolute_positions:
        return nothing_added
    rows, width = config.max_position_embeddings, config.table_size
    match config.position_embedding_type:
        case "absolute":
            first = config.structure.first_position
            return nn.Embedding(rows, width, first - 1 if first else None)
        case "sinusoidal":
            return SinusoidalPositions(width)
    return UnusedPositions(rows, width)


def shared_table(config: BertConfig) -> nn.Module | None:
    """Return the table of distances that all layers share, if the model has one."""
    structure = config.structure
    if structure.disentangled:
        return DistanceVectors(config, structure.disentangled)
    return (
        nn.Embedding(structure.buckets, config.num_attention_heads) if structure.buckets else None
    )


def distances(config: BertConfig, layer: int, table: nn.Module | None) -> Distance:
    """Return what knows places in the attention of a layer; `table` is that of all layers."""
    structure, scheme = config.structure, config.position_embedding_type
    within = Distance()
    if table is not None and structure.disentangled:
        within = DisentangledDistance(config, structure.disentangled, table)
    elif table is not None:
        within = Buckets(table)
    elif scheme in ("relative_key", "relative_key_query"):
        both = scheme == "relative_key_query"
        within = RelativeKey(config.max_position_embeddings, config.head_size, both)
    if structure.rotary:
        within = RotaryPositions(config.head_size, structure.rotary[layer])
    reach = structure.windows[layer] if structure.windows else None
    return within if reach is None else SlidingWindow(reach, within)
