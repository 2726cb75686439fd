"""Losses of heads and of pairs of vectors: labels, tags of words, answers; and their evaluation.

Sources: transformers' BertForSequenceClassification and its loss_utils.py, class weights and label
smoothing as in torch's cross_entropy; BertForTokenClassification, where the first token of each
word carries its tag, as in the paper (5.3); BertForQuestionAnswering, where a window without the
answer has it at its first token, [CLS], as in the paper (4.3) and run_squad, and the softmax is
over the tokens of the window alone, without padding; sentence-transformers'
MultipleNegativesRankingLoss (Henderson et al., 2017) and CoSENTLoss (Su, 2022), with their scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from bertcli.embedding.pooling import pool
from bertcli.evaluation.metrics import (
    ClassPredictions,
    LabelPredictions,
    ScorePredictions,
    TagPredictions,
    TruePredictions,
    answer_predictions,
)
from bertcli.inference.runner import Tokens
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.records.examples import AnswerSpan, Example
from bertcli.tasks.answer import best_answers
from bertcli.tasks.classify import LIKELY
from bertcli.tasks.tag import own_words
from bertcli.tokenizing.columns import Encoded, span
from bertcli.training.loop import Objective, Part, Ranks, states, tensor
from bertcli.training.options import in_batches


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
        if self.task == "classify" and self.weights is not None:
            return (float(self.weights[targets].sum()) or 1,)
        return (targets.size or 1,)

    def judged(self, tokens: Tokens, rows: Any) -> Any:
        """Return the numbers of the tokens of a batch that are judged: the first of each text."""
        return tokens.offsets[:-1]

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of the tokens that are judged, or of the means of all."""
        tokens = self.data.take(rows)
        hidden = states(model.bert, tokens)
        if model.means:
            judged = means(hidden, tokens.lengths.tolist())
        else:
            judged = hidden.index_select(0, tensor(self.judged(tokens, rows), hidden))
        logits: Tensor = model.packed_logits(judged)
        return logits

    def sums(self, predicted: Tensor, rows: Any) -> Sequence[Tensor]:
        """Return the sum of the losses of rows."""
        logits = predicted.float()
        truth = tensor(self.targets(rows), logits)
        weights = None if self.weights is None else tensor(self.weights, logits)
        match self.task:
            case "classify":
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

    def metrics(self, outputs: Sequence[Tensor], batch_size: int) -> dict[str, Any]:
        """Return the loss and the metrics of the task."""
        logits = torch.cat([*outputs])
        loss = self.sums(logits, self.held)[0].item() / self.counts(self.held)[0]
        predictions = self.predictions(logits)
        return {"eval_loss": loss, **predictions.metrics(), "rows": len(predictions.truth)}

    def predictions(self, logits: Tensor) -> TruePredictions:
        """Return what the logits of all rows held out predict, beside the truth."""
        truth = self.targets(self.held)
        match self.task:
            case "classify":
                return ClassPredictions(truth, logits.argmax(-1).numpy(), logits.shape[-1])
            case "multilabel":
                return LabelPredictions(truth > LIKELY, logits.sigmoid().numpy() >= LIKELY)
        return ScorePredictions(truth, logits.numpy()[:, 0])


class VectorObjective(LabelObjective):
    """Logits of vectors that do not change, [n, D], and the loss of their labels."""

    def lengths(self, rows: Any) -> Any:
        """Return 1 for each vector."""
        return np.ones(len(rows), np.int64)

    def predict(self, model: Any, rows: Any) -> Tensor:
        """Return the logits of vectors."""
        logits: Tensor = model(tensor(self.data[rows], model.weight))
        return logits


# --- tags of words ---


@dataclass(frozen=True, kw_only=True)
class TagObjective(LabelObjective):
    """Logits of the first tokens of words, and the loss of their tags. Rows are windows."""

    places: Any  # [n] of the words of each window, and their ``labels``: arrays
    samples: Sequence[int]  # [n] the sentence of each window
    names: Sequence[str]

    @classmethod
    def of(
        cls, items: Sequence[Encoded], tags: Sequence[Any], names: Sequence[str], **more: Any
    ) -> TagObjective:
        """Return that of windows of sentences, which have ``tags`` for their words."""
        places, labels = np.empty((2, len(items)), object)
        samples = [item.sample for item in items]
        for row, words in enumerate(own_words(items)):
            places[row] = np.fromiter(words.values(), np.int64)
            labels[row] = tags[samples[row]][[*words]]
        return cls(
            data=Tokens.of(items),
            task="classify",
            labels=labels,
            places=places,
            samples=samples,
            names=names,
            **more,
        )

    def targets(self, rows: Any) -> Any:
        """Return the tag numbers of the words, [M]."""
        return np.concatenate(self.labels[rows])

    def judged(self, tokens: Tokens, rows: Any) -> Any:
        """Return the numbers of the first tokens of words, [M]."""
        return np.concatenate(self.places[rows] + tokens.offsets[:-1])

    def predictions(self, logits: Tensor) -> TagPredictions:
        """Return the tags of sentences, of the words in all their windows."""
        names, labels = np.array(self.names, object), self.labels[self.held]
        ends = np.cumsum([len(words) for words in labels])[:-1]
        best = np.split(logits.argmax(-1).numpy(), ends)
        truth: dict[int, list[str]] = {}
        predicted: dict[int, list[str]] = {}
        for at in np.argsort(self.held):
            for tags, numbers in ((truth, labels[at]), (predicted, best[at])):
                tags.setdefault(self.samples[self.held[at]], []).extend(names[numbers])
        return TagPredictions([*truth.values()], [*predicted.values()])


