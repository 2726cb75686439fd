"""Products of 8-bit integers: weights by output channel, what goes in by token.

Each token is scaled by itself alone, so what comes out does not depend on the batch. Embeddings,
attention, LayerNorm and sums stay float32. In the feed-forward block GELU needs the true scale
inside the product, so there the scales are fixed when the model is prepared, and a token that does
not fit into them is computed in float32: which tokens those are depends on each token alone too.

Letters as in attention.py. Sources: LLM.int8(), section 3, for scales and what stays float;
SmoothQuant, section 4, for the share of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.model.bert import BertModel
from bertcli.model.products import Plain, Prepacked, linear

MIDDLE = 128  # what zero becomes, as the fast kernels want unsigned numbers
REACH = 127.0  # the largest number on both sides of zero
TINY = 1e-12  # a token of zeros has a scale too
LOW = -0.17  # GELU is nowhere lower (-0.16997)
SPARE = 1.25  # how much further than the sample the fixed scales reach
LOUD = 64  # intermediate units that stay float32, as they would set the scale of all
CHUNK = 1024  # tokens of a feed-forward block at a time, which a cache holds


def smoothing(weight: Tensor, seen: Tensor) -> Tensor:
    """Return what each input [in] is divided by, and its weights multiplied, to be of one size.

    `seen` is the largest size of each input in a sample. Source: SmoothQuant, equation 4.
    """
    # An input that was silent in the sample, as after ReLU, can speak up elsewhere.
    seen = seen.clamp_min(float(seen.mean()) / 4)
    return (seen.clamp_min(TINY) / weight.abs().amax(0).clamp_min(TINY)).sqrt()


class Weights:
    """The weight [out, in] in 8 bits, a scale for each output, laid out for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.scale = weight.abs().amax(1).clamp_min(TINY) / REACH
        whole = (weight / self.scale[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero = torch.zeros(len(whole), dtype=torch.int32)
        self.bias = bias

    def product(self, x: Tensor, scale: float, zero: int, bias: Tensor | None) -> Tensor:
        """Multiply unsigned x [T, in] by the weight: [T, out] in float32."""
        made: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, scale, zero, self.packed, self.scale, self.zero, bias,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return made

    def bent(self, x: Tensor, scale: float, to: tuple[float, int]) -> Tensor:
        """Multiply, bend by GELU, and make bytes of this scale and zero: [T, out]."""
        made: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, scale, MIDDLE, self.packed, self.scale, self.zero, self.bias,
            *to, torch.uint8, "gelu", [], "none",
        )  # fmt: skip
        return made


class EightBit(nn.Module):
    """A product whose input is scaled token by token."""

    def __init__(self, layer: nn.Linear, seen: Tensor) -> None:
        super().__init__()
        weight = layer.weight.detach()
        smooth = smoothing(weight, seen)
        self.smaller = smooth.reciprocal()
        self.weights = Weights(weight * smooth, layer.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        flat = x.reshape(-1, x.shape[-1]) * self.smaller
        widest = torch.maximum(flat.amax(-1, keepdim=True), -flat.amin(-1, keepdim=True))
        scale = widest.clamp_min(TINY) / REACH
        whole = _rounded(flat, scale.reciprocal())
        made = self.weights.product(whole, 1.0, MIDDLE, None)
        made = torch.addcmul(self.weights.bias, made, scale, out=made)
        return made.view(*x.shape[:-1], -1)

    def gelu(self, x: Tensor) -> Tensor:
        """Map, then bend."""
        return F.gelu(self(x))

    def add(self, x: Tensor, to: Tensor) -> Tensor:
        """Map, then add to [..., out]."""
        return self(x).add_(to)


def _rounded(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply [T, in] by factors and round to bytes around MIDDLE: half a step up, then cut."""
    return torch.addcmul(torch.tensor(MIDDLE + 0.5), x, factor).to(torch.uint8)


class EightBitFeedForward(nn.Module):
    """Widen, bend by the exact GELU, narrow, add, normalise, with fixed scales."""

    def __init__(
        self,
        wide: nn.Linear,
        narrow: nn.Linear,
        norm: nn.Module,
        seen: tuple[Tensor, Tensor],
        exact: type[Plain] | type[Prepacked],
    ) -> None:
        """Fix the scales by the largest sizes that the input and GELU's result had in a sample."""
        super().__init__()
        self.LayerNorm = norm
        weight, bias, back = (x.detach() for x in (wide.weight, wide.bias, narrow.weight))
        loud = seen[1].topk(min(LOUD, len(bias) - 1)).indices
        nothing = torch.zeros(len(back))
        self.exact = exact(wide), exact(narrow)
        self.loud = exact(linear(weight[loud], bias[loud])), exact(linear(back[:, loud], nothing))
        smooth = smoothing(weight, seen[0])
        self.scale = float((seen[0] / smooth).amax()) * SPARE / REACH
        self.factor = 1 / (smooth * self.scale)
        reach = float(seen[1].index_fill(0, loud, 0).amax())
        scale = (reach * SPARE - LOW) / 254  # 255 means: did not fit
        self.bent = scale, round(-LOW / scale)
        self.wide = Weights((weight * smooth).index_fill(0, loud, 0), bias.index_fill(0, loud, 0))
        self.narrow = Weights(back.index_fill(1, loud, 0), narrow.bias.detach())

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Map x [..., hidden] to [..., hidden]; y is x, as nothing comes between."""
        flat = x.reshape(-1, x.shape[-1])
        made: Tensor = self.LayerNorm(torch.cat([self._some(some) for some in flat.split(CHUNK)]))
        return made.view(x.shape)

    def _some(self, x: Tensor) -> Tensor:
        moved = torch.addcmul(torch.tensor(MIDDLE + 0.5), x, self.factor)
        fits = (moved.amax(-1) < 256) & (moved.amin(-1) >= 0)
        bent = self.wide.bent(moved.to(torch.uint8), self.scale, self.bent)
        fits &= bent.amax(-1) < 255
        made = self.narrow.product(bent, *self.bent, self.narrow.bias)
        made = _through(self.loud, x, made).add_(x)
        if not fits.all():
            # A lone row would be added up in another order, and later roundings would differ.
            rest = x[~fits]
            some = rest.repeat(2, 1) if len(rest) == 1 else rest
            made[~fits] = _through(self.exact, some, some)[: len(rest)]
        return made


def _through(products: Sequence[Plain | Prepacked], x: Tensor, to: Tensor) -> Tensor:
    wide, narrow = products
    return narrow.add(wide.gelu(x), to)


@torch.inference_mode()
def sizes(model: BertModel, sample: Sequence[Sequence[int]]) -> dict[nn.Module, Tensor]:
    """Return the largest size of each input [in] of each linear layer over texts of these ids."""
    found: dict[nn.Module, Tensor] = {}

    def look(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        size = inputs[0].abs().flatten(0, -2).amax(0)
        found[layer] = torch.maximum(found.get(layer, size), size)

    layers = [part for part in model.encoder.modules() if isinstance(part, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    for ids in sample:
        row = torch.tensor([ids[: model.config.max_position_embeddings]])
        model(row, extra={name: torch.zeros_like(row) for name in model.embeddings.extra})
    for hook in hooks:
        hook.remove()
    return found


def cannot_multiply() -> str:
    """Return why there are no products of 8-bit integers; an empty string when there are."""
    try:
        weights = Weights(torch.full((16, 64), 127.0), torch.zeros(16))
        made = weights.product(torch.full((4, 64), 255, dtype=torch.uint8), 1.0, 0, None)
    except (AttributeError, RuntimeError) as reason:  # another torch, or another processor
        return f"oneDNN says {str(reason).splitlines()[0]}"
    exact = torch.allclose(made, torch.tensor(255.0 * 127 * 64))  # some processors saturate
    return "" if exact else "this processor's products of 8-bit integers are not exact"
