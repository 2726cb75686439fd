"""Activation functions as modules of torch, and GELU within the product before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.errors import ModelError
from bertcli.models.activations import ACTIVATIONS

Activation: TypeAlias = Callable[[Tensor], Tensor]


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
    """Return the activation function for a value of `hidden_act`: a name, or a function.

    Raises ModelError for an unknown name.
    """
    if not isinstance(name, str):
        return ActivationFunction(name)
    if name not in ACTIVATIONS:
        raise ModelError(f"hidden_act {name!r} is unknown", hint=f"known: {', '.join(ACTIVATIONS)}")
    return ActivationFunction(ACTIVATIONS[name].torch())
