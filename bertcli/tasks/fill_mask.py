"""Which words the masked ones were: Section 3.1 of the paper, Task #1.

Scores and texts are those of transformers' fill-mask pipeline. The vocabulary is scored only where
a mask is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertcli.errors import InputError, ModelError, UsageError
from bertcli.inference.runner import batches
from bertcli.inference.runtime import Warn
from bertcli.models.heads import BertForMaskedLM
from bertcli.records.reader import Reader
from bertcli.tasks.head import Head, Stream, streamed
from bertcli.tasks.results import Result
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer

BLANK = {"mask": 0, "score": 0.0, "token": 0, "token_str": "", "sequence": ""}
ROWS = 256  # masks whose whole vocabulary is scored together

Predictions = tuple[list[float], list[int]]  # the best scores of one mask, and their ids


@dataclass(frozen=True)
class FillMaskTask:
    """A masked language model that is ready to run. ``targets`` are the only words to score."""

    head: Head[BertForMaskedLM]
    top_k: int = 5
    targets: tuple[str, ...] = ()
    mask: int = field(init=False)
    ids: tuple[int, ...] = field(init=False)  # of the targets

    def __post_init__(self) -> None:
        tokenizer = self.head.tokenizer
        token = tokenizer.roles["mask_token"]
        mask = tokenizer.special_ids().get(token)
        if mask is None:
            raise ModelError(
                f"{self.head.runtime.spec.folder}: the vocabulary has no mask token {token}"
            )
        object.__setattr__(self, "mask", mask)
        found = (target_id(target, tokenizer, self.head.warn) for target in self.targets)
        object.__setattr__(self, "ids", tuple(dict.fromkeys(found)))

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the texts of a reader. InputError for a text without a mask."""

        def judge(batch: list[Encoded]) -> list[Result]:
            return self._judge(reader.collect(((item.sample, item) for item in batch), self._asks))

        stream = streamed(self.head, reader, self.head.layout(), judge)
        return replace(stream, masks=True, blank={"predictions": [BLANK]})

    def _asks(self, number: int, item: Encoded) -> Encoded:
        if self.mask not in item.columns["input_ids"]:
            token = self.head.tokenizer.roles["mask_token"]
            cut = f" in its first {item.length} tokens" if item.cut else ""
            raise InputError(
                f"{item.record.where}: no {token}{cut}",
                f"write {token} where a word is missing, or use --on-error skip",
            )
        return item

    def _judge(self, batch: list[Encoded]) -> list[Result]:
        found: list[Result | None] = [None] * len(batch)
        lengths = np.array([item.length for item in batch], np.int64)
        for numbers in batches(lengths, self.head.runtime.encoder.budget):
            picked = numbers.tolist()
            some = [batch[index] for index in picked]
            for index, item, masks in zip(picked, some, self._filled(some), strict=True):
                fields = {"predictions": self._predictions(item, masks)}
                found[index] = Result(item.record, item.sample, fields, item.cut)
        return [result for result in found if result is not None]

    def _filled(self, batch: Sequence[Encoded]) -> list[list[Predictions]]:
        """Return the predictions for each mask of each text."""
        states = self.head.outputs(batch, all_states)
        places = [self._places(item) for item in batch]
        masked = torch.cat([state[at] for state, at in zip(states, places, strict=True)])
        best = self._best(masked)
        return [list(islice(best, len(at))) for at in places]

    def _places(self, item: Encoded) -> list[int]:
        ids = item.columns["input_ids"]
        return [place for place, index in enumerate(ids) if index == self.mask]

    @torch.inference_mode()
    def _best(self, masked: Tensor) -> Iterator[Predictions]:
        """Score the vocabulary at masked states [n, hidden]: the best of each."""
        model = self.head.runtime.encoder.model
        weight = model.bert.embeddings.word_embeddings.weight
        ids = torch.tensor(self.ids, dtype=torch.long)
        found: list[Predictions] = []
        for rows in masked.split(ROWS):
            logits = model.logits(rows.to(weight.device, weight.dtype))
            scores = logits.float().softmax(-1)
            if self.ids:
                scores = scores[:, ids.to(scores.device)]
            top = scores.topk(min(self.top_k, scores.shape[-1]))
            chosen = ids[top.indices.cpu()] if self.ids else top.indices.cpu()
            found += zip(top.values.cpu().tolist(), chosen.tolist(), strict=True)
        return iter(found)

    def _predictions(self, item: Encoded, masks: list[Predictions]) -> list[dict[str, Any]]:
        decode, core = self.head.tokenizer.text_of, self.head.tokenizer.core
        ids = list(item.columns["input_ids"])
        found = []
        for number, (place, best) in enumerate(zip(self._places(item), masks, strict=True)):
            for score, index in zip(*best, strict=True):
                # Models may have more embeddings than there are tokens: those have no text.
                token = [index] if core.id_to_token(index) is not None else []
                filled = [*ids[:place], *token, *ids[place + 1 :]]
                found.append(
                    {
                        "mask": number,
                        "score": score,
                        "token": index,
                        "token_str": decode(token),
                        # several: the other masks would vanish with the special tokens
                        "sequence": decode(filled, skip_special=len(masks) == 1),
                    }
                )
        return found


def all_states(model: BertForMaskedLM, states: Tensor, lengths: Sequence[int]) -> Sequence[Tensor]:
    """Finish with the states of every token, [L, hidden] per text."""
    parts: Sequence[Tensor] = states.split(list(lengths))
    return parts


def target_id(target: str, tokenizer: Tokenizer, warn: Warn) -> int:
    """Return the id of a word: its own, or that of its first token. UsageError for neither."""
    index = tokenizer.core.token_to_id(target)
    if index is not None:
        return index
    pieces = tokenizer.core.encode(target, add_special_tokens=False)
    unknown = tokenizer.special_ids()[tokenizer.roles["unk_token"]]
    if not pieces.ids or pieces.ids[0] == unknown:
        raise UsageError(f"--targets: {target!r} is not in the vocabulary", "choose other words")
    if len(pieces.ids) > 1:
        warn(f"--targets: {target!r} is not one token; its first, {pieces.tokens[0]!r}, is scored")
    return pieces.ids[0]
