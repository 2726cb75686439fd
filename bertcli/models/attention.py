"""Attention kernels: how tokens attend to each other.

Letters: `B` batch, `L` length, `T` packed tokens, `H` heads, `D` head size. `...` before `H` is
`[B, L]` or `[T]`; only the kernel knows which.

Everything else in BERT works per token. So padding, packing, caching, recording and head masks are
kernels, or kernels around kernels, and a model takes its kernel as an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.models.positions import Causal, Distance, with_penalty

# (q, k, v, distance, dropout probability) with q, k, v [..., H, D] -> [..., H, D]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Distance, float], Tensor]

LONGEST_SHORT_TEXT = 64  # tokens; `varlen` uses another kernel for texts up to this length


# --- kernels ---


def padded(keep: Tensor | None = None) -> Attend:
    """Return the kernel for [B, L]: scaled dot-product attention to the tokens of the mask `keep`.

    `keep` is [..., Lk], 1 for tokens and 0 for padding, or [..., Lq, Lk], 1 where a query may
    attend to a key, with the `...` of the queries. The queries belong to the last Lq keys, as in a
    decoder with a cache. Raises ValueError for another shape.
    Source: Attention Is All You Need, section 3.2.1.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        q, k, v, bias = _heads_and_bias(q, k, v, distance, keep)
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        return output.transpose(-2, -3)

    return attend


TO_ALL: Attend = padded()  # without a mask: each token attends to all of its text


class Recording:
    """A kernel like `padded` that also appends its attention map, [..., H, Lq, Lk], to `maps`.

    One map per call, so per layer, before dropout; `keep` is as in `padded`. `functools.wraps`
    copies the attributes to the kernels around it, where `head_masked` finds the maps.
    """

    def __init__(self, maps: list[Tensor], keep: Tensor | None = None) -> None:
        self.maps = maps
        self.keep = keep

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        """Attend, and record the map."""
        q, k, v, bias = _heads_and_bias(q, k, v, distance, self.keep)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        probabilities = (scores if bias is None else scores + bias).softmax(-1)
        self.maps.append(probabilities)
        return (F.dropout(probabilities, drop) @ v).transpose(-2, -3)


