"""Positions of tokens: added to the embeddings, or to the attention scores.

Each scheme is a module for `embeddings.position_embeddings` and one for
`attention.self.distance_embedding`, a `Distance`; one of the two may do nothing. Letters as in
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
    LAST_BUCKET_DISTANCE,
    distance_buckets,
    distance_rows,
    rotary_frequencies,
)


def rows_after_padding(padding: int, ids: Tensor, at: Tensor) -> Tensor:
    """Return the rows of a table of positions, [..., L], in a model that counts from padding + 1.

    Padding tokens have the position `padding`, the id of the padding token, and are not counted.
    `ids` are [..., L], or vectors [..., L, width]. `at` has the positions of tokens in their texts;
    packed ids [T] may contain several texts, each starting at 0.
    Source: make_positions of fairseq, create_position_ids_from_input_ids of transformers.
    """
    if ids.is_floating_point():
        return at + padding + 1
    is_token = (ids != padding).long()
    tokens_before = is_token.cumsum(-1) - is_token
    indices = torch.arange(ids.shape[-1], device=ids.device)
    starts = (indices - at).clamp(min=0).expand(ids.shape)  # index where each token's text starts
    tokens_before_text = tokens_before.gather(-1, starts)
    position_of_start = at.expand(ids.shape).gather(-1, starts)
    position = tokens_before - tokens_before_text + position_of_start
    return (position + 1) * is_token + padding


def with_penalty(hidden: Tensor, q: Tensor, bias: Tensor | None) -> Tensor:
    """Return the bias of the scores of q, with a large penalty where `hidden` is true."""
    # Not -inf: the softmax of a row of padding alone would be NaN.
    penalty = torch.zeros_like(hidden, dtype=q.dtype)
    penalty = penalty.masked_fill(hidden, torch.finfo(q.dtype).min / 2)
    return penalty if bias is None else bias + penalty


class Distance:
    """Positions in the attention of a layer: rotated queries and keys, or a bias of their scores.

    q, k are [..., H, L, D]; `first_query` is the index of the first query among the keys. This
    class changes nothing: absolute and sinusoidal positions are in the embeddings. `projections`
    are the layers `query` and `key` of the attention.
    """

    projections: dict[str, nn.Linear]

    def rotate(self, q: Tensor, k: Tensor, first_query: int) -> tuple[Tensor, Tensor]:
        """Return the queries and keys to multiply."""
        return q, k

    def __call__(self, q: Tensor, k: Tensor, first_query: int) -> Tensor | None:
        """Return the bias of the scores, which broadcasts to [..., H, Lq, Lk], or None."""
        return None


def _token_positions(x: Tensor, first: int = 0) -> Tensor:
    """Return the positions of the tokens of x [..., L, D], counted from `first`: [L]."""
    return torch.arange(first, first + x.shape[-2], device=x.device)


def _token_distances(q: Tensor, k: Tensor, first_query: int) -> Tensor:
    """Return the position of each query minus that of each key, [Lq, Lk]."""
    return _token_positions(q, first_query)[:, None] - _token_positions(k)


class RelativeKey(nn.Module, Distance):
    """A learned vector per distance, multiplied with the query, or with query and key (`both`).

    `weight` [2P-1, D] has a vector for each distance from -(P-1) to P-1.
    Source: Self-Attention with Relative Position Representations, equation 5; Improve Transformer
    Models with Better Relative Position Embeddings, method 4.
    """

    def __init__(self, positions: int, head_size: int, both: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * positions - 1, head_size))
        self.both = both

    def forward(self, q: Tensor, k: Tensor, first_query: int) -> Tensor:
        """Return q . distance or (q + k) . distance, [..., H, Lq, Lk]."""
        middle = self.weight.shape[0] // 2
        rows = _token_distances(q, k, first_query) + middle
        vectors = F.embedding(rows, self.weight) / math.sqrt(q.shape[-1])  # [Lq, Lk, D]
        scores = torch.einsum("...id,ijd->...ij", q, vectors)
        if self.both:
            scores = scores + torch.einsum("...jd,ijd->...ij", k, vectors)
        return scores


class Buckets(Distance):
    """A learned bias per head and bucket of distances, from a table that all layers share.

    Short distances have a bucket each; longer ones share buckets of logarithmic width.
    Source: T5, section 2.1; the buckets of MPNet.
    """

    def __init__(self, table: nn.Module) -> None:
        self.table = table  # a submodule of the encoder, not of each layer
        self.buckets = distance_buckets().tolist()  # a list, as models may be built on `meta`

    def __call__(self, q: Tensor, k: Tensor, first_query: int) -> Tensor:
        """Return the bias of each distance, [H, Lq, Lk]."""
        buckets = torch.tensor(self.buckets, device=q.device)
        biases = self.table(buckets).T  # [H, distances]
        longest = LAST_BUCKET_DISTANCE
        distances = _token_distances(q, k, first_query).clamp(-longest, longest)
        return biases[:, distances + longest]


class RotaryPositions(Distance):
    """Queries and keys are rotated by angles proportional to their position.

    Dimension i of the first half and dimension i of the second half are a pair.
    Source: RoFormer, section 3.2.2.
    """

    def __init__(self, head_size: int, rotary: Rotary) -> None:
        self.frequencies = rotary_frequencies(head_size, rotary).tolist()  # a list, as in `Buckets`

    def rotate(self, q: Tensor, k: Tensor, first_query: int) -> tuple[Tensor, Tensor]:
        """Rotate each query and each key by its position."""
        rotated_queries = self._rotated(q, _token_positions(q, first_query))
        rotated_keys = self._rotated(k, _token_positions(k))
        return rotated_queries, rotated_keys

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x [..., L, D] with each token rotated by its position, [L]."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=x.device)
        angles = positions[:, None].float() * frequencies  # [L, D / 2]
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        first_half, second_half = x.chunk(2, -1)
        rotated_first = first_half * cos - second_half * sin
        rotated_second = second_half * cos + first_half * sin
        return torch.cat((rotated_first, rotated_second), -1)


class DistanceVectors(nn.Module):
    """The vectors of distances that all layers of a DeBERTa share: [2 span, hidden]."""

    def __init__(self, config: BertConfig, disentangled: Disentangled) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * disentangled.span, config.hidden_size)
        self.LayerNorm: nn.Module = nn.Identity()
        if disentangled.norm:
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self) -> Tensor:
        """Return the vectors, normalised and with dropout."""
        return self.dropout(self.LayerNorm(self.table.weight))


class DisentangledDistance(nn.Module, Distance):
    """Queries are multiplied with keys of distances, and keys with queries of distances.

    Source: DeBERTa, section 3.1, equation 4; its buckets are those of make_log_bucket_position.
    """

    def __init__(self, config: BertConfig, terms: Disentangled, vectors: nn.Module) -> None:
        super().__init__()
        self.terms = terms
        self.vectors = (vectors,)  # in a tuple, so that it is no submodule of each layer
        self.head_size = config.head_size
        sizes = (config.hidden_size, config.num_attention_heads * config.head_size)
        if terms.word_to_distance and not terms.shared:
            self.key = nn.Linear(*sizes)
        if terms.distance_to_word and not terms.shared:
            self.query = nn.Linear(*sizes)
        self.rows = distance_rows(terms).tolist()  # a list, as in `Buckets`

    def rotate(self, q: Tensor, k: Tensor, first_query: int) -> tuple[Tensor, Tensor]:
        """Scale queries down, because their scores are one term of several."""
        return q / math.sqrt(self.terms.score_count), k

    def forward(self, q: Tensor, k: Tensor, first_query: int) -> Tensor | None:
        """Return the scores of queries and keys with their distance, [..., H, Lq, Lk]."""
        if self.terms.score_count == 1:
            return None
        longest = self.terms.longest
        distances = _token_distances(q, k, first_query).clamp(-2 * longest, 2 * longest)
        rows = torch.tensor(self.rows, device=q.device)[distances + 2 * longest]  # [Lq, Lk]
        vectors = self.vectors[0]()
        total = q.new_zeros(())
        if self.terms.word_to_distance:
            total = total + self._scores(q, "key", vectors, rows)
        if self.terms.distance_to_word:
            total = total + self._scores(k, "query", vectors, rows.T).transpose(-1, -2)
        return total / math.sqrt(self.head_size * self.terms.score_count)

    def _scores(self, x: Tensor, name: str, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of x [..., H, L, D] with keys or queries (`name`) of the vectors.

        `rows` [L, L'] selects the vector for each pair of tokens.
        """
        projection = self.projections[name] if self.terms.shared else self.get_submodule(name)
        projected = projection(vectors).unflatten(-1, (-1, self.head_size)).transpose(0, 1)
        scores = x @ projected.transpose(-1, -2)  # [..., H, L, 2 span]
        return scores.gather(-1, rows.expand(*scores.shape[:-2], *rows.shape))


