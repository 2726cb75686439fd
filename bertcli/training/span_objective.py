"""Training on answers: the first and the last token of a span of the context, in windows over it.

Source of the loss: transformers' BertForQuestionAnswering; a window that does not hold the answer
has it at its first token, [CLS], as in the paper (4.3) and run_squad. The softmax is over the
tokens of the window alone, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from bertcli.evaluation.answers import AnswerPredictions
from bertcli.models.heads import BertForQuestionAnswering
from bertcli.records.examples import AnswerSpan, Example
from bertcli.tasks.spans import Choosing
from bertcli.tokenizing.columns import Encoded, span
from bertcli.training.batches import Columns, TokenRows, in_batches, token_batch
from bertcli.training.objective import Objective, states, tensor
from bertcli.training.ranks import Ranks


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
    inside = [at for at in range(first, stop) if _touches(offsets[at], answer.start, end)]
    return (inside[0], inside[-1]) if inside else (0, 0)


def _touches(offset: tuple[int, int], start: int, end: int) -> bool:
    return offset[0] < end and offset[1] > start


@dataclass(frozen=True, kw_only=True)
class SpanObjective(Objective):
    """Logits of the first and the last token of answers, and their loss.

    Rows are windows; held out are questions.
    """

    items: Sequence[Encoded]  # all windows
    examples: Sequence[Example]

    def counts(self, found: Columns) -> Sequence[float]:
        """Return the number of windows of a step."""
        return (len(found["lengths"]),)

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

    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss of windows, exact match and F1 of questions."""
        sums = torch.zeros(4, dtype=torch.float64)
        for numbers in in_batches(self.held[ranks.index :: ranks.count], batch_size):
            sums += self._sums(model, numbers, ranks.device)
        loss, windows, exact, f1 = ranks.total(sums).tolist()
        count = len(self.held)
        found = {"exact_match": exact / count, "f1": f1 / count}
        return {"eval_loss": loss / max(windows, 1), **found, "rows": count}

    def _sums(self, model: Any, numbers: Any, device: torch.device) -> Tensor:
        windows = np.array([at for number in numbers.tolist() for at in self._windows[number]])
        found = self.read(windows)
        logits = self.logits(model, found, device)
        loss = self.loss(logits, found).item()
        parts: dict[int, list[tuple[Encoded, np.ndarray]]] = {}
        for at, one in zip(windows.tolist(), logits, strict=True):
            parts.setdefault(self.items[at].sample, []).append((self.items[at], one.cpu().numpy()))
        truth = [self.examples[number].target.text for number in numbers]
        choosing = Choosing(no_answer=True)
        best = [choosing.answers(parts[number]) for number in numbers.tolist()]
        said = [found[0]["answer"] if found else "" for found in best]
        values = AnswerPredictions(truth, said).values.sum(0)
        return torch.tensor([loss, len(windows), *values], dtype=torch.float64)

    @cached_property
    def _windows(self) -> dict[int, list[int]]:
        """The numbers of the windows of each example."""
        found: dict[int, list[int]] = {}
        for at, item in enumerate(self.items):
            found.setdefault(item.sample, []).append(at)
        return found
