"""The functions that config.json names in `hidden_act`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.errors import ModelError

Activation: TypeAlias = Callable[[Tensor], Tensor]

# What torch's kernels on a CPU divide numbers by: vectorized_loop in its Loops.h, at AVX-512.
STEP = 64  # numbers taken together; those left over are computed one by one, with other last bits
GRAIN = 1 << 15  # numbers that are worth another thread; GELU takes all threads long before


def gelu_tanh(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its tanh approximation, as in Google's BERT."""
    return F.gelu(x, approximate="tanh")


def gelu_10(x: Tensor) -> Tensor:
    """Gaussian error linear unit, clipped so that 8-bit integers can hold it."""
    return F.gelu(x).clamp(-10, 10)


def quick_gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its sigmoid approximation."""
    return x * torch.sigmoid(1.702 * x)


def relu2(x: Tensor) -> Tensor:
    """Rectified linear unit, squared. Source: Primer, section 4."""
    return F.relu(x).square()


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
    "gelu_10": gelu_10,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu2,
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


def in_whole_steps(bend: Activation) -> Activation:
    """Return an activation for a CPU: a number's bits depend neither on the others nor on threads.

    Numbers are filled up where a thread would get others than whole steps.
    """

    def bent(x: Tensor) -> Tensor:
        count = size = x.numel()
        threads = torch.get_num_threads()
        while idle := -size % (STEP * math.lcm(threads, min(threads, -(-size // GRAIN) or 1))):
            size += idle
        if size == count:
            return bend(x)
        return bend(F.pad(x.flatten(), (0, size - count)))[:count].view(x.shape)

    return bent


def activation(name: str) -> Activation:
    """Find the function that config.json calls `hidden_act`; ModelError when there is none."""
    if name not in ACTIVATIONS:
        raise ModelError(f"hidden_act {name!r} is unknown", hint=f"known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
