"""Random initial weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertcli.models.norms import RMSNorm


def truncated_normal(weight: Tensor, std: float = 1.0) -> Tensor:
    """Fill a weight from a normal distribution truncated at two standard deviations.

    Source: create_initializer in modeling.py of google-research/bert.
    """
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def normal(weight: Tensor, std: float = 1.0) -> Tensor:
    """Fill a weight from a normal distribution. Source: _init_weights of transformers."""
    return nn.init.normal_(weight, std=std)


@torch.no_grad()
def initialise(
    module: nn.Module, std: float, draw: Callable[[Tensor, float], Tensor] = truncated_normal
) -> None:
    """Initialise all weights of a module; biases and rows of padding become 0, norms 1.

    `std` is the config's `initializer_range`.
    """
    for name, weight in module.named_parameters():
        initialise_weight(name, weight, std, draw)
    for layer in module.modules():
        if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
            nn.init.zeros_(layer.weight[layer.padding_idx])
        elif isinstance(layer, RMSNorm):
            nn.init.constant_(layer.weight, 1 - layer.offset)


def initialise_weight(
    name: str,
    weight: Tensor,
    std: float,
    draw: Callable[[Tensor, float], Tensor] = truncated_normal,
) -> None:
    """Initialise one weight; the name shows if it is a bias (0) or of a norm (1)."""
    if name.endswith("bias"):
        nn.init.zeros_(weight)
    elif name.endswith("LayerNorm.weight"):
        nn.init.ones_(weight)
    else:
        draw(weight, std)
