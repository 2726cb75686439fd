"""Training on labels of whole texts: rows, logits and losses, and the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.evaluation.classes import ClassPredictions, LabelPredictions
from bertcli.evaluation.scores import ScorePredictions
from bertcli.models.heads import BertForSequenceClassification
from bertcli.training.batches import Columns, in_batches, token_batch
from bertcli.training.objective import Objective, states, tensor
from bertcli.training.ranks import Ranks

LIKELY = 0.5  # from which a label of several is predicted


@dataclass(frozen=True)
class LabelLoss:
    """Logits [B, k] and targets to a loss: its sum, and what it is divided by.

    Source: transformers, loss/loss_utils.py ForSequenceClassificationLoss; class weights and label
    smoothing as torch's cross_entropy has them.
    """

    task: str  # classify, multilabel or regress
    weights: Any = None  # [k] of the classes; of several labels: of those that are true
    smoothing: float = 0.0

    def count(self, found: Columns) -> float:
        """Return what the sum over a step is divided by."""
        targets = found["targets"]
        if self.task == "classify" and self.weights is not None:
            return float(self.weights[targets].sum())
        return float(targets.size)

    def sum(self, logits: Tensor, found: Columns) -> Tensor:
        """Return the sum of the losses of some rows."""
        logits, device = logits.float(), logits.device
        targets = tensor(found["targets"], device)
        weights = None if self.weights is None else tensor(self.weights, device)
        match self.task:
            case "classify":
                return F.cross_entropy(
                    logits, targets, weights, reduction="sum", label_smoothing=self.smoothing
                )
            case "multilabel":
                smoothed = targets * (1 - self.smoothing) + self.smoothing / 2
                return F.binary_cross_entropy_with_logits(
                    logits, smoothed, pos_weight=weights, reduction="sum"
                )
            case _:
                return F.mse_loss(logits.squeeze(-1), targets, reduction="sum")

    def metrics(self, logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Return the metrics of n predictions, from logits [n, k]."""
        scores = torch.from_numpy(logits)
        match self.task:
            case "classify":
                return ClassPredictions(targets, scores.softmax(-1).numpy()).metrics()
            case "multilabel":
                said = scores.sigmoid().numpy() >= LIKELY
                return LabelPredictions(targets > LIKELY, said).metrics()
            case _:
                return ScorePredictions(targets, logits[:, 0]).metrics()


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
