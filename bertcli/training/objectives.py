"""Losses of heads and of pairs of vectors: labels, tags of words, answers; and their evaluation.

Sources: transformers' BertForSequenceClassification and its loss_utils.py, class weights and label
smoothing as in torch's cross_entropy; BertForTokenClassification, where the first token of each
word carries its tag, as in the paper (5.3); BertForQuestionAnswering, where a window without the
answer has it at its first token, [CLS], as in the paper (4.3) and run_squad, and the softmax is
over the tokens of the window alone, without padding; sentence-transformers'
MultipleNegativesRankingLoss (Henderson et al., 2017) and CoSENTLoss (Su, 2022), with their scale.
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

from bertcli.embedding.pooling import pool, split
from bertcli.evaluation.metrics import (
    ClassPredictions,
    LabelPredictions,
    Predictions,
    ScorePredictions,
)
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.records.examples import AnswerSpan
from bertcli.tasks.answer import Window, best_answers
from bertcli.tasks.classify import LIKELY
from bertcli.tasks.tag import own_words
from bertcli.tokenizing.batch import Encoded, sequence_span
from bertcli.training.loop import Objective, Ranks, Sums, states, tensor
from bertcli.training.options import in_batches

NO_LABEL = -100  # of a token that is not judged: what torch's cross_entropy leaves out


@dataclass(frozen=True, kw_only=True)
class LabelObjective(Objective):
    """Logits [n, k] of texts, and the loss of their labels."""

    task: str  # classify, multilabel or regress
    labels: Any  # [n, ...]
    weights: Any = None  # [k] of the classes; of several labels: of those that are true
    smoothing: float = 0.0

    def targets(self, rows: Any) -> Any:
        """Return what the logits of rows are compared with, [n, ...]."""
        return self.labels[rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return what the loss of a step is divided by."""
        targets = self.targets(rows)
        targets = targets[targets != NO_LABEL]
        if self.weights is not None and self.task != "multilabel":
            return (float(self.weights[targets].sum()) or 1,)
        return (targets.size or 1,)

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of the first tokens of texts, or of the means of all."""
        tokens = self.data.take(rows)
        hidden = states(model.bert, tokens)
        if model.means:
            judged = means(hidden, tokens.lengths.tolist())
        else:
            judged = hidden.index_select(0, tensor(tokens.offsets[:-1], hidden))
        return model.packed_logits(judged)

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the sum of the losses of rows."""
        logits = predicted.float()
        truth = tensor(self.targets(rows), logits)
        weights = None if self.weights is None else tensor(self.weights, logits)
        match self.task:
            case "classify" | "tag":
                loss = F.cross_entropy(
                    logits, truth, weights, reduction="sum", label_smoothing=self.smoothing
                )
            case "multilabel":
                smoothed = truth * (1 - self.smoothing) + self.smoothing / 2
                loss = F.binary_cross_entropy_with_logits(
                    logits, smoothed, pos_weight=weights, reduction="sum"
                )
            case _:
                loss = F.mse_loss(logits.squeeze(-1), truth, reduction="sum")
        return (loss,)

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the metrics of the task."""
        logits, truth = torch.cat([*outputs]), self.targets(self.held)
        predictions: Predictions
        match self.task:
            case "classify":
                classes = logits.argmax(-1).numpy()
                predictions = ClassPredictions(truth, classes, logits.shape[-1])
            case "multilabel":
                predictions = LabelPredictions(truth > LIKELY, logits.sigmoid().numpy() >= LIKELY)
            case _:
                predictions = ScorePredictions(truth, logits.numpy()[:, 0])
        return {**predictions.metrics(), "rows": len(self.held)}


class VectorObjective(LabelObjective):
    """Logits of vectors that do not change, [n, D], and the loss of their labels."""

    def lengths(self, rows: Any) -> Any:
        """Return 1 for each vector."""
        return np.ones(len(rows), np.int64)

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of vectors."""
        return model(tensor(self.data[rows], model.weight))


# --- tags of words, and answers ---


@dataclass(frozen=True, kw_only=True)
class TokenObjective(LabelObjective):
    """Logits of all tokens, [T, k], and the loss of some. Rows are windows of texts."""

    items: Sequence[Encoded]  # all windows
    truth: Sequence[Any]  # of texts
    say: Callable[[Sequence[Window]], Any]  # what the logits of the windows of a text predict
    judge: Callable[[Sequence[Any], Sequence[Any]], Predictions]  # of truth and what is said

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of all tokens."""
        return model.packed_logits(states(model.bert, self.data.take(rows)))

    def metrics(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the metrics of texts, from all their windows."""
        logits = split(torch.cat([*outputs]).numpy(), self.data.lengths[self.held])
        windows: dict[int, list[Window]] = {}
        for at in np.argsort(self.held):
            item = self.items[self.held[at]]
            windows.setdefault(item.sample, []).append((item, logits[at]))
        truth = [self.truth[text] for text in windows]
        predictions = self.judge(truth, [*map(self.say, windows.values())])
        return {**predictions.metrics(), "rows": len(truth)}


class TagObjective(TokenObjective):
    """The tags of words, which their first tokens carry; ``labels`` are those of all tokens."""

    def targets(self, rows: Any) -> Any:
        """Return the tag numbers of tokens, [T]."""
        return np.concatenate(self.labels[rows])


