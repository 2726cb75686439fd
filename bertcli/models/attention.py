"""Attention kernels: how tokens attend to each other.

Letters: `B` batch, `L` length, `T` packed tokens, `H` heads, `D` head size; `...` in front of `H`
is `[B, L]` or `[T]`, and only the kernel knows which.

Everything else in BERT treats each token alone. So padding, packing, caching, recording and head
masks are all kernels, or kernels around kernels, and a model takes them as an argument.
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

from bertcli.models.positions import Backwards, Distance, hide

# (q, k, v, distance, dropout probability) with q, k, v [..., H, D] -> [..., H, D]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, Distance, float], Tensor]

SHORT = 64  # tokens of texts for which `varlen` has another kernel


# --- kernels ---


def padded(keep: Tensor | None = None) -> Attend:
    """Make the kernel for [B, L]: scaled dot-product attention to every token of the mask `keep`.

    `keep` is [..., Lk], 1 for tokens and 0 for padding, or [..., Lq, Lk], 1 where a query may look
    at a key, with the `...` of the queries; ValueError for another shape. The queries are the last
    of the keys, as in a decoder with a cache.
    Source: Attention Is All You Need, section 3.2.1.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        q, k, v, bias = _scored(q, k, v, distance, keep)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop)
        return mixed.transpose(-2, -3)

    return attend


TO_ALL: Attend = padded()  # without a mask: each token attends to all of its text


class Recording:
    """A kernel like `padded` that also appends its attention map, [..., H, Lq, Lk], to `maps`.

    The maps come in the order of the calls, so one per layer, and before dropout; `keep` is as in
    `padded`. Kernels around it have its attributes, as `functools.wraps` gives them; so a head mask
    finds the maps.
    """

    def __init__(self, maps: list[Tensor], keep: Tensor | None = None) -> None:
        self.maps, self.keep = maps, keep

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        """Attend and record the map."""
        q, k, v, bias = _scored(q, k, v, distance, self.keep)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        probabilities = (scores if bias is None else scores + bias).softmax(-1)
        self.maps.append(probabilities)
        return (F.dropout(probabilities, drop) @ v).transpose(-2, -3)


