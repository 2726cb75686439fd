"""Losses of heads: labels of texts, tags of words, and answers; and their evaluation.

Sources: transformers' BertForSequenceClassification and its loss_utils.py, class weights and label
smoothing as in torch's cross_entropy; BertForTokenClassification, where the first token of each
word carries its tag, as in the paper (5.3); BertForQuestionAnswering, where a window without the
answer has it at its first token, [CLS], as in the paper (4.3) and run_squad, and the softmax is
over the tokens of the window alone, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from bertcli.evaluation.metrics import (
    ClassPredictions,
    LabelPredictions,
    ScorePredictions,
    TagPredictions,
    TruePredictions,
    answer_predictions,
)
from bertcli.models.forward_passes import means
from bertcli.models.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertcli.records.examples import AnswerSpan, Example
from bertcli.tasks.answer import Choosing
from bertcli.tasks.classify import LIKELY
from bertcli.tasks.tag import own_words
from bertcli.tokenizing.columns import Encoded, span
from bertcli.training.batches import Columns, TokenRows, token_batch
from bertcli.training.loop import Objective, states, tensor

Logits = Callable[[Any, Columns, torch.device], Tensor]  # (model, rows, device) -> [n, k]


@dataclass(frozen=True)
class LabelLoss:
    """Logits [B, k] and targets to a loss: its sum, and what it is divided by."""

    task: str  # classify, multilabel or regress
    weights: Any = None  # [k] of the classes; of several labels: of those that are true
    smoothing: float = 0.0

    def count(self, targets: Any) -> float:
        """Return what the sum over a step is divided by."""
        if self.task == "classify" and self.weights is not None:
            return float(self.weights[targets].sum())
        return float(targets.size)

    def sum(self, logits: Tensor, targets: Any) -> Tensor:
        """Return the sum of the losses of some rows."""
        logits, device = logits.float(), logits.device
        truth = tensor(targets, device)
        weights = None if self.weights is None else tensor(self.weights, device)
        match self.task:
            case "classify":
                return F.cross_entropy(
                    logits, truth, weights, reduction="sum", label_smoothing=self.smoothing
                )
            case "multilabel":
                smoothed = truth * (1 - self.smoothing) + self.smoothing / 2
                return F.binary_cross_entropy_with_logits(
                    logits, smoothed, pos_weight=weights, reduction="sum"
                )
            case _:
                return F.mse_loss(logits.squeeze(-1), truth, reduction="sum")


@dataclass(frozen=True, kw_only=True)
class LabelObjective(Objective):
    """Logits, and the loss of their labels; columns hold ``targets``."""

    logits: Logits
    loss: LabelLoss

    def targets(self, rows: Columns) -> Any:
        """Return the targets of all logits, [n, ...]."""
        return rows["targets"]

    def counts(self, rows: Columns) -> Sequence[float]:
        """Return what the loss of a step is divided by."""
        return (self.loss.count(self.targets(rows)) or 1.0,)

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of the loss over some rows."""
        return (self.loss.sum(self.logits(model, part, device), self.targets(part)),)

    def outputs(self, model: Any, rows: Columns, device: torch.device) -> Sequence[Any]:
        """Return the logits of all rows together."""
        return [self.logits(model, rows, device).float().cpu()]

    def metrics(self, outputs: Sequence[Any], batch_size: int) -> dict[str, Any]:
        """Return the loss and the metrics of the task."""
        logits, rows = torch.cat([*outputs]), self.read(self.held)
        targets = self.targets(rows)
        loss = self.loss.sum(logits, targets).item() / self.counts(rows)[0]
        predictions = self.predictions(logits, targets)
        return {"eval_loss": loss, **predictions.metrics(), "rows": len(predictions.truth)}

    def predictions(self, logits: Tensor, targets: Any) -> TruePredictions:
        """Return what the logits of all rows held out predict, beside the truth."""
        match self.loss.task:
            case "classify":
                return ClassPredictions(targets, logits.softmax(-1).numpy())
            case "multilabel":
                return LabelPredictions(targets > LIKELY, logits.sigmoid().numpy() >= LIKELY)
        return ScorePredictions(targets, logits.numpy()[:, 0])


def text_logits(
    model: BertForSequenceClassification, part: Columns, device: torch.device
) -> Tensor:
    """Return the logits of texts, [B, k], of their first tokens, or of the means of all."""
    tokens = token_batch(part)
    hidden = states(model.bert, tokens, device)
    judged = hidden.index_select(0, tensor(tokens.starts, device))
    if model.means:
        judged = means(hidden, tokens.lengths.tolist())
    return model.logits(judged.unsqueeze(-2))


# --- tags of words ---

TAGS = "tags"  # a column of tokens: 0, or 1 + the number of the tag


def tagged_rows(items: Sequence[Encoded], targets: Sequence[Any]) -> TokenRows:
    """Return windows of sentences with the tags of their own words; ``targets`` per sentence."""
    windows = TokenRows.of(items)
    tags = np.zeros(len(windows.tokens["input_ids"]), np.int64)
    for item, start, words in zip(items, windows.starts, own_words(items), strict=False):
        for word, place in words.items():
            tags[start + place] = int(targets[item.sample][word]) + 1
    return TokenRows(windows.starts, {**windows.tokens, TAGS: tags})


