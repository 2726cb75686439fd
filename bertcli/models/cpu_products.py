"""Matrix products of a prepared model: the same numbers as `nn.Linear`, sooner.

A product is made of a loaded `nn.Linear` and has three ways to end: as it is, `bent` by the exact
GELU, or added to what went in. What the fused kernels of a library can do in one pass over memory,
a product does in one. For inference only: a product has no parameters, and cannot be pickled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALL = 8  # the rows of a product that is tried out


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return the linear layer of this weight [out, in] and bias."""
    made = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # skips the random start
    made.weight = nn.Parameter(weight)
    made.register_parameter("bias", None if bias is None else nn.Parameter(bias))
    return made


def some_units(layer: nn.Linear, units: Tensor) -> nn.Linear:
    """Return a layer without the others of its outputs; `units` are numbers or a mask."""
    bias: Tensor | None = layer.bias  # torch's type says that there is one
    return linear(layer.weight.detach()[units], None if bias is None else bias.detach()[units])


def side_by_side(layers: Sequence[nn.Linear]) -> nn.Linear:
    """Return one layer for several of the same input, whose outputs stand one after the other."""
    weight = torch.cat([one.weight.detach() for one in layers])
    biases = [one.bias.detach() for one in layers if one.bias is not None]
    return linear(weight, torch.cat(biases) if biases else None)


class Plain(nn.Module):
    """The product as torch computes it, which runs everywhere."""

    def __init__(self, layer: nn.Linear, *, bent: bool = False) -> None:
        super().__init__()
        self.linear, self.bent = layer, bent

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        made: Tensor = self.linear(x)
        return F.gelu(made) if self.bent else made

    def add(self, x: Tensor, to: Tensor) -> Tensor:
        """Map, then add to [..., out]."""
        made: Tensor = self.linear(x) + to
        return made


class Prepacked(nn.Module):
    """The product by oneDNN, the weight laid out once the way that its kernels read it."""

    def __init__(self, layer: nn.Linear, *, bent: bool = False) -> None:
        super().__init__()
        self.end: tuple[str, list[float], str] = ("gelu" if bent else "none", [], "none" * bent)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        bias: Tensor | None = layer.bias  # torch's type says that there is one
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        made: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self.end)
        return made

    def add(self, x: Tensor, to: Tensor) -> Tensor:
        """Map, then add to [..., out]."""
        made: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, to, self.weight, self.bias, "add"
        )
        return made


def cannot_prepack(dtype: torch.dtype) -> str:
    """Return why there is no `Prepacked` for a dtype; an empty string when there is."""
    if not torch.backends.mkldnn.is_available():
        return "this torch has no oneDNN"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"oneDNN is not asked for {str(dtype)[6:]}"
    try:
        return _tried(dtype)
    except (AttributeError, RuntimeError) as reason:  # an older torch, or another processor
        return f"oneDNN says {str(reason).splitlines()[0]}"


def _tried(dtype: torch.dtype) -> str:
    """Compare a small product with torch's own."""
    weight, bias = torch.linspace(-1, 1, 1024).view(32, 32), torch.linspace(-1, 1, 32)
    layer = linear(weight.to(dtype), bias.to(dtype))
    x = torch.linspace(-2, 2, 32 * SMALL).view(SMALL, 32).to(dtype)
    made = ((Prepacked(layer, bent=bent), Plain(layer, bent=bent)) for bent in (False, True))
    same = (
        torch.allclose(ours(x).float(), plain(x).float(), rtol=0.02, atol=0.02)
        for ours, plain in made
    )
    return "" if all(same) else "oneDNN gives other numbers here"