def token_tags(items: Sequence[Encoded], tags: Sequence[Any]) -> Any:
    """Return the tag number of each token of windows, or none, [n] arrays."""
    labels = np.empty(len(items), object)
    for row, (item, words) in enumerate(zip(items, own_words(items), strict=True)):
        labels[row] = np.full(item.length, NO_LABEL)
        labels[row][[*words.values()]] = tags[item.sample][[*words]]
    return labels


class SpanObjective(TokenObjective):
    """The first and the last token of answers: ``labels`` are their places, [n, 2]."""

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the sum over windows of the losses of start and end."""
        parts = predicted.float().split(self.data.lengths[rows].tolist())
        padded = pad_sequence([*parts], batch_first=True, padding_value=-torch.inf)
        return (F.cross_entropy(padded, tensor(self.labels[rows], padded), reduction="sum"),)


def answer_of(windows: Sequence[Window], *, none: bool) -> str:
    """Return the best answer in the windows of a context; with ``none`` it may be empty."""
    best = best_answers(windows, no_answer=none)
    return best[0]["answer"] if best else ""


def token_places(item: Encoded, answer: AnswerSpan) -> tuple[int, int]:
    """Return the first and the last token of an answer, or 0 and 0 where a window lacks it."""
    if answer.start is None:
        return 0, 0
    first, stop = sequence_span(item.columns["sequence_ids"], 1)
    offsets, end = item.columns["offset_mapping"], answer.start + len(answer.text)
    if first == stop or offsets[first][0] > answer.start or offsets[stop - 1][1] < end:
        return 0, 0
    inside = [
        token
        for token in range(first, stop)
        if offsets[token][0] < end and offsets[token][1] > answer.start
    ]
    return (inside[0], inside[-1]) if inside else (0, 0)


# --- vectors of pairs ---

SCALE = 20.0  # of cosines, in both losses
BLOCK = 1024  # texts that are compared with all others together
NONE = -1  # the number of a negative text that is not there


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Vectors of pairs, and the loss of their cosines: all pairs of a step are one.

    In however many parts and processes: the vectors of all come first, and then part by part with
    their gradients, beside those of the others (as Gao et al., Scaling Deep Contrastive Learning
    Batch Size under Memory Limited Setup, 2021, known as GradCache).
    """

    texts: Any  # [n, 3] the texts of each example: one, the other, a negative or NONE
    scores: Any  # [n], or None: the pairs belong together
    modes: tuple[str, ...]  # of pooling

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of all texts of each example."""
        return (self.data.lengths[self.texts[rows]] * (self.texts[rows] != NONE)).sum(1)

    def predict(self, model: BertModel, rows: Any) -> Tensor:
        """Return the vectors of examples, [3, n, D], of length 1, or 0 for no negative."""
        texts, vectors = self.texts[rows].T, self._nothing(model, len(rows))
        numbers = texts[texts != NONE]
        order = np.argsort(self.data.lengths[numbers], kind="stable")
        tokens = self.data.take(numbers[order])
        pooled = pool(states(model, tokens), tokens.lengths.tolist(), self.modes)
        back = pooled[tensor(np.argsort(order), pooled)]
        vectors[tensor(texts != NONE, vectors)] = F.normalize(back.float(), dim=-1)
        return vectors

    def _nothing(self, model: BertModel, count: int) -> Tensor:
        width, device = model.config.hidden_size * len(self.modes), next(model.parameters()).device
        return torch.zeros(3, count, width, device=device)

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the loss of pairs of vectors, in float32, times their number."""
        left, right, negative = predicted
        with torch.autocast(left.device.type, enabled=False):  # half precision is too coarse
            if self.scores is None:
                others = negative[tensor(self.texts[rows, 2] != NONE, left)]
                cosines = left @ torch.cat([right, others]).T
                own = torch.arange(len(left), device=left.device)
                return (F.cross_entropy(SCALE * cosines, own, reduction="sum"),)
            cosines, truth = SCALE * (left * right).sum(-1), tensor(self.scores[rows], left)
            wrong = cosines[:, None] - cosines  # [i, j]: how much more alike i is than j
            wrong = wrong[truth[:, None] < truth]
            return (torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0) * len(rows),)

    def parts(
        self, model: BertModel, rows: Any, own: Sequence[Any], seeds: Sequence[int], ranks: Ranks
    ) -> Sums:
        """Return what gives the share of a part in the loss, with all gradients of its own."""
        if len(own) == ranks.count == 1:
            return super().parts(model, rows, own, seeds, ranks)
        vectors = self._nothing(model, len(rows))
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
        """Return correlations, or how many find their own pair."""
        left, right, _ = torch.cat([*outputs], 1).double().numpy()
        count = len(self.held)
        if self.scores is None:
            best = [(block @ right.T).argmax(1) for block in in_batches(left, BLOCK)]
            metrics = {"accuracy": float((np.concatenate(best) == np.arange(count)).mean())}
        else:
            truth = self.scores[self.held].astype(np.float64)
            all_metrics = ScorePredictions(truth, (left * right).sum(1)).metrics()
            metrics = {name: all_metrics[name] for name in ("spearman", "pearson")}
        return {**metrics, "rows": count}
