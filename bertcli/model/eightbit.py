"""Products of 8-bit integers: weights by output channel, what goes in by scales fixed beforehand.

With fixed scales a kernel finishes a product in one pass: bias, GELU, sum. A token that does not
fit into them is computed in float32. Which tokens those are depends on each token alone, so what
comes out does not depend on the batch. Embeddings, attention, LayerNorm and sums stay float32.

Letters as in attention.py. Sources: LLM.int8(), section 3, for what stays float; SmoothQuant,
section 4, for the share of the weights; Zhao et al. 2019 (outlier channel splitting) for MORE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertcli.model.bert import BertModel
from bertcli.model.products import Plain, Prepacked

MIDDLE = 128  # what zero becomes, as the fast kernels want unsigned numbers
REACH = 127.0  # the largest number on both sides of zero
TINY = 1e-12  # inputs of zeros have a scale too
LOW = -0.17  # GELU is nowhere lower (-0.16997)
SPARE = 1.25  # how much further than the sample the fixed scales reach
AMPLE = 2.0  # the same for what attention mixes: rounding costs least there
SHARE = 0.6  # of the differing sizes of inputs, how much the weights take over
MORE = 32  # bytes a token for inputs that one byte cannot hold: the scale of all can be finer
FULL = REACH - 1  # what a byte holds that another follows; the next number means: did not fit
LOUD = 32  # intermediate units that stay float32, as they would set the scale of all
CHUNK = 1024  # tokens of a feed-forward block at a time, which a cache holds


def finest(reach: Tensor) -> tuple[float, Tensor]:
    """Return a scale for inputs of this reach [in], and how many further bytes each then needs.

    Of the scales that MORE further bytes allow it is the finest; what is left goes to the furthest.
    """
    scales = reach.topk(min(MORE + 1, len(reach))).values
    needed = (reach / scales[:, None]).ceil().sub(1).clamp_min(0)  # a row for each scale
    enough = int((needed.sum(1) <= MORE).nonzero().amax())
    counts = needed[enough].long()
    counts[reach.argmax()] += MORE - counts.sum()
    return float(scales[enough]), counts


class Bytes:
    """How inputs [T, in] become bytes [T, in + MORE] of one scale."""

    def __init__(self, weight: Tensor, seen: Tensor, spare: float) -> None:
        """Choose by the weight [out, in] and the largest size that each input had in a sample.

        The bytes reach ``spare`` times as far as the sample.
        """
        # An input that was silent in the sample, as after ReLU, can speak up elsewhere.
        seen = seen.clamp_min(float(seen.mean()) / 4).clamp_min(TINY)
        # Source: SmoothQuant, equation 4.
        self.smooth = seen**SHARE / weight.abs().amax(0).clamp_min(TINY) ** (1 - SHARE)
        self.scale, counts = finest(seen / self.smooth * spare / FULL)
        self.factor = 1 / (self.smooth * self.scale)
        self.far = counts.nonzero()[:, 0]
        each = [int(n) for n in counts[self.far]]
        self.of = torch.arange(len(each)).repeat_interleave(torch.tensor(each))
        self.before = torch.cat([torch.arange(1.0, n + 1) for n in each]) * FULL
        self.most = torch.cat([torch.tensor([FULL] * (n - 1) + [REACH]) for n in each])

    def widened(self, weight: Tensor) -> Tensor:
        """Return the weight [out, in + MORE] for the bytes."""
        smooth = weight * self.smooth
        return torch.cat([smooth, smooth[:, self.far[self.of]]], 1)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Make the bytes, and say which tokens fit into them, [T]."""
        moved = torch.addcmul(torch.tensor(MIDDLE + 0.5), x, self.factor)
        far = moved.index_select(1, self.far).floor_().sub_(MIDDLE)
        moved.index_copy_(1, self.far, far.clamp(-FULL, FULL).add_(MIDDLE))
        rest = far.index_select(1, self.of)
        rest.sub_(rest.clamp(-self.before, self.before)).clamp_(-self.most, self.most)
        whole = torch.empty(len(x), x.shape[1] + MORE, dtype=torch.uint8)
        # By way of int16, as there is no fast conversion from float32.
        whole[:, : x.shape[1]].copy_(moved.clamp_(0, 255).to(torch.int16))
        whole[:, x.shape[1] :].copy_(rest.add_(MIDDLE))
        return whole, (whole.amax(-1) < MIDDLE + REACH) & (whole.amin(-1) > MIDDLE - REACH)


