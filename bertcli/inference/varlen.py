"""The kernel for packed texts on a GPU, which proves itself on that GPU before it is used."""

from __future__ import annotations

from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from bertcli.inference.tell import SILENCE, Tell
from bertcli.models.attention import Varlen, packed, padded, varlen
from bertcli.models.bert import BertModel
from bertcli.models.positions import NoDistance

TRIED = (1, 2, 17, 64, 129, 3, 300)  # tokens of the texts that are tried


def varlen_kernel(model: BertModel, device: torch.device, tell: Tell = SILENCE) -> Varlen | None:
    """Return torch's kernel for packed texts; None, which `tell` hears of, where it is not fit."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        reason = f"torch {torch.__version__} does not have it"
    else:
        reason = unfit(model, device, cast("Varlen", varlen_attn))
        if not reason:
            tell.detail("attention: varlen, without padding")
            return cast("Varlen", varlen_attn)  # which returns more only where that is asked for
    tell.detail(f"attention: padded ({reason})")
    return None


def unfit(model: BertModel, device: torch.device, run: Varlen) -> str:
    """Return why a kernel cannot run this model on this device; "" when it can.

    It is tried on a small batch, and has to give what the padded path gives.
    """
    layers = [layer.attention.self for layer in model.encoder.layer]
    dtype = model.embeddings.word_embeddings.weight.dtype
    if dtype.itemsize != 2:
        return f"varlen computes in half precision, not in {str(dtype)[6:]}"
    plain = all(type(layer.distance_embedding) is NoDistance for layer in layers)
    if model.config.is_decoder or not plain:
        return "varlen cannot add to the scores"
    config = model.config
    heads = {config.heads(at) for at in range(len(layers))}  # fewer where some are pruned
    try:
        apart = [_difference(run, count, config.head_size, dtype, device) for count in heads]
    except (RuntimeError, ValueError, TypeError) as failed:
        return f"varlen failed: {str(failed).partition(chr(10))[0]}"
    if not all(one < 8 * torch.finfo(dtype).eps for one in apart):
        return f"varlen differs from it by {max(apart):.2g}"
    return ""


@torch.inference_mode()
def _difference(
    run: Varlen, heads: int, size: int, dtype: torch.dtype, device: torch.device
) -> float:
    """Return how far a kernel is from the padded path, for all tokens and for the first of each.

    Random queries, keys and values: what a text sees of another one changes its own a lot.
    """
    total, starts = sum(TRIED), [0, *accumulate(TRIED)]
    draw = torch.Generator().manual_seed(1)
    made = torch.randn(3, total, heads, size, generator=draw).to(device, dtype)
    bounds = torch.tensor(starts, dtype=torch.int32, device=device)
    first = torch.tensor(starts[:-1], device=device)

    def apart(q: Tensor, queries: int | None) -> float:
        _, k, v = made
        expected = packed(TRIED, padded(at=0), queries)(q, k, v, NoDistance(), 0.0)
        found = varlen(bounds, max(TRIED), run, queries)(q, k, v, NoDistance(), 0.0)
        return float((found.float() - expected.float()).abs().max())

    return max(apart(made[0], None), apart(made[0][first], 1))