def _heads_and_bias(
    q: Tensor, k: Tensor, v: Tensor, distance: Distance, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return q, k and v as [..., H, L, D], rotated by `distance`, and the bias of the scores.

    The bias, [..., H, Lq, Lk] or a shape that broadcasts to it, has the distances and the mask;
    None if there are neither.
    """
    q = q.transpose(-2, -3)
    k = k.transpose(-2, -3)
    v = v.transpose(-2, -3)
    first_query = k.shape[-2] - q.shape[-2]
    bias = distance(q, k, first_query)
    q, k = distance.rotate(q, k, first_query)
    if keep is not None:
        bias = with_penalty(_expanded_mask(keep, q, k) == 0, q, bias)
    return q, k, v, bias


def _expanded_mask(keep: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return a mask with the axes of the scores, [..., 1, Lq, Lk]. Raises ValueError."""
    shape = (*q.shape[:-3], 1, q.shape[-2], k.shape[-2])
    mask = torch.atleast_1d(keep)
    mask = mask[..., None, :, :] if _has_query_axis(keep, q) else mask[..., None, None, :]
    try:
        if mask.shape[-1] == shape[-1]:
            return mask.expand(shape)
    except RuntimeError:  # the leading axes differ
        pass
    raise ValueError(f"an attention mask {[*keep.shape]} does not fit scores {[*shape]}")


def _has_query_axis(keep: Tensor, q: Tensor) -> bool:
    """Return True if a mask is [..., Lq, Lk], not [..., Lk]."""
    return keep.ndim == q.ndim - 1


# --- kernels around kernels ---


def packed(lengths: Sequence[int]) -> Attend:
    """Return the kernel for [T]: texts of these lengths, concatenated, without padding.

    Neighbours of equal length go to `padded()` as one [B, L] batch, so texts that are sorted by
    length need few calls.
    """
    attend_padded = padded()
    shapes = [(len(list(texts)), length) for length, texts in groupby(lengths)]

    def batches(x: Tensor) -> list[Tensor]:  # [T, H, D] -> one [B, L, H, D] per shape
        flat = x.split([count * length for count, length in shapes])
        return [tokens.unflatten(0, shape) for tokens, shape in zip(flat, shapes, strict=True)]

    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        outputs = []
        for q_batch, k_batch, v_batch in zip(batches(q), batches(k), batches(v), strict=True):
            output = attend_padded(q_batch, k_batch, v_batch, distance, drop)
            outputs.append(output.flatten(0, 1))
        return torch.cat(outputs)

    return attend


def varlen(bounds: Tensor, longest: int) -> Attend:
    """Return the kernel for [T] on CUDA, which computes texts of all lengths in one call.

    Text i has the tokens from `bounds[i]` to `bounds[i + 1]`, int32 [B + 1]; `longest` is the
    greatest length. Every token attends to all of its text: the kernel ignores `distance` and
    `drop`. Raises RuntimeError if torch has no such kernel.

    FlashAttention computes tiles of 128 tokens per text, the memory-efficient kernel, slower for
    long texts, tiles of 64. Both are called without torch.nn.attention.varlen, because that imports
    torch's compiler, which doubles the start-up time.
    """
    aten = torch.ops.aten
    texts = (bounds, bounds, longest, longest)

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        if longest > LONGEST_SHORT_TEXT:
            return aten._flash_attention_forward(q, k, v, *texts, 0.0, False, False)[0]
        batch = (q[None], k[None], v[None])
        return aten._efficient_attention_forward(*batch, None, *texts, 0.0, 0)[0][0]

    return attend


def causal(kernel: Attend) -> Attend:
    """Return the kernel that hides later tokens from each token.

    Source: Attention Is All You Need, section 3.2.3.
    """

    @wraps(kernel)
    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        return kernel(q, k, v, Causal(distance), drop)

    return attend


def bidirectional(kernel: Attend) -> Attend:
    """Return the kernel unchanged: the counterpart of `causal` for encoders."""
    return kernel


def masked(
    keep: Tensor | None, direction: Callable[[Attend], Attend], kernel: Attend | None = None
) -> Attend:
    """Return the kernel for a caller's mask.

    A mask [..., L] is combined with the `direction` (`causal` or `bidirectional`); a mask of
    queries and keys, [..., Lq, Lk], replaces the direction, also in a decoder. `kernel` applies the
    mask itself, by default `padded(keep)`.
    Source: get_extended_attention_mask of transformers 4.57.
    """
    undirected = padded(keep) if kernel is None else kernel
    directed = direction(undirected)

    @wraps(undirected)
    def attend(q: Tensor, *inputs: Any) -> Tensor:
        if keep is not None and _has_query_axis(keep, q):
            return undirected(q, *inputs)
        return directed(q, *inputs)

    return attend


def cached(kernel: Attend, past: Sequence[Tensor], present: list[Tensor]) -> Attend:
    """Return a kernel in which new tokens attend to past and new tokens.

    `past` has the keys and values of one layer so far, each [B, L, H, D]; it is empty at the start.
    `present` receives past and new ones, and may be the same list.
    """

    @wraps(kernel)
    def attend(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> Tensor:
        if past:
            past_keys, past_values = past
            k = torch.cat((past_keys, k), dim=-3)
            v = torch.cat((past_values, v), dim=-3)
        present[:] = (k, v)
        return kernel(q, k, v, *inputs)

    return attend


def head_masked(kernel: Attend, weights: Tensor) -> Attend:
    """Return a kernel that multiplies the output of each head by its weight, [H] or [..., H].

    0 masks a head. Maps that the kernel records are multiplied as well.
    Source: Are Sixteen Heads Really Better than One?, section 2.3.
    """
    maps: list[Tensor] = getattr(kernel, "maps", [])
    map_weights = torch.atleast_2d(weights)[..., None].transpose(-2, -3)  # [..., H, L or 1, 1]

    @wraps(kernel)
    def attend(*inputs: Any) -> Tensor:
        first_new = len(maps)
        output = kernel(*inputs) * weights[..., None]
        maps[first_new:] = [attention * map_weights for attention in maps[first_new:]]
        return output

    return attend
