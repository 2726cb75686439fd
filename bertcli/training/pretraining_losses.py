"""The objective of pretraining, masked words and next sentences: the losses, and the evaluation.

Only the masked tokens go through the decoder: it is as wide as the vocabulary, and six tokens of
seven are not predicted. Source: BERT, section 3.1 and appendix A.2; the loss is that of
transformers' BertForPreTraining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.models.heads import BertForPreTraining
from bertcli.training.batches import Columns, MaskedBatch, collate, in_batches, parts, read
from bertcli.training.objective import Objective, states, tensor
from bertcli.training.ranks import Ranks
from bertcli.training.shards import Instances


class Predicted(NamedTuple):
    """Logits with their targets. `M` masked tokens, `B` rows, `V` words of the vocabulary."""

    word_logits: Tensor  # [M, V]
    words: Tensor  # [M]
    follows_logits: Tensor  # [B, 2]
    follows: Tensor  # [B]

    def losses(self) -> tuple[Tensor, Tensor]:
        """Sum both losses: over the masked tokens, and over the rows."""
        words = F.cross_entropy(self.word_logits.float(), self.words, reduction="sum")
        follows = F.cross_entropy(self.follows_logits.float(), self.follows, reduction="sum")
        return words, follows


def predict(model: BertForPreTraining, batch: MaskedBatch, device: torch.device) -> Predicted:
    """Run the model on a batch."""
    hidden = states(model.bert, batch.tokens, device)
    pooled = model.bert.pooler(hidden.index_select(0, tensor(batch.tokens.starts, device)))
    return Predicted(
        model.cls.predictions(hidden.index_select(0, tensor(batch.masked, device))),
        tensor(batch.words, device),
        model.cls.seq_relationship(pooled),
        tensor(batch.follows, device),
    )


# Rows in which the most frequent token is counted, in all and at a time.
SAMPLE, BLOCK = 100_000, 1000
Z = 1.96  # of a confidence interval of 95 %


@dataclass(frozen=True)
class PretrainingObjective(Objective):
    """Masked words and next sentences of prepared instances."""

    losses: ClassVar[Sequence[str]] = ("mlm_loss", "nsp_loss")

    data: Instances
    others: Instances | None = None  # of the rows held out, where those are not of ``data``
    commonest: int = 0  # the token that is masked most often

    def read(self, rows: Any) -> Columns:
        """Return rows of the instances."""
        return read(self.data, rows)

    def counts(self, found: Columns) -> Sequence[float]:
        """Return the number of masked tokens, and of rows."""
        return max(int(found["masked_lm_counts"].sum()), 1), len(found["lengths"])

    def sums(
        self, model: BertForPreTraining, part: Columns, device: torch.device
    ) -> Sequence[Tensor]:
        """Return both losses, summed over the masked tokens and over the rows."""
        return predict(model, collate(part, padded=device.type != "cpu"), device).losses()

    def evaluate(self, model: BertForPreTraining, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return losses, accuracies and baselines.

        `unigram_accuracy` is that of always guessing the commonest word, `commoner_label_accuracy`
        that of always giving the same answer about the second sentence.
        """
        sums = torch.zeros(8, dtype=torch.float64)
        for rows in in_batches(self.held[ranks.index :: ranks.count], batch_size):
            sums += self._sums(model, rows, ranks.device)
        return _named(ranks.total(sums).tolist())

    def _sums(self, model: BertForPreTraining, rows: Any, device: torch.device) -> torch.Tensor:
        (longest_first,) = parts(read(self.others or self.data, rows), 1)
        batch = collate(longest_first, padded=device.type != "cpu")
        found = predict(model, batch, device)
        right = found.word_logits.argmax(-1) == found.words
        follows = found.follows_logits.argmax(-1) == found.follows
        words_loss, follows_loss = found.losses()
        return torch.tensor(
            [
                len(batch.words),
                words_loss.item(),
                right.sum().item(),
                int((batch.words == self.commonest).sum()),
                len(rows),
                follows_loss.item(),
                follows.sum().item(),
                int(batch.follows.sum()),
            ],
            dtype=torch.float64,
        )


def commonest_word(data: Instances, rows: Any) -> int:
    """Return the token that is masked most often among these rows, or the first of them."""
    counts = np.zeros(data.vocab_size, np.int64)
    for some in in_batches(rows[:SAMPLE], BLOCK):
        words = collate(read(data, some), padded=True).words
        counts += np.bincount(words, minlength=data.vocab_size)
    return int(counts.argmax())


def _named(sums: list[float]) -> dict[str, Any]:
    masked, words_loss, right, guessed, rows, follows_loss, follows, random = sums
    words = max(masked, 1)
    low, high = wilson(follows, rows)
    return {
        "eval_loss": words_loss / words + follows_loss / rows,
        "eval_mlm_loss": words_loss / words,
        "eval_nsp_loss": follows_loss / rows,
        "perplexity": exp(min(words_loss / words, 700)),
        "masked_accuracy": right / words,
        "unigram_accuracy": guessed / words,
        "next_sentence_accuracy": follows / rows,
        "next_sentence_interval": [low, high],
        "commoner_label_accuracy": max(random, rows - random) / rows,
        "masked": int(masked),
        "rows": int(rows),
    }


def wilson(right: float, of: float) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    share, square = right / of, Z * Z / of
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * sqrt(share * (1 - share) / of + square / (4 * of))
    return max(middle - half, 0.0), min(middle + half, 1.0)