class Weights:
    """The weight [out, in] in 8 bits, a scale for each output, laid out for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.scale = weight.abs().amax(1).clamp_min(TINY) / REACH
        whole = (weight / self.scale[:, None]).round().to(torch.int8)
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
        seen: Tensor,
        exact: type[Plain] | type[Prepacked],
        spare: float = SPARE,
    ) -> None:
        """Fix the scale by the largest size that each input had in a sample."""
        super().__init__()
        weight = layer.weight.detach()
        self.bytes = Bytes(weight, seen, spare)
        self.weights = Weights(self.bytes.widened(weight), layer.bias.detach())
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
    if not fits.all():
        # A lone row would be added up in another order, and later roundings would differ.
        some = [x[~fits].repeat(2, 1) for x in inputs]
        made[~fits] = exact(*some)[: len(some[0]) // 2]
    return made


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
        self.loud = bias[loud], weight[loud].t().contiguous(), back[:, loud].t().contiguous()
        self.exact = exact(wide), exact(narrow)
        self.bytes = Bytes(weight, seen[0], SPARE)
        reach = float(seen[1].index_fill(0, loud, 0).amax())
        scale = (reach * SPARE - LOW) / 254  # 255 means: did not fit
        self.bent = scale, round(-LOW / scale)
        widened = self.bytes.widened(weight).index_fill(0, loud, 0)
        self.wide = Weights(widened, bias.index_fill(0, loud, 0))
        self.narrow = Weights(back.index_fill(1, loud, 0), narrow.bias.detach())

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
        made = self.narrow.add(bent, x, *self.bent)
        bias, wide, narrow = self.loud
        made.addmm_(F.gelu(torch.addmm(bias, x, wide)), narrow)
        return made, fits

    def _exact(self, x: Tensor) -> Tensor:
        wide, narrow = self.exact
        return narrow.add(wide.gelu(x), x)


@torch.inference_mode()
def sizes(model: BertModel, sample: Sequence[Sequence[int]]) -> dict[nn.Module, Tensor]:
    """Return the largest size of each input [in] of each linear layer over texts of these ids."""
    found: dict[nn.Module, Tensor] = {}

    def look(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        size = inputs[0].abs().flatten(0, -2).amax(0)
        found[layer] = torch.maximum(found.get(layer, size), size)

    layers = [part for part in model.encoder.modules() if isinstance(part, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the last bits are those of the threads, and scales must not differ
    try:
        for ids in sample:
            row = torch.tensor([ids[: model.config.max_position_embeddings]])
            model(row, extra={name: torch.zeros_like(row) for name in model.embeddings.extra})
    finally:
        torch.set_num_threads(threads)
        for hook in hooks:
            hook.remove()
    return found


def cannot_multiply() -> str:
    """Return why there are no products of 8-bit integers; an empty string when there are."""
    try:
        weights = Weights(torch.full((16, 64), 127.0), torch.zeros(16))
        made = weights.product(torch.full((4, 64), 255, dtype=torch.uint8), 1.0, 0)
    except (AttributeError, RuntimeError) as reason:  # another torch, or another processor
        return f"oneDNN says {str(reason).splitlines()[0]}"
    exact = torch.allclose(made, torch.tensor(255.0 * 127 * 64))  # some processors saturate
    return "" if exact else "this processor's products of 8-bit integers are not exact"
