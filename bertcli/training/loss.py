"""What pretraining makes smaller: the losses of the masked words and of the sentence pairs.

Only the masked tokens go through the decoder: it is as wide as the vocabulary, and six tokens of
seven are not asked for. Source: BERT, section 3.1 and appendix A.2; the loss is that of
transformers' BertForPreTraining.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.models import packed
from bertcli.models.heads import BertForPreTraining
from bertcli.training.batches import Batch


class Predicted(NamedTuple):
    """Logits beside what is right. `M` masked tokens, `B` rows, `V` words of the vocabulary."""

    word_logits: Tensor  # [M, V]
    words: Tensor  # [M]
    follows_logits: Tensor  # [B, 2]
    follows: Tensor  # [B]

    def losses(self) -> tuple[Tensor, Tensor]:
        """Sum both losses: over the masked tokens, and over the rows."""
        words = F.cross_entropy(self.word_logits.float(), self.words, reduction="sum")
        follows = F.cross_entropy(self.follows_logits.float(), self.follows, reduction="sum")
        return words, follows


def predict(model: BertForPreTraining, batch: Batch, device: torch.device) -> Predicted:
    """Run the model over a batch."""

    def there(array: Any) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    ids, types = there(batch.ids), there(batch.types)
    if batch.width:
        keep = torch.arange(batch.width, device=device) < there(batch.lengths)[:, None]
        whole = keep.shape
        hidden = model.bert(ids.view(whole), keep, types.view(whole)).flatten(0, 1)
    else:
        hidden = packed.encode(model.bert, ids, batch.lengths.tolist(), types)
    pooled = model.bert.pooler(hidden.index_select(0, there(batch.starts)))
    return Predicted(
        model.cls.predictions(hidden.index_select(0, there(batch.masked))),
        there(batch.words),
        model.cls.seq_relationship(pooled),
        there(batch.follows),
    )