# --- answers ---


@dataclass(frozen=True, kw_only=True)
class SpanObjective(Objective):
    """Logits of the first and the last token of answers, and their loss. Rows are windows."""

    items: Sequence[Encoded]  # all windows
    examples: Sequence[Example]
    spans: Any  # [n, 2] the first and the last token

    @classmethod
    def of(cls, items: Sequence[Encoded], examples: Sequence[Example], held: Any) -> SpanObjective:
        """Return that of windows; ``sample`` is the number of an example."""
        places = [token_places(item, examples[item.sample].target) for item in items]
        spans = np.array(places, np.int64).reshape(-1, 2)
        return cls(data=Tokens.of(items), held=held, items=items, examples=examples, spans=spans)

    def predict(self, model: Any, rows: Any) -> list[Tensor]:
        """Return the logits of each window, [L, 2]."""
        tokens = self.data.take(rows)
        both = model.packed_logits(states(model.bert, tokens)).float()
        return list(both.split(tokens.lengths.tolist()))

    def sums(self, predicted: Sequence[Tensor], rows: Any) -> Sequence[Tensor]:
        """Return the sum over windows of the mean loss of start and end."""
        padded = pad_sequence([*predicted], batch_first=True, padding_value=-torch.inf)
        targets = tensor(self.spans[rows], padded)
        return (F.cross_entropy(padded, targets, reduction="sum") / 2,)

    def outputs(self, model: Any, rows: Any) -> list[Tensor]:
        """Return the logits of each window, [L, 2]."""
        return [logits.cpu() for logits in self.predict(model, rows)]

    def metrics(self, outputs: Sequence[list[Tensor]], batch_size: int) -> dict[str, Any]:
        """Return the loss of windows, exact match and F1 of questions."""
        logits = [*chain.from_iterable(outputs)]
        loss = self.sums(logits, self.held)[0].item() / len(self.held)
        questions: dict[int, list[tuple[Encoded, np.ndarray]]] = {}
        for at in np.argsort(self.held):
            item = self.items[self.held[at]]
            questions.setdefault(item.sample, []).append((item, logits[at].numpy()))
        truth = [self.examples[question].target.text for question in questions]
        none = "" in truth  # as `evaluate` asks too
        answers = [best_answers(windows, no_answer=none) for windows in questions.values()]
        predicted = [best[0]["answer"] if best else "" for best in answers]
        metrics = answer_predictions(truth, predicted).metrics()
        return {"eval_loss": loss, **metrics, "rows": len(truth)}


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
        """Return the vectors of examples, [3, n, D]; 0 for a negative that is not there."""
        texts, vectors = self.texts[rows].T, self._nothing(model, len(rows))
        vectors[tensor(texts != NONE, vectors)] = self.vectors(model, texts[texts != NONE])
        return vectors

    def _nothing(self, model: BertModel, count: int) -> Tensor:
        width, device = model.config.hidden_size * len(self.modes), next(model.parameters()).device
        return torch.zeros(3, count, width, device=device)

    def vectors(self, model: BertModel, texts: Any) -> Tensor:
        """Return the vectors of texts by their numbers, each of length 1, [B, D]."""
        order = np.argsort(self.data.lengths[texts], kind="stable")
        tokens = self.data.take(texts[order])
        pooled = pool(states(model, tokens), tokens.lengths.tolist(), self.modes)
        back: Tensor = pooled[tensor(np.argsort(order), pooled)]
        return F.normalize(back.float(), dim=-1)

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
    ) -> list[Part]:
        """Return the share of each part in the loss of the step, with all gradients of its own."""
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

        return [partial(share, places) for places in own]

    def metrics(self, outputs: Sequence[Tensor], batch_size: int) -> dict[str, Any]:
        """Return the loss by batches, and correlations, or how many find their own pair."""
        batches = zip(outputs, in_batches(self.held, batch_size), strict=True)
        total = sum(self.sums(*batch)[0].item() for batch in batches)
        left, right, _ = torch.cat([*outputs], 1).double().numpy()
        count = len(self.held)
        if self.scores is None:
            best = [(block @ right.T).argmax(1) for block in in_batches(left, BLOCK)]
            metrics = {"accuracy": float((np.concatenate(best) == np.arange(count)).mean())}
        else:
            truth = self.scores[self.held].astype(np.float64)
            all_metrics = ScorePredictions(truth, (left * right).sum(1)).metrics()
            metrics = {name: all_metrics[name] for name in ("spearman", "pearson")}
        return {"eval_loss": total / count, **metrics, "rows": count}
