"""The training itself: one optimizer step after the other, the same on one process or on many."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertcli.inference.devices import dtype_of
from bertcli.models.heads import BertForPreTraining
from bertcli.models.layer_calls import recomputing
from bertcli.training.batches import Columns, Order, collate, parts, read
from bertcli.training.loss import predict
from bertcli.training.optimizer import Gradients, adamw
from bertcli.training.options import TrainingOptions
from bertcli.training.ranks import Ranks
from bertcli.training.schedule import Schedule
from bertcli.training.shards import Instances


class Step(NamedTuple):
    """What one optimizer step was like."""

    step: int  # counted from 1
    mlm_loss: float
    nsp_loss: float
    lr: float
    grad_norm: float
    tokens: int


class Training:
    """A model, its optimizer and its data: `step` moves the weights once.

    Losses are means over the whole batch, whoever computes which part of it: over all its masked
    tokens, and over all its rows. Every process sums gradients that are already divided by these
    global counts, so that any number of processes and of parts gives the same weights, up to
    rounding. Dropout is seeded by the seed, the step, the process and the part.
    """

    def __init__(
        self,
        model: BertForPreTraining,
        data: Instances,
        rows: Any,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self.model, self.data, self.options, self.ranks = model.train(), data, options, ranks
        self.order = Order(rows, options.batch_size, options.seed)
        self.schedule: Schedule = options.schedule(len(rows))
        self.optimizer = adamw(model, options)
        self.gradients = Gradients(model.parameters())
        self.dtype = dtype_of(options.dtype)
        half = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=half)
        if options.gradient_checkpointing:
            model.bert.encoder.call = recomputing

    def step(self, number: int) -> Step:
        """Do the step of this number, from 0; FloatingPointError when its loss is no number."""
        found = read(self.data, self.order.batch(number))
        rows, masked = len(found["lengths"]), max(int(found["masked_lm_counts"].sum()), 1)
        rate = self.schedule.at(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.gradients.clear()
        sums = torch.zeros(2, device=self.ranks.device)
        for part, own in enumerate(self._own(found)):
            torch.manual_seed(self._seed(number, part))
            sums += self._backward(own, masked, rows)
        self.ranks.sum(sums)
        norm = self._update()
        mlm, nsp, norm = torch.stack([sums[0] / masked, sums[1] / rows, norm]).tolist()
        self._refuse_infinite(mlm + nsp, norm)
        return Step(number + 1, mlm, nsp, rate, norm, int(found["lengths"].sum()))

    def _own(self, found: Columns) -> list[Columns]:
        """Return the parts of a batch that are this process's, those without a row left out."""
        ranks = self.ranks
        dealt = parts(found, ranks.count * self.options.gradient_accumulation_steps)
        return [part for part in dealt[ranks.index :: ranks.count] if len(part["lengths"])]

    def _seed(self, number: int, part: int) -> int:
        """Mix what names a part of a step into one number, far from that of any other part."""
        mixed = self.options.seed
        for value in (number, self.ranks.index, part):
            mixed = (mixed * 6364136223846793005 + value + 1442695040888963407) % 2**63
        return mixed

    def _backward(self, part: Columns, masked: int, rows: int) -> Tensor:
        """Add the gradients of some rows to those of the batch; return the sums of both losses."""
        device = self.ranks.device
        batch = collate(part, padded=device.type != "cpu")
        with torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32):
            words, follows = predict(self.model, batch, device).losses()
        loss: Tensor = self.scaler.scale(words / masked + follows / rows)
        loss.backward()
        return torch.stack([words.detach(), follows.detach()])

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
        """How often the optimizer has moved the weights."""
        states = self.optimizer.state.values()
        return int(next((state["step"].item() for state in states), 0))
