"""The losses of one class, several labels or a number of each text, as transformers has them.

Source: transformers, loss/loss_utils.py ForSequenceClassificationLoss; class weights and label
smoothing as torch's cross_entropy has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.evaluation.classes import ClassPredictions, LabelPredictions
from bertcli.evaluation.scores import ScorePredictions
from bertcli.training.batches import Columns
from bertcli.training.objective import tensor

LIKELY = 0.5  # from which a label of several is predicted


@dataclass(frozen=True)
class LabelLoss:
    """Logits [B, k] and targets to a loss: its sum, and what it is divided by."""

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
