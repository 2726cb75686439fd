"""The functions that config.json names in `hidden_act`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.errors import ModelError

Activation: TypeAlias = Callable[[Tensor], Tensor]


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


def laplace(x: Tensor) -> Tensor:
    """Distribution function of a normal variable near relu2. Source: Mega, section 3.2."""
    return 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2))))


def sqrt_softplus(x: Tensor) -> Tensor:
    """Square root of the smooth rectified linear unit."""
    return F.softplus(x).sqrt()


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
    "laplace": laplace,
    "sqrtsoftplus": sqrt_softplus,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "linear": linear,
}


def gelu_of_linear(dense: nn.Linear, x: Tensor) -> Tensor:
    """Gaussian error linear unit of a linear layer, [..., out], in one pass; without a gradient.

    On CUDA it is the tanh approximation.
    """
    flat = torch._addmm_activation(dense.bias, x.flatten(0, -2), dense.weight.T, use_gelu=True)
    return flat.unflatten(0, x.shape[:-1])


class ActivationFunction(nn.Module):
    """A function of `ACTIVATIONS`, or of a user, as a module: `print(model)` shows it."""

    def __init__(self, function: Activation) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to every number."""
        return self.function(x)

    def _get_name(self) -> str:
        """Return the name in `print(model)`: that of transformers for GELU, or the function's."""
        name: str = getattr(self.function, "__name__", type(self.function).__name__)
        return "GELUActivation" if self.function is F.gelu else name


def activation(name: str | Activation) -> ActivationFunction:
    """Return the function that config.json calls `hidden_act`; ModelError when there is none.

    From Python it may be the function itself.
    """
    if not isinstance(name, str):
        return ActivationFunction(name)
    if name not in ACTIVATIONS:
        raise ModelError(f"hidden_act {name!r} is unknown", hint=f"known: {', '.join(ACTIVATIONS)}")
    return ActivationFunction(ACTIVATIONS[name])
