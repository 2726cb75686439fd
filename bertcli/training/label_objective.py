"""Training on labels of whole texts: rows, logits and losses, and the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertcli.models.heads import BertForSequenceClassification
from bertcli.training.batches import Columns, in_batches, token_batch
from bertcli.training.label_losses import LabelLoss
from bertcli.training.objective import Objective, states, tensor
from bertcli.training.ranks import Ranks

Logits = Callable[[Any, Columns, torch.device], Tensor]  # (model, rows, device) -> [B, k]


@dataclass(frozen=True, kw_only=True)
class LabelObjective(Objective):
    """Logits of whole texts, and the loss of their labels; columns hold ``targets``."""

    logits: Logits
    loss: LabelLoss
    width: int  # of the logits

    def counts(self, found: Columns) -> Sequence[float]:
        """Return what the loss of a step is divided by."""
        return (self.loss.count(found),)

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of the loss over some rows."""
        return (self.loss.sum(self.logits(model, part, device), part),)

    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss and the metrics of the task."""
        device, parts = ranks.device, []
        own = self.held[ranks.index :: ranks.count]
        for rows in in_batches(own, batch_size):
            parts.append(self.logits(model, self.read(rows), device).float())
        logits = torch.zeros(len(self.held), self.width, device=device)
        if parts:
            logits[ranks.index :: ranks.count] = torch.cat(parts)
        logits = ranks.sum(logits).cpu()
        found = self.read(self.held)
        loss = self.loss.sum(logits, found).item() / self.loss.count(found)
        metrics = self.loss.metrics(logits.numpy(), np.asarray(found["targets"]))
        return {"eval_loss": loss, **metrics, "rows": len(self.held)}


def text_logits(
    model: BertForSequenceClassification, part: Columns, device: torch.device
) -> Tensor:
    """Return the logits of texts, [B, k], of their first tokens, or of the means of all."""
    tokens = token_batch(part, padded=device.type != "cpu")
    hidden = states(model.bert, tokens, device)
    judged = hidden.index_select(0, tensor(tokens.starts, device))
    if model.means:
        ends = zip(tokens.starts, tokens.starts + tokens.lengths, strict=True)
        judged = torch.stack([hidden[start:end].mean(0) for start, end in ends])
    return model.logits(judged.unsqueeze(-2))