class MaskedDistance(Distance):
    """A base for masks that depend on the distance, around another scheme of positions."""

    def __init__(self, distance: Distance) -> None:
        self.distance = distance

    def rotate(self, q: Tensor, k: Tensor, first_query: int) -> tuple[Tensor, Tensor]:
        """Rotate as the other scheme does."""
        return self.distance.rotate(q, k, first_query)


class SlidingWindow(MaskedDistance):
    """Tokens attend to `reach` neighbours on each side.

    Source: Longformer, section 3.1.
    """

    def __init__(self, reach: int, distance: Distance) -> None:
        super().__init__(distance)
        self.reach = reach

    def __call__(self, q: Tensor, k: Tensor, first_query: int) -> Tensor | None:
        """Return the bias, with the penalty of tokens outside the window."""
        bias: Tensor | None = self.distance(q, k, first_query)
        if k.shape[-2] <= self.reach + 1:
            return bias  # the window covers all tokens
        return with_penalty(_token_distances(q, k, first_query).abs() > self.reach, q, bias)


class Causal(MaskedDistance):
    """Tokens attend to themselves and earlier tokens."""

    def __call__(self, q: Tensor, k: Tensor, first_query: int) -> Tensor:
        """Return the bias, with the penalty of later tokens."""
        return with_penalty(
            _token_distances(q, k, first_query) < 0, q, self.distance(q, k, first_query)
        )


