"""Products of 8-bit integers: weights by output channel, what goes in by scales fixed beforehand.

With fixed scales a kernel finishes a product in one pass: bias, GELU, sum. A token that does not
fit into them is computed in float32. Which tokens those are depends on each token alone, so what
comes out does not depend on the batch. Embeddings, attention, LayerNorm and sums stay float32.

Letters as in attention.py. Sources: LLM.int8(), section 3, for what stays float; SmoothQuant,
section 4, for the share of the weights; Zhao et al. 2019 (outlier channel splitting) for MORE.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.models.cpu_products import Plain, Prepacked, linear
from bertcli.models.int8_rounding import rounded

MIDDLE = 127  # what zero becomes, as the fast kernels want unsigned numbers
REACH = 126.0  # the largest number on both sides of zero
HIGHEST = 254  # a byte this large means: did not fit. What was too low wraps around to 255
STEPS = 127.0  # of a weight on both sides of zero
TINY = 1e-12  # inputs of zeros have a scale too
LOW = -0.17  # GELU is nowhere lower (-0.16997)
SPARE = 1.2  # how much further than the sample the fixed scales reach
AMPLE = 1.4  # the same for what attention mixes: rounding costs least there
SHARE = 0.6  # of the differing sizes of inputs, how much the weights take over
MORE = 32  # bytes a token for inputs that one byte cannot hold: the scale of all can be finer
LOUD = 40  # intermediate units that stay float32, as they would set the scale of all
CHUNK = 1024  # tokens at a time, which a cache holds
ROWS = 16  # products of tokens that did not fit have a multiple of so many rows


def finest(reach: Tensor, more: int) -> tuple[float, Tensor]:
    """Return a scale for inputs of this reach [in], and how many further bytes each then needs.

    Of the scales that this many further bytes allow it is the finest; what is left goes to the
    furthest.
    """
    scales = reach.topk(min(more + 1, len(reach))).values
    needed = (reach / scales[:, None]).ceil().sub(1).clamp_min(0)  # a row for each scale
    enough = int((needed.sum(1) <= more).nonzero().amax())
    counts = needed[enough].long()
    counts[reach.argmax()] += more - counts.sum()
    return float(scales[enough]), counts


class Bytes:
    """How inputs [T, in] become bytes [T, in + more] of one scale."""

    def __init__(self, weight: Tensor, inputs: Tensor, spare: float, more: int = MORE) -> None:
        """Choose by the weight [out, in] and the inputs [n, in] of a sample.

        The bytes reach ``spare`` times as far as the sample.
        """
        seen = inputs.abs().amax(0)
        # An input that was silent in the sample, as after ReLU, can speak up elsewhere.
        seen = seen.clamp_min(float(seen.mean()) / 4).clamp_min(TINY)
        # Source: SmoothQuant, equation 4.
        self.smooth = seen**SHARE / weight.abs().amax(0).clamp_min(TINY) ** (1 - SHARE)
        self.scale, counts = finest(seen / self.smooth * spare / REACH, more)
        self.factor = 1 / (self.smooth * self.scale)
        self.of = torch.arange(len(seen)).repeat_interleave(counts)
        after = torch.arange(more) - (counts.cumsum(0) - counts)[self.of]  # 0 for the first of each
        self.before = (after + 1) * REACH
        last = after + 1 == counts[self.of]
        self.ends = _ends(counts == 0)
        self.rest = _ends(last)

    def weights(self, weight: Tensor, bias: Tensor, inputs: Tensor) -> Int8Weights:
        """Return the weight [out, in] for the bytes."""
        return Int8Weights(weight * self.smooth, bias, inputs / self.smooth, self.of)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Make the bytes, and say which tokens fit into them, [T]."""
        whole = torch.empty(len(x), x.shape[1] + len(self.of), dtype=torch.uint8)
        parts = zip(x.split(CHUNK), whole.split(CHUNK), strict=True)
        return whole, torch.cat([self._fill(some, made) for some, made in parts])

    def _fill(self, x: Tensor, whole: Tensor) -> Tensor:
        moved = torch.addcmul(torch.tensor(MIDDLE + 0.5), x, self.factor).clamp_(*self.ends)
        # By way of int16, as there is no fast conversion from float32.
        whole[:, : x.shape[1]].copy_(moved.to(torch.int16))
        if len(self.of):
            far, factor = x.index_select(1, self.of), self.factor[self.of]
            rest = torch.addcmul(torch.tensor(0.5), far, factor).floor_()
            rest.sub_(rest.clamp(-self.before, self.before)).add_(MIDDLE).clamp_(*self.rest)
            whole[:, x.shape[1] :].copy_(rest.to(torch.int16))
        return whole.amax(-1) < HIGHEST


