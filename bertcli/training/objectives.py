"""Learning tasks as objectives of the training loop, with the targets of each row.

The loss and the metrics are defined by the task (`bertcli.tasks`). Objectives compute the model's
outputs for rows: logits of texts, of vectors or of tokens, or vectors of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.embedding.pooling import pool, split_by_sizes
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import mean_states
from bertcli.tasks.learning import (
    HeadLearningTask,
    PairLearningTask,
    TextLearningTask,
    TokenLearningTask,
)
from bertcli.tokenizing.batch import Encoded
from bertcli.training.loop import LossSums, Objective, Ranks, hidden_states, tensor


@dataclass(frozen=True, kw_only=True)
class HeadObjective(Objective):
    """Logits of a head, and their loss against targets."""

    task: HeadLearningTask
    targets: Any  # [n, ...], per row
    weights: Any = None  # [k], per label
    smoothing: float = 0.0

    def targets_of(self, rows: Any) -> Any:
        """Return the targets of rows."""
        return self.targets[rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return the divisor of the loss of a step."""
        return (self.task.loss_divisor(self.targets_of(rows), self.weights),)

    def _targets_and_weights(self, rows: Any, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the targets of rows and the label weights, on the device of the logits."""
        weights = None if self.weights is None else tensor(self.weights, logits)
        return tensor(self.targets_of(rows), logits), weights


@dataclass(frozen=True, kw_only=True)
class TextObjective(HeadObjective):
    """Logits [n, k] of texts, and their loss against targets."""

    task: TextLearningTask

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of texts, from their first token or from the mean of all tokens."""
        tokens = self.inputs.take(rows)
        hidden = hidden_states(model.bert, tokens)
        if model.means:
            pooled = mean_states(model.before_mean(hidden), tokens.lengths.tolist())
        else:
            pooled = hidden.index_select(0, tensor(tokens.offsets[:-1], hidden))
        return model.packed_logits(pooled)

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the summed loss of rows."""
        logits = predicted.float()
        targets, weights = self._targets_and_weights(rows, logits)
        return (self.task.loss(logits, targets, weights, self.smoothing),)

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the task's metrics on the held-out rows."""
        logits = torch.cat(list(outputs))
        predictions = self.task.predictions(self.targets_of(self.held_out), logits)
        return {**predictions.metrics(), "rows": len(self.held_out)}


class VectorObjective(TextObjective):
    """Logits of frozen vectors [n, D], and their loss against targets."""

    def lengths(self, rows: Any) -> Any:
        """Return 1 for each vector."""
        return np.ones(len(rows), np.int64)

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of vectors."""
        return model(tensor(self.inputs[rows], model.weight))


@dataclass(frozen=True, kw_only=True)
class TokenObjective(HeadObjective):
    """Logits [T, k] of tokens, and the loss of those with a target. Rows are windows of texts."""

    task: TokenLearningTask
    windows: Sequence[Encoded]  # all windows
    metric_targets: Sequence[Any]  # targets of the texts, as metrics take them
    labels: Sequence[str]

    def targets_of(self, rows: Any) -> Any:
        """Return the joined targets of windows."""
        return self.task.joined_targets(self.targets[rows])

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of all tokens."""
        return model.packed_logits(hidden_states(model.bert, self.inputs.take(rows)))

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the summed loss of windows."""
        logits = predicted.float()
        targets, weights = self._targets_and_weights(rows, logits)
        lengths = self.inputs.lengths[rows].tolist()
        return (self.task.loss(logits, targets, lengths, weights, self.smoothing),)

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the metrics of texts; each text combines the logits of its windows."""
        logits = split_by_sizes(
            torch.cat(list(outputs)).numpy(), self.inputs.lengths[self.held_out]
        )
        texts: dict[int, list[tuple[Encoded, Any]]] = {}
        for index in np.argsort(self.held_out):
            window = self.windows[self.held_out[index]]
            texts.setdefault(window.sample, []).append((window, logits[index]))
        targets = [self.metric_targets[text] for text in texts]
        predictions = self.task.predictions(targets, list(texts.values()), self.labels)
        return {**predictions.metrics(), "rows": len(targets)}


# --- vectors of pairs ---

NO_TEXT = -1  # stands for the row of a missing negative text


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Vectors of pairs, and a loss of their cosines over all pairs of a step.

    The loss is the same for any number of micro-batches and processes: the vectors of the whole
    step are computed without gradients first, then those of each micro-batch again with gradients,
    beside the vectors of the others. Source: GradCache (Gao et al., Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup, 2021).
    """

    task: PairLearningTask
    texts: Any  # [n, 3] rows of each example's texts: left, right, and a negative or NO_TEXT
    targets: Any  # [n], or None if all pairs are positive
    modes: tuple[str, ...]  # pooling modes

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of each example, over all of its texts."""
        texts = self.texts[rows]
        return (self.inputs.lengths[texts] * (texts != NO_TEXT)).sum(1)

    def predict(self, model: BertModel, rows: Any) -> Tensor:
        """Return the vectors [3, n, D] of examples, normalized; zeros for a missing negative."""
        texts = self.texts[rows].T
        vectors = self._zeros(model, len(rows))
        text_rows = texts[texts != NO_TEXT]
        order = np.argsort(self.inputs.lengths[text_rows], kind="stable")
        tokens = self.inputs.take(text_rows[order])
        pooled = pool(hidden_states(model, tokens), tokens.lengths.tolist(), self.modes)
        in_text_order = pooled[tensor(np.argsort(order), pooled)]
        vectors[tensor(texts != NO_TEXT, vectors)] = F.normalize(in_text_order.float(), dim=-1)
        return vectors

    def _zeros(self, model: BertModel, count: int) -> Tensor:
        """Return vectors of zeros, [3, count, D]."""
        width = model.config.hidden_size * len(self.modes)
        device = next(model.parameters()).device
        return torch.zeros(3, count, width, device=device)

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the summed loss of pairs of vectors, in float32."""
        left, right, negative = predicted
        negatives = negative[tensor(self.texts[rows, 2] != NO_TEXT, left)]
        targets = None if self.targets is None else tensor(self.targets[rows], left)
        with torch.autocast(left.device.type, enabled=False):  # half precision is too coarse
            return (self.task.loss(left, right, negatives, targets),)

    def micro_batch_sums(
        self,
        model: BertModel,
        rows: Any,
        micro_batches: Sequence[Any],
        seeds: Sequence[int],
        ranks: Ranks,
    ) -> LossSums:
        """Return the function that computes a micro-batch's share of the loss and its gradients."""
        if len(micro_batches) == ranks.count == 1:
            return super().micro_batch_sums(model, rows, micro_batches, seeds, ranks)
        vectors = self._zeros(model, len(rows))
        for positions, seed in zip(micro_batches, seeds, strict=True):
            torch.manual_seed(seed)
            with torch.no_grad():
                vectors[:, positions] = self.predict(model, rows[positions])
        ranks.sum(vectors)

        def share(positions: Any) -> Sequence[Tensor]:
            step_vectors = vectors.clone()
            step_vectors[:, positions] = self.predict(model, rows[positions])
            (loss,) = self.sums(step_vectors, rows)
            return (loss - loss.detach() * (1 - len(positions) / len(rows)),)

        return share

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the task's metrics on the held-out rows."""
        left, right, _ = torch.cat(list(outputs), 1).double().numpy()
        targets = None if self.targets is None else self.targets[self.held_out]
        return {**self.task.metrics(left, right, targets), "rows": len(self.held_out)}
