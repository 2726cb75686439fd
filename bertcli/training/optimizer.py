"""AdamW as BERT was trained with, and gradients that lie in one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from bertcli.training.options import TrainingOptions

MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW remembers of each weight, in torch's words
ALIGNED = 16  # floats: each gradient begins at 64 bytes, as an allocation of its own would


class Gradients:
    """The gradients of all weights as one tensor: to be summed over processes, and measured."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        kept = list(weights)
        sizes = [-(-weight.numel() // ALIGNED) * ALIGNED for weight in kept]
        self.flat = torch.zeros(sum(sizes), device=kept[0].device)
        for weight, room in zip(kept, self.flat.split(sizes), strict=True):
            weight.grad = room[: weight.numel()].view_as(weight)

    def clear(self) -> None:
        """Begin a step."""
        self.flat.zero_()

    def clip(self, most: float) -> Tensor:
        """Return the norm of all gradients, after which it is at most `most`; 0 never clips."""
        norm: Tensor = torch.linalg.vector_norm(self.flat)
        if most:
            self.flat.mul_((most / (norm + 1e-6)).clamp(max=1.0))
        return norm


def adamw(model: nn.Module, options: TrainingOptions) -> torch.optim.AdamW:
    """Make the optimizer; biases and the weights of LayerNorm do not decay.

    Source: BERT, appendix A.2, and the optimizer of google-research/bert.
    """
    still: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        no_decay = name.endswith("bias") or "LayerNorm" in name
        (still if no_decay else decaying).append(weight)
    groups = [
        {"params": decaying, "weight_decay": options.weight_decay},
        {"params": still, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=options.learning_rate,
        betas=(options.adam_beta1, options.adam_beta2),
        eps=options.adam_epsilon,
        fused=decaying[0].device.type in ("cpu", "cuda"),
    )


def moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return what the optimizer remembers, by moment and weight."""
    return {
        f"{moment}.{name}": optimizer.state[weight][moment]
        for name, weight in model.named_parameters()
        for moment in MOMENTS
        if weight in optimizer.state
    }


def remember(
    model: nn.Module, optimizer: torch.optim.AdamW, kept: Mapping[str, Tensor], updates: int
) -> None:
    """Give an optimizer what `moments` returned after so many updates."""
    for name, weight in model.named_parameters():
        if f"{MOMENTS[0]}.{name}" in kept:
            state = {
                moment: kept[f"{moment}.{name}"].to(weight.device, copy=True) for moment in MOMENTS
            }
            fused = weight.device.type == "cuda"
            where = weight.device if fused else torch.device("cpu")
            state["step"] = torch.tensor(float(updates), device=where)
            optimizer.state[weight] = state
