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
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from bertcli.evaluation.metrics import (
    AnswerPredictions,
    ClassPredictions,
    LabelPredictions,
    ScorePredictions,
    TagPredictions,
)
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
from bertcli.training.batches import Columns, TokenRows, in_batches, token_batch
from bertcli.training.loop import Objective, Ranks, states, tensor

Logits = Callable[[Any, Columns, torch.device], Tensor]  # (model, rows, device) -> [B, k]


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
    """Logits of whole texts, and the loss of their labels; columns hold ``targets``."""

    logits: Logits
    loss: LabelLoss
    width: int  # of the logits

    def counts(self, rows: Columns) -> Sequence[float]:
        """Return what the loss of a step is divided by."""
        return (self.loss.count(rows["targets"]),)

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of the loss over some rows."""
        return (self.loss.sum(self.logits(model, part, device), part["targets"]),)

    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss and the metrics of the task."""
        logits = torch.zeros(len(self.held), self.width, device=ranks.device)
        own = np.arange(len(self.held))[ranks.index :: ranks.count]
        for rows in in_batches(own, batch_size):
            logits[rows] = self.logits(model, self.read(self.held[rows]), ranks.device).float()
        logits = ranks.sum(logits).cpu()
        targets = self.read(self.held)["targets"]
        loss = self.loss.sum(logits, targets).item() / self.loss.count(targets)
        predictions: ClassPredictions | LabelPredictions | ScorePredictions
        match self.loss.task:
            case "classify":
                predictions = ClassPredictions(targets, logits.softmax(-1).numpy())
            case "multilabel":
                likely = logits.sigmoid().numpy() >= LIKELY
                predictions = LabelPredictions(targets > LIKELY, likely)
            case _:
                predictions = ScorePredictions(targets, logits.numpy()[:, 0])
        return {"eval_loss": loss, **predictions.metrics(), "rows": len(self.held)}


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


def _tag_numbers(rows: Columns) -> Any:
    """Return the tag numbers of the words, [M]."""
    return rows[TAGS][rows[TAGS] > 0] - 1


@dataclass(frozen=True, kw_only=True)
class TagObjective(Objective):
    """Logits of the first token of each word, and the loss of its tag. Rows are windows."""

    data: TokenRows
    loss: LabelLoss
    samples: Any  # [n] the sentence of each row held out
    names: Sequence[str]

    def counts(self, rows: Columns) -> Sequence[float]:
        """Return what the loss of a step is divided by."""
        return (max(self.loss.count(_tag_numbers(rows)), 1.0),)

    def logits(
        self, model: BertForTokenClassification, part: Columns, device: torch.device
    ) -> Tensor:
        """Return the logits of the words of all sentences, [M, k]."""
        tokens = token_batch(part, padded=device.type != "cpu")
        places = tokens.starts[:, None] + np.arange(part[TAGS].shape[1])
        hidden = states(model.bert, tokens, device)
        return model.logits(hidden.index_select(0, tensor(places[part[TAGS] > 0], device)))

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of the loss over the words of some sentences."""
        return (self.loss.sum(self.logits(model, part, device), _tag_numbers(part)),)

    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss of words, and precision, recall and F1 of entities."""
        data, tags = self.data, self.data.tokens[TAGS]
        sums = torch.zeros(2, dtype=torch.float64)
        predicted = np.zeros(len(tags), np.float32)
        for numbers in in_batches(self.held[ranks.index :: ranks.count], batch_size):
            rows = self.read(numbers)
            logits, targets = self.logits(model, rows, ranks.device).float(), _tag_numbers(rows)
            sums += torch.tensor([self.loss.sum(logits, targets).item(), self.loss.count(targets)])
            predicted[data.places(numbers, TAGS)] = logits.argmax(-1).cpu().numpy()
        loss, count = ranks.total(sums).tolist()
        predicted = ranks.total(torch.from_numpy(predicted)).numpy().astype(np.int64)
        windows = self.held[np.argsort(self.samples, kind="stable")]
        _, counts = np.unique(self.samples, return_counts=True)
        sentences = np.split(windows, np.cumsum(counts)[:-1])
        places = [data.places(np.sort(rows), TAGS) for rows in sentences]
        names = np.array(self.names, object)
        truth, guesses = (
            [names[of_tokens[place]].tolist() for place in places]
            for of_tokens in (tags - 1, predicted)
        )
        metrics = TagPredictions(truth, guesses).metrics()
        return {"eval_loss": loss / max(count, 1), **metrics, "rows": len(truth)}


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
    """Logits of the first and the last token of answers, and their loss.

    Rows are windows; held out are questions.
    """

    items: Sequence[Encoded]  # all windows
    examples: Sequence[Example]

    def counts(self, rows: Columns) -> Sequence[float]:
        """Return the number of windows of a step."""
        return (len(rows["lengths"]),)

    def logits(
        self, model: BertForQuestionAnswering, part: Columns, device: torch.device
    ) -> list[Tensor]:
        """Return the logits of each window, [L, 2]."""
        tokens = token_batch(part, padded=device.type != "cpu")
        both = torch.stack(model.logits(states(model.bert, tokens, device)), -1).float()
        if tokens.width:
            rows = both.view(-1, tokens.width, 2)
            return [row[:length] for row, length in zip(rows, tokens.lengths, strict=True)]
        return list(both.split(tokens.lengths.tolist()))

    def loss(self, logits: Sequence[Tensor], part: Columns) -> Tensor:
        """Return the sum over windows of the mean loss of start and end."""
        padded = pad_sequence(list(logits), batch_first=True, padding_value=-torch.inf)
        targets = tensor(part["spans"], padded.device)
        return F.cross_entropy(padded, targets, reduction="sum") / 2

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of the loss over some windows."""
        return (self.loss(self.logits(model, part, device), part),)

    @cached_property
    def _windows(self) -> dict[int, list[int]]:
        """The numbers of the windows of each example."""
        windows: dict[int, list[int]] = {}
        for number, item in enumerate(self.items):
            windows.setdefault(item.sample, []).append(number)
        return windows

    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss of windows, exact match and F1 of questions."""
        sums = torch.zeros(4, dtype=torch.float64)
        truth = {number: self.examples[number].target.text for number in self.held.tolist()}
        choosing = Choosing(no_answer="" in truth.values())  # as `evaluate` asks too
        for questions in in_batches(self.held[ranks.index :: ranks.count].tolist(), batch_size):
            windows = np.array(
                [window for question in questions for window in self._windows[question]]
            )
            rows = self.read(windows)
            logits = self.logits(model, rows, ranks.device)
            parts: dict[int, list[tuple[Encoded, np.ndarray]]] = {
                question: [] for question in questions
            }
            for window, scores in zip(windows.tolist(), logits, strict=True):
                item = self.items[window]
                parts[item.sample].append((item, scores.cpu().numpy()))
            answers = [choosing.answers(parts[question]) for question in questions]
            predicted = [best[0]["answer"] if best else "" for best in answers]
            values = AnswerPredictions(
                [truth[question] for question in questions], predicted
            ).values.sum(0)
            sums += torch.tensor([self.loss(logits, rows).item(), len(windows), *values])
        loss, windows_read, exact, f1 = ranks.total(sums).tolist()
        count = len(self.held)
        metrics = {"exact_match": exact / count, "f1": f1 / count}
        return {"eval_loss": loss / max(windows_read, 1), **metrics, "rows": count}
