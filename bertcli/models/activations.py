"""The functions that config.json names in `hidden_act`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.errors import ModelError

Activation: TypeAlias = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its tanh approximation, as in Google's BERT."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its sigmoid approximation."""
    return x * torch.sigmoid(1.702 * x)


def linear(x: Tensor) -> Tensor:
    """Identity."""
    return x


ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_accurate": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "swish": F.silu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}


def activation(name: str | Activation) -> Activation:
    """Find the function that config.json calls `hidden_act`; ModelError when there is none.

    From Python it may be the function itself.
    """
    if not isinstance(name, str):
        return name
    if name not in ACTIVATIONS:
        raise ModelError(f"hidden_act {name!r} is unknown", hint=f"known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
