"""Learning tasks as objectives of the training loop: their targets, step by step.

The loss and the metrics are those of the task (`bertcli.tasks`). Here is what a model computes for
rows: logits of whole texts, of vectors, of tokens, or vectors of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.embedding.pooling import pool, split
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.tasks.learning import (
    HeadLearningTask,
    PairLearningTask,
    TextLearningTask,
    TokenLearningTask,
)
from bertcli.tokenizing.batch import Encoded
from bertcli.training.loop import Objective, Ranks, Sums, states, tensor


@dataclass(frozen=True, kw_only=True)
class HeadObjective(Objective):
    """Logits of a head, and the loss of their targets."""

    task: HeadLearningTask
    targets: Any  # [n, ...] of the rows
    weights: Any = None  # [k] of the labels
    smoothing: float = 0.0

    def targets_of(self, rows: Any) -> Any:
        """Return the targets of the logits of rows."""
        return self.targets[rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return the divisor of the loss of a step."""
        return (self.task.loss_count(self.targets_of(rows), self.weights),)

    def _truth_and_weights(self, rows: Any, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the targets of rows and the weights of labels, on the device of logits."""
        weights = None if self.weights is None else tensor(self.weights, logits)
        return tensor(self.targets_of(rows), logits), weights


@dataclass(frozen=True, kw_only=True)
class TextObjective(HeadObjective):
    """Logits [n, k] of texts, and the loss of their targets."""

    task: TextLearningTask

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of the first tokens of texts, or of the means of all."""
        tokens = self.data.take(rows)
        hidden = states(model.bert, tokens)
        if model.means:
            pooled = means(hidden, tokens.lengths.tolist())
        else:
            pooled = hidden.index_select(0, tensor(tokens.offsets[:-1], hidden))
        return model.packed_logits(pooled)

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the sum of the losses of rows."""
        logits = predicted.float()
        truth, weights = self._truth_and_weights(rows, logits)
        return (self.task.loss(logits, truth, weights, self.smoothing),)

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the metrics of the task."""
        logits = torch.cat([*outputs])
        predictions = self.task.predictions(self.targets_of(self.held), logits)
        return {**predictions.metrics(), "rows": len(self.held)}


class VectorObjective(TextObjective):
    """Logits of vectors that do not change, [n, D], and the loss of their targets."""

    def lengths(self, rows: Any) -> Any:
        """Return 1 for each vector."""
        return np.ones(len(rows), np.int64)

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of vectors."""
        return model(tensor(self.data[rows], model.weight))


@dataclass(frozen=True, kw_only=True)
class TokenObjective(HeadObjective):
    """Logits of all tokens, [T, k], and the loss of some. Rows are windows of texts."""

    task: TokenLearningTask
    windows: Sequence[Encoded]  # all windows
    truth: Sequence[Any]  # of texts
    labels: Sequence[str]

    def targets_of(self, rows: Any) -> Any:
        """Return the targets of the logits of windows."""
        return self.task.joined_targets(self.targets[rows])

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of all tokens."""
        return model.packed_logits(states(model.bert, self.data.take(rows)))

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the sum of the losses of windows."""
        logits = predicted.float()
        truth, weights = self._truth_and_weights(rows, logits)
        lengths = self.data.lengths[rows].tolist()
        return (self.task.loss(logits, truth, lengths, weights, self.smoothing),)

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the metrics of texts, from all their windows."""
        logits = split(torch.cat([*outputs]).numpy(), self.data.lengths[self.held])
        texts: dict[int, list[tuple[Encoded, Any]]] = {}
        for index in np.argsort(self.held):
            window = self.windows[self.held[index]]
            texts.setdefault(window.sample, []).append((window, logits[index]))
        truth = [self.truth[text] for text in texts]
        predictions = self.task.predictions(truth, [*texts.values()], self.labels)
        return {**predictions.metrics(), "rows": len(truth)}


# --- vectors of pairs ---

NO_TEXT = -1  # in place of the row of a negative text


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Vectors of pairs, and the loss of their cosines: all pairs of a step are one.

    In however many parts and processes: the vectors of all come first, and then part by part with
    their gradients, beside those of the others (as Gao et al., Scaling Deep Contrastive Learning
    Batch Size under Memory Limited Setup, 2021, known as GradCache).
    """

    task: PairLearningTask
    texts: Any  # [n, 3] rows of the texts of each example: one, the other, a negative or NO_TEXT
    targets: Any  # [n], or None: the pairs belong together
    modes: tuple[str, ...]  # of pooling

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of all texts of each example."""
        texts = self.texts[rows]
        return (self.data.lengths[texts] * (texts != NO_TEXT)).sum(1)

    def predict(self, model: BertModel, rows: Any) -> Tensor:
        """Return the vectors of examples, [3, n, D], of length 1, or 0 for no negative."""
        texts = self.texts[rows].T
        vectors = self._zeros(model, len(rows))
        numbers = texts[texts != NO_TEXT]
        order = np.argsort(self.data.lengths[numbers], kind="stable")
        tokens = self.data.take(numbers[order])
        pooled = pool(states(model, tokens), tokens.lengths.tolist(), self.modes)
        unsorted = pooled[tensor(np.argsort(order), pooled)]
        vectors[tensor(texts != NO_TEXT, vectors)] = F.normalize(unsorted.float(), dim=-1)
        return vectors

    def _zeros(self, model: BertModel, count: int) -> Tensor:
        width = model.config.hidden_size * len(self.modes)
        device = next(model.parameters()).device
        return torch.zeros(3, count, width, device=device)

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the loss of pairs of vectors, in float32, times their number."""
        left, right, negative = predicted
        negatives = negative[tensor(self.texts[rows, 2] != NO_TEXT, left)]
        truth = None if self.targets is None else tensor(self.targets[rows], left)
        with torch.autocast(left.device.type, enabled=False):  # half precision is too coarse
            return (self.task.loss(left, right, negatives, truth),)

    def parts(
        self, model: BertModel, rows: Any, own: Sequence[Any], seeds: Sequence[int], ranks: Ranks
    ) -> Sums:
        """Return what gives the share of a part in the loss, with all gradients of its own."""
        if len(own) == ranks.count == 1:
            return super().parts(model, rows, own, seeds, ranks)
        vectors = self._zeros(model, len(rows))
        for places, seed in zip(own, seeds, strict=True):
            torch.manual_seed(seed)
            with torch.no_grad():
                vectors[:, places] = self.predict(model, rows[places])
        ranks.sum(vectors)

        def share(places: Any) -> Sequence[Tensor]:
            step = vectors.clone()
            step[:, places] = self.predict(model, rows[places])
            (loss,) = self.sums(step, rows)
            return (loss - loss.detach() * (1 - len(places) / len(rows)),)

        return share

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the metrics of the task."""
        left, right, _ = torch.cat([*outputs], 1).double().numpy()
        truth = None if self.targets is None else self.targets[self.held]
        return {**self.task.metrics(left, right, truth), "rows": len(self.held)}