def _scored(
    q: Tensor, k: Tensor, v: Tensor, distance: Distance, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return q, k and v as [..., H, L, D], turned by `distance`, and what is added to scores."""
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    first = k.shape[-2] - q.shape[-2]
    near = distance(q, k, first)
    q, k = distance.rotate(q, k, first)
    return q, k, v, near if keep is None else hide(_spread(keep, q, k) == 0, q, near)


def _spread(keep: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Give a mask the axes of the scores, [..., H, Lq, Lk]."""
    axes = (*q.shape[:-3], 1, q.shape[-2], k.shape[-2])
    rows = torch.atleast_1d(keep)
    spread = rows[..., None, :, :] if _from_to(keep, q) else rows[..., None, None, :]
    try:
        if spread.shape[-1] == axes[-1]:
            return spread.expand(axes)
    except RuntimeError:  # it has other axes
        pass
    raise ValueError(f"an attention mask {[*keep.shape]} does not fit scores {[*axes]}")


def _from_to(keep: Tensor, q: Tensor) -> bool:
    """Tell whether a mask has an axis of queries, from the number of leading axes of q."""
    return keep.ndim == q.ndim - 1


# --- kernels around kernels ---


def packed(lengths: Sequence[int]) -> Attend:
    """Make the kernel for [T]: texts of these lengths, concatenated, without padding.

    Neighbours of equal length go to `padded()` as one [B, L] batch, so texts that are sorted by
    length need few calls.
    """
    inner = padded()
    shapes = [(len(list(same)), length) for length, same in groupby(lengths)]

    def runs(x: Tensor) -> list[Tensor]:  # [T, H, D] -> [B, L, H, D] of these shapes
        parts = x.split([count * length for count, length in shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]

    def attend(q: Tensor, k: Tensor, v: Tensor, *beside: Any) -> Tensor:
        parts = zip(runs(q), runs(k), runs(v), strict=True)
        mixed = [inner(q, k, v, *beside) for q, k, v in parts]
        return torch.cat([run.flatten(0, 1) for run in mixed])

    return attend


def varlen(bounds: Tensor, longest: int) -> Attend:
    """Make the kernel for [T] with which CUDA takes texts of all lengths in one call.

    Text i is the tokens from `bounds[i]` to `bounds[i + 1]`, int32 [B + 1]; none is longer than
    `longest`. Every token of a text sees all of it, and nothing is added to the scores or dropped:
    `distance` and `drop` are not asked. RuntimeError where torch has no kernel for that.

    Of torch's two kernels, FlashAttention computes with 128 tokens of a text at a time, however
    many there are, and the other one, which is slower for long texts, with 64. Both are called
    without torch.nn.attention.varlen, which brings torch's compiler: nearly as long a start again.
    """
    aten, texts = torch.ops.aten, (bounds, bounds, longest, longest)

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        if longest > SHORT:
            return aten._flash_attention_forward(q, k, v, *texts, 0.0, False, False)[0]
        row = q[None], k[None], v[None]
        return aten._efficient_attention_forward(*row, None, *texts, 0.0, 0)[0][0]

    return attend


def causal(kernel: Attend) -> Attend:
    """Mask the tokens after each token.

    Source: Attention Is All You Need, section 3.2.3.
    """

    @wraps(kernel)
    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        return kernel(q, k, v, Backwards(distance), drop)

    return attend


def bidirectional(kernel: Attend) -> Attend:
    """Mask nothing: the counterpart of `causal` in an encoder."""
    return kernel


def masked(
    keep: Tensor | None, direction: Callable[[Attend], Attend], kernel: Attend | None = None
) -> Attend:
    """Make the kernel for the mask that a caller gives: [..., L] holds within the `direction`.

    A mask of queries and keys, [..., Lq, Lk], replaces the direction, also in a decoder. `kernel`
    is the one of that mask, `padded(keep)` by default.
    Source: get_extended_attention_mask of transformers 4.57.
    """
    everywhere = padded(keep) if kernel is None else kernel
    directed = direction(everywhere)

    @wraps(everywhere)
    def attend(q: Tensor, *beside: Any) -> Tensor:
        has_queries = keep is not None and _from_to(keep, q)
        return (everywhere if has_queries else directed)(q, *beside)

    return attend


def cached(kernel: Attend, past: Sequence[Tensor], present: list[Tensor]) -> Attend:
    """Make a kernel that lets new tokens attend to all tokens, past ones included.

    `past` has the keys and values of one layer so far, each [B, L, H, D], or nothing at the start;
    `present` gets those and the new ones. It may be the same list.
    """

    @wraps(kernel)
    def attend(q: Tensor, k: Tensor, v: Tensor, *beside: Any) -> Tensor:
        if past:
            k, v = (torch.cat(pair, dim=-3) for pair in zip(past, (k, v), strict=True))
        present[:] = k, v
        return kernel(q, k, v, *beside)

    return attend


def head_masked(kernel: Attend, weights: Tensor) -> Attend:
    """Multiply the output of each head by its weight, [H] or [..., H]; 0 masks the head.

    The maps that the kernel records are multiplied as well.
    Source: Are Sixteen Heads Really Better than One?, section 2.3.
    """
    maps: list[Tensor] = getattr(kernel, "maps", [])
    of_maps = torch.atleast_2d(weights)[..., None].transpose(-2, -3)  # [..., H, L or 1, 1]

    @wraps(kernel)
    def attend(*inputs: Any) -> Tensor:
        before = len(maps)
        mixed = kernel(*inputs) * weights[..., None]
        maps[before:] = [attention * of_maps for attention in maps[before:]]
        return mixed

    return attend
