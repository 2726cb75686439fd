"""The training loop: AdamW, and one optimizer step after another, on one process or many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertcli.inference.devices import dtype_of
from bertcli.models.bert import BertEncoder, recomputing
from bertcli.training.batches import Columns, Order, parts
from bertcli.training.objective import Objective, StepParts, autocast
from bertcli.training.options import Schedule, TrainingOptions
from bertcli.training.ranks import Ranks

MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW, per weight, as torch names them
ALIGNED = 16  # floats: each gradient is aligned to 64 bytes, as a tensor of its own would be


class Gradients:
    """The gradients of all weights in one tensor, for sums over processes and norms."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        kept = list(weights)
        sizes = [-(-weight.numel() // ALIGNED) * ALIGNED for weight in kept]
        self.flat = torch.zeros(sum(sizes), device=kept[0].device)
        for weight, room in zip(kept, self.flat.split(sizes), strict=True):
            weight.grad = room[: weight.numel()].view_as(weight)

    def clear(self) -> None:
        """Set all gradients to zero."""
        self.flat.zero_()

    def clip(self, most: float) -> Tensor:
        """Return the norm of all gradients, after which it is at most `most`; 0 never clips."""
        norm: Tensor = torch.linalg.vector_norm(self.flat)
        if most:
            self.flat.mul_((most / (norm + 1e-6)).clamp(max=1.0))
        return norm


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that are trained, by name."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def adamw(model: nn.Module, options: TrainingOptions) -> torch.optim.AdamW:
    """Make the optimizer; biases and the weights of LayerNorm do not decay.

    Source: BERT, appendix A.2, and the optimizer of google-research/bert.
    """
    still: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    for name, weight in trained(model).items():
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
        fused=(decaying + still)[0].device.type in ("cpu", "cuda"),
    )


def moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return the moments of the optimizer, by moment and weight name."""
    return {
        f"{moment}.{name}": optimizer.state[weight][moment]
        for name, weight in trained(model).items()
        for moment in MOMENTS
        if weight in optimizer.state
    }


def remember(
    model: nn.Module, optimizer: torch.optim.AdamW, kept: Mapping[str, Tensor], updates: int
) -> None:
    """Restore what `moments` returned after this number of updates."""
    for name, weight in trained(model).items():
        if f"{MOMENTS[0]}.{name}" in kept:
            state = {
                moment: kept[f"{moment}.{name}"].to(weight.device, copy=True) for moment in MOMENTS
            }
            fused = weight.device.type == "cuda"
            where = weight.device if fused else torch.device("cpu")
            state["step"] = torch.tensor(float(updates), device=where)
            optimizer.state[weight] = state


class StepResult(NamedTuple):
    """The results of one optimizer step."""

    step: int  # counted from 1
    losses: Mapping[str, float]
    lr: float
    grad_norm: float
    tokens: int

    @property
    def values(self) -> dict[str, float]:
        """The numbers of the step, by name."""
        return {**self.losses, "lr": self.lr, "grad_norm": self.grad_norm, "tokens": self.tokens}


class Training:
    """A model, its optimizer and its objective: `step` moves the weights once.

    Losses are means over the whole batch, whoever computes which part of it. Every process sums
    gradients that are already divided by the counts of the whole batch, so that any number of
    processes and of parts gives the same weights, up to rounding. Dropout is seeded by the seed,
    the step, the process and the part.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        rows: Any,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self.model, self.objective = model.train(), objective
        self.options, self.ranks = options, ranks
        self.order = Order(rows, options.batch_size, options.seed)
        self.schedule: Schedule = options.schedule(len(rows))
        self.optimizer = adamw(model, options)
        self.gradients = Gradients(trained(model).values())
        self.dtype = dtype_of(options.dtype)
        half = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=half)
        if options.gradient_checkpointing:
            for part in model.modules():
                if isinstance(part, BertEncoder):
                    part.call = recomputing

    def step(self, number: int) -> StepResult:
        """Run a step, numbered from 0; FloatingPointError when its loss is not finite."""
        objective = self.objective
        found = objective.read(self.order.batch(number))
        counts = objective.counts(found)
        rate = self.schedule.at(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.gradients.clear()
        sums = torch.zeros(len(counts), device=self.ranks.device)
        own = self._own(found)
        seeds = [self._seed(number, part) for part in range(len(own))]
        for part, seed in zip(self._joined(found, own, seeds), seeds, strict=True):
            torch.manual_seed(seed)
            sums += self._backward(part, counts)
        self.ranks.sum(sums)
        norm = self._update()
        means = [total / count for total, count in zip(sums, counts, strict=True)]
        *losses, norm = torch.stack([*means, norm]).tolist()
        self._refuse_infinite(sum(losses), norm)
        named = dict(zip(objective.losses, losses, strict=True))
        return StepResult(number + 1, named, rate, norm, int(found["lengths"].sum()))

    def _own(self, found: Columns) -> list[Columns]:
        """Return the parts of a batch for this process, without empty parts."""
        ranks = self.ranks
        dealt = parts(found, ranks.count * self.options.gradient_accumulation_steps)
        return [part for part in dealt[ranks.index :: ranks.count] if len(part["lengths"])]

    def _joined(
        self, found: Columns, own: list[Columns], seeds: Sequence[int]
    ) -> Sequence[Columns]:
        """Return the parts of this process with what they must know of the rest of the step."""
        ranks = self.ranks
        if ranks.count * self.options.gradient_accumulation_steps == 1:
            return own
        with autocast(ranks.device, self.dtype):
            return self.objective.joined(self.model, StepParts(found, own), seeds, ranks)

    def _seed(self, number: int, part: int) -> int:
        mixed = self.options.seed
        for value in (number, self.ranks.index, part):
            mixed = (mixed * 6364136223846793005 + value + 1442695040888963407) % 2**63
        return mixed

    def _backward(self, part: Columns, counts: Sequence[float]) -> Tensor:
        """Add the gradients of some rows to those of the batch; return the sum of each loss."""
        device = self.ranks.device
        with autocast(device, self.dtype):
            sums = self.objective.sums(self.model, part, device)
        means = [total / count for total, count in zip(sums, counts, strict=True)]
        loss: Tensor = self.scaler.scale(torch.stack(means).sum())
        loss.backward()
        return torch.stack([total.detach() for total in sums])

    def _update(self) -> Tensor:
        self.ranks.sum(self.gradients.flat)
        self.scaler.unscale_(self.optimizer)
        norm = self.gradients.clip(self.options.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return norm

    def _refuse_infinite(self, loss: float, norm: float) -> None:
        """Raise FloatingPointError; gradients may overflow where a scaler skips the step then."""
        if not isfinite(loss):
            raise FloatingPointError(f"the loss is {loss}")
        if not isfinite(norm) and not self.scaler.is_enabled():
            raise FloatingPointError(f"the norm of the gradients is {norm}")

    @property
    def updates(self) -> int:
        """Number of optimizer updates so far."""
        states = self.optimizer.state.values()
        return int(next((state["step"].item() for state in states), 0))
