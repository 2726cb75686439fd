"""Training on tags of words: the first token of each word carries its tag, as in the paper (5.3).

Source of the loss: transformers' BertForTokenClassification, with -100 for all other tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertcli.evaluation.entities import TagPredictions
from bertcli.models.heads import BertForTokenClassification
from bertcli.tasks.tag import own_words
from bertcli.tokenizing.columns import Encoded
from bertcli.training.batches import Columns, TokenRows, in_batches, token_batch
from bertcli.training.label_objective import LabelLoss
from bertcli.training.objective import Objective, states, tensor
from bertcli.training.ranks import Ranks

TAGS = "tags"  # a column of tokens: 0, or 1 + the number of the tag


def tagged_rows(items: Sequence[Encoded], targets: Sequence[Any]) -> TokenRows:
    """Return windows of sentences with the tags of their own words; ``targets`` per sentence."""
    found = TokenRows.of(items)
    tags = np.zeros(len(found.tokens["input_ids"]), np.int64)
    for item, start, words in zip(items, found.starts, own_words(items), strict=False):
        for word, place in words.items():
            tags[start + place] = int(targets[item.sample][word]) + 1
    return TokenRows(found.starts, {**found.tokens, TAGS: tags})


@dataclass(frozen=True, kw_only=True)
class TagObjective(Objective):
    """Logits of the first token of each word, and the loss of its tag. Rows are windows."""

    data: TokenRows
    loss: LabelLoss
    samples: Any  # [n] the sentence of each row held out
    names: Sequence[str]

    def counts(self, found: Columns) -> Sequence[float]:
        """Return what the loss of a step is divided by."""
        return (max(self.loss.count(_targets(found)), 1.0),)

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
        return (self.loss.sum(self.logits(model, part, device), _targets(part)),)

    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss of words, and precision, recall and F1 of entities."""
        sums = torch.zeros(2, dtype=torch.float64)
        said = np.zeros(len(self.data.tokens[TAGS]), np.float32)
        for rows in in_batches(self.held[ranks.index :: ranks.count], batch_size):
            found = self.read(rows)
            logits, targets = self.logits(model, found, ranks.device).float(), _targets(found)
            loss = self.loss.sum(logits, targets).item()
            sums += torch.tensor([loss, self.loss.count(targets)])
            said[self.data.places(rows, TAGS)] = logits.argmax(-1).cpu().numpy()
        loss, count = ranks.total(sums).tolist()
        said = ranks.total(torch.from_numpy(said)).numpy()
        predictions = self._predictions(said.astype(np.int64))
        found = {"eval_loss": loss / max(count, 1), **predictions.metrics()}
        return {**found, "rows": len(predictions.truth)}

    def _predictions(self, said: np.ndarray) -> TagPredictions:
        data, windows = self.data, self.held[np.argsort(self.samples, kind="stable")]
        _, counts = np.unique(self.samples, return_counts=True)
        sentences = np.split(windows, np.cumsum(counts)[:-1])
        places = [data.places(np.sort(rows), TAGS) for rows in sentences]
        truth = [[self.names[tag - 1] for tag in data.tokens[TAGS][place]] for place in places]
        guesses = [[self.names[tag] for tag in said[place]] for place in places]
        return TagPredictions(truth, guesses)


def _targets(found: Columns) -> Columns:
    """Return the tag numbers of the words, [M]."""
    return {"targets": found[TAGS][found[TAGS] > 0] - 1}