def _ends(last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest that a byte can be: the last of a number tells of more."""
    return torch.where(last, -1.0, MIDDLE - REACH), torch.where(last, HIGHEST, MIDDLE + REACH)


class Int8Weights:
    """The weight [out, in] in 8 bits, a scale for each output, laid out for oneDNN."""

    def __init__(
        self, weight: Tensor, bias: Tensor, inputs: Tensor, again: Tensor | None = None
    ) -> None:
        """Round by the inputs [n, in] of a sample; those at ``again`` come again at the end."""
        self.scale = weight.abs().amax(1).clamp_min(TINY) / STEPS
        whole = rounded(weight / self.scale[:, None], inputs, STEPS).to(torch.int8)
        if again is not None:
            whole = torch.cat([whole, whole[:, again]], 1)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero = torch.zeros(len(whole), dtype=torch.int32)
        self.bias = bias

    def product(self, x: Tensor, scale: float, zero: int = MIDDLE) -> Tensor:
        """Multiply unsigned x [T, in] by the weight: [T, out] in float32."""
        made: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, scale, zero, self.packed, self.scale, self.zero, self.bias,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return made

    def add(self, x: Tensor, to: Tensor, scale: float, zero: int = MIDDLE) -> Tensor:
        """Multiply, and add to float32 [T, out]."""
        made: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            x, scale, zero, self.packed, self.scale, self.zero, to, self.bias,
            1.0, 0, torch.float32, 1.0, 0, "add", 1.0, "none", [], "",
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
    """A product of 8-bit integers."""

    def __init__(
        self,
        layer: nn.Linear,
        inputs: Tensor,
        exact: type[Plain] | type[Prepacked],
        *,
        mixed: bool = False,
    ) -> None:
        """Fix the scales by the inputs [n, in] of a sample, ``mixed`` by attention or not."""
        super().__init__()
        weight = layer.weight.detach()
        self.bytes = Bytes(weight, inputs, *((AMPLE, 0) if mixed else (SPARE, MORE)))
        self.weights = self.bytes.weights(weight, layer.bias.detach(), inputs)
        self.exact = exact(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        flat = x.reshape(-1, x.shape[-1])
        whole, fits = self.bytes(flat)
        made = self.weights.product(whole, self.bytes.scale)
        return mended(made, fits, self.exact, flat).view(*x.shape[:-1], -1)

    def add(self, x: Tensor, to: Tensor) -> Tensor:
        """Map, then add to [..., out]."""
        flat, to = x.reshape(-1, x.shape[-1]), to.reshape(-1, to.shape[-1])
        whole, fits = self.bytes(flat)
        made = self.weights.add(whole, to, self.bytes.scale)
        return mended(made, fits, self.exact.add, flat, to).view(*x.shape[:-1], -1)


def mended(made: Tensor, fits: Tensor, exact: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Put into made [T, out] what is exact for the tokens that did not fit."""
    some = (~fits).nonzero()[:, 0]
    if len(some):
        # Filled up with the first token, as there is a kernel for each number of rows. One alone
        # would be added up in another order, and later roundings would differ.
        filled = F.pad(some, (0, -len(some) % ROWS))
        made[some] = exact(*(x[filled] for x in inputs))[: len(some)]
    return made


class EightBitFeedForward(nn.Module):
    """Widen, bend by the exact GELU, narrow, add, normalise, with fixed scales."""

    def __init__(
        self,
        wide: nn.Linear,
        narrow: nn.Linear,
        norm: nn.Module,
        inputs: tuple[Tensor, Tensor],
        exact: type[Plain] | type[Prepacked],
    ) -> None:
        """Fix the scales by the inputs of both layers, [n, in], in a sample."""
        super().__init__()
        self.LayerNorm = norm
        weight, bias, back = (x.detach() for x in (wide.weight, wide.bias, narrow.weight))
        seen = inputs[1].abs().amax(0)
        loud = seen.topk(min(LOUD, len(bias) - 1)).indices
        # Not by `torch.addmm`, which adds up a few rows in another order than many.
        none = torch.zeros(len(back))
        self.loud = exact(linear(weight[loud], bias[loud])), exact(linear(back[:, loud], none))
        self.exact = exact(wide), exact(narrow)
        weight, bias = weight.index_fill(0, loud, 0), bias.index_fill(0, loud, 0)
        back, bent = (x.index_fill(1, loud, 0) for x in (back, inputs[1]))
        self.bytes = Bytes(weight, inputs[0], SPARE)
        self.wide = self.bytes.weights(weight, bias, inputs[0])
        scale = (float(seen.index_fill(0, loud, 0).amax()) * SPARE - LOW) / 254  # 255: did not fit
        self.bent = scale, round(-LOW / scale)
        self.narrow = Int8Weights(back, narrow.bias.detach(), bent)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Map x [..., hidden] to [..., hidden]; y is x, as nothing comes between."""
        flat = x.reshape(-1, x.shape[-1])
        parts = [self._some(some) for some in flat.split(CHUNK)]
        made, fits = (torch.cat(part) for part in zip(*parts, strict=True))
        normal: Tensor = self.LayerNorm(mended(made, fits, self._exact, flat))
        return normal.view(x.shape)

    def _some(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole, fits = self.bytes(x)
        bent = self.wide.bent(whole, self.bytes.scale, self.bent)
        fits &= bent.amax(-1) < 255
        wide, narrow = self.loud
        made = narrow.add(wide.gelu(x), self.narrow.add(bent, x, *self.bent))
        return made, fits

    def _exact(self, x: Tensor) -> Tensor:
        wide, narrow = self.exact
        return narrow.add(wide.gelu(x), x)


def cannot_multiply() -> str:
    """Return why there are no products of 8-bit integers; an empty string when there are."""
    try:
        weights = Int8Weights(torch.full((16, 64), 127.0), torch.zeros(16), torch.ones(1, 64))
        made = weights.product(torch.full((4, 64), 255, dtype=torch.uint8), 1.0, 0)
    except (AttributeError, RuntimeError) as reason:  # another torch, or another processor
        return f"oneDNN says {str(reason).splitlines()[0]}"
    exact = torch.allclose(made, torch.tensor(255.0 * 127 * 64))  # some processors saturate
    return "" if exact else "this processor's products of 8-bit integers are not exact"