class UnusedPositions(nn.Embedding):
    """The unused table of absolute positions in checkpoints with relative ones."""

    def forward(self, at: Tensor) -> Tensor:
        """Return zero."""
        return self.weight.new_zeros(())


class SinusoidalPositions(nn.Module):
    """Positions as sines and cosines of falling frequency, without parameters.

    Source: Attention Is All You Need, section 3.5.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, at: Tensor) -> Tensor:
        """Return the vectors [..., hidden] of positions [...]: sines and cosines alternate."""
        even = torch.arange(0, self.hidden_size, 2, device=at.device)
        angles = at[..., None] / 10000 ** (even / self.hidden_size)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1)
        return waves.flatten(-2)[..., : self.hidden_size]


def nothing_added(ids: Tensor) -> float:
    """Return zero: stands in for an embedding table that the model lacks."""
    return 0.0


def position_embeddings(config: BertConfig) -> Callable[[Tensor], Any]:
    """Return the module that adds positions to the embeddings."""
    if not config.structure.absolute_positions:
        return nothing_added
    rows = config.max_position_embeddings
    width = config.table_size
    match config.position_embedding_type:
        case "absolute":
            first_position = config.structure.first_position
            padding_row = first_position - 1 if first_position else None
            return nn.Embedding(rows, width, padding_row)
        case "sinusoidal":
            return SinusoidalPositions(width)
    return UnusedPositions(rows, width)


def shared_table(config: BertConfig) -> nn.Module | None:
    """Return the table of distances that all layers share, or None."""
    structure = config.structure
    if structure.disentangled:
        return DistanceVectors(config, structure.disentangled)
    if structure.buckets:
        return nn.Embedding(structure.buckets, config.num_attention_heads)
    return None


def layer_distance(config: BertConfig, layer: int, table: nn.Module | None) -> Distance:
    """Return the scheme of positions in the attention of a layer.

    `table` is the one that all layers share, if any.
    """
    structure = config.structure
    position_type = config.position_embedding_type
    distance = Distance()
    if table is not None and structure.disentangled:
        distance = DisentangledDistance(config, structure.disentangled, table)
    elif table is not None:
        distance = Buckets(table)
    elif position_type in ("relative_key", "relative_key_query"):
        both = position_type == "relative_key_query"
        distance = RelativeKey(config.max_position_embeddings, config.head_size, both)
    if structure.rotary:
        distance = RotaryPositions(config.head_size, structure.rotary[layer])
    reach = structure.windows[layer] if structure.windows else None
    return distance if reach is None else SlidingWindow(reach, distance)