def tag_logits(model: BertForTokenClassification, part: Columns, device: torch.device) -> Tensor:
    """Return the logits of the first tokens of the words of all sentences, [M, k]."""
    tokens = token_batch(part)
    places = tokens.starts[:, None] + np.arange(part[TAGS].shape[1])
    hidden = states(model.bert, tokens, device)
    return model.logits(hidden.index_select(0, tensor(places[part[TAGS] > 0], device)))


@dataclass(frozen=True, kw_only=True)
class TagObjective(LabelObjective):
    """Logits of words, and the loss of their tags. Rows are windows."""

    samples: Any  # [n] the sentence of each row held out
    names: Sequence[str]

    def targets(self, rows: Columns) -> Any:
        """Return the tag numbers of the words, [M]."""
        return rows[TAGS][rows[TAGS] > 0] - 1

    def predictions(self, logits: Tensor, targets: Any) -> TagPredictions:
        """Return the tags of sentences, of the words in all their windows."""
        sizes = (self.read(self.held)[TAGS] > 0).sum(1)
        samples = self.samples.repeat(sizes)
        order = np.lexsort((self.held.repeat(sizes), samples))
        _, counts = np.unique(samples, return_counts=True)
        names = np.array(self.names, object)
        truth, predicted = (
            [words.tolist() for words in np.split(names[numbers[order]], counts.cumsum()[:-1])]
            for numbers in (targets, logits.argmax(-1).numpy())
        )
        return TagPredictions(truth, predicted)


# --- answers ---


def span_rows(items: Sequence[Encoded], examples: Sequence[Example]) -> TokenRows:
    """Return windows with the places of the answers, [n, 2]; ``sample`` is the example's number."""
    places = [token_places(item, examples[item.sample].target) for item in items]
    return TokenRows.of(items, spans=np.array(places, np.int64).reshape(-1, 2))


def token_places(item: Encoded, answer: AnswerSpan) -> tuple[int, int]:
    """Return the first and the last token of an answer, or 0 and 0 where a window lacks it."""
    if answer.start is None:
        return 0, 0
    first, stop = span(item.columns["sequence_ids"], 1)
    offsets, end = item.columns["offset_mapping"], answer.start + len(answer.text)
    if first == stop or offsets[first][0] > answer.start or offsets[stop - 1][1] < end:
        return 0, 0
    inside = [
        token
        for token in range(first, stop)
        if offsets[token][0] < end and offsets[token][1] > answer.start
    ]
    return (inside[0], inside[-1]) if inside else (0, 0)


@dataclass(frozen=True, kw_only=True)
class SpanObjective(Objective):
    """Logits of the first and the last token of answers, and their loss. Rows are windows."""

    items: Sequence[Encoded]  # all windows
    examples: Sequence[Example]

    def counts(self, rows: Columns) -> Sequence[float]:
        """Return the number of windows of a step."""
        return (len(rows["lengths"]),)

    def logits(
        self, model: BertForQuestionAnswering, part: Columns, device: torch.device
    ) -> list[Tensor]:
        """Return the logits of each window, [L, 2]."""
        tokens = token_batch(part)
        both = torch.stack(model.logits(states(model.bert, tokens, device)), -1).float()
        return list(both.split(tokens.lengths.tolist()))

    def loss(self, logits: Sequence[Tensor], part: Columns) -> Tensor:
        """Return the sum over windows of the mean loss of start and end."""
        padded = pad_sequence(list(logits), batch_first=True, padding_value=-torch.inf)
        targets = tensor(part["spans"], padded.device)
        return F.cross_entropy(padded, targets, reduction="sum") / 2

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of the loss over some windows."""
        return (self.loss(self.logits(model, part, device), part),)

    def outputs(self, model: Any, rows: Columns, device: torch.device) -> Sequence[Any]:
        """Return the logits of each window, [L, 2]."""
        return [logits.cpu() for logits in self.logits(model, rows, device)]

    def metrics(self, outputs: Sequence[Any], batch_size: int) -> dict[str, Any]:
        """Return the loss of windows, exact match and F1 of questions."""
        loss = self.loss(outputs, self.read(self.held)).item() / len(self.held)
        questions: dict[int, list[tuple[Encoded, np.ndarray]]] = {}
        for row in np.argsort(self.held).tolist():
            item = self.items[self.held[row]]
            questions.setdefault(item.sample, []).append((item, outputs[row].numpy()))
        truth = [self.examples[question].target.text for question in questions]
        choosing = Choosing(no_answer="" in truth)  # as `evaluate` asks too
        answers = [choosing.answers(windows) for windows in questions.values()]
        predicted = [best[0]["answer"] if best else "" for best in answers]
        metrics = answer_predictions(truth, predicted).metrics()
        return {"eval_loss": loss, **metrics, "rows": len(truth)}
