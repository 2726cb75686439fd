"""Which words the masked ones were: Section 3.1 of the paper, Task #1.

Scores and texts are those of transformers' fill-mask pipeline. The vocabulary is scored only where
a mask is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcli.errors import InputError, UsageError
from bertcli.inference.tell import Tell
from bertcli.records.reader import Reader
from bertcli.tasks.head import Head, Stream, streamed
from bertcli.tasks.results import Result
from bertcli.tasks.scores import BestWords
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer

BLANK = {"mask": 0, "score": 0.0, "token": 0, "token_str": "", "sequence": ""}


@dataclass(frozen=True)
class FillMaskTask:
    """A masked language model that is ready to run. ``targets`` are the only words to score."""

    head: Head
    top_k: int = 5
    targets: tuple[str, ...] = ()
    ids: tuple[int, ...] = field(init=False)  # of the targets

    def __post_init__(self) -> None:
        found = (target_id(target, self.head.tokenizer, self.head.tell) for target in self.targets)
        object.__setattr__(self, "ids", tuple(dict.fromkeys(found)))

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the texts of a reader. InputError for a text without a mask."""
        layout, blank = self.head.layout(), {"predictions": [BLANK]}
        return streamed(self.head, reader, layout, self._judge, blank, ask=self._asks, masks=True)

    def _asks(self, item: Encoded) -> Encoded:
        if not self._places(item):
            token = self.head.tokenizer.roles["mask_token"]
            cut = f" in its first {item.length} tokens" if item.cut else ""
            raise InputError(
                f"{item.record.where}: no {token}{cut}",
                f"write {token} where a word is missing, or use --on-error skip",
            )
        return item

    def _judge(self, batch: list[Encoded]) -> list[Result]:
        best = self.head.outputs(batch, BestWords(self.top_k, self.ids))
        return [
            Result(
                item.record, item.sample, {"predictions": self._predictions(item, masks)}, item.cut
            )
            for item, masks in zip(batch, best, strict=True)
        ]

    def _places(self, item: Encoded) -> list[int]:
        mask = self.head.runtime.spec.reading.token
        return [place for place, index in enumerate(item.columns["input_ids"]) if index == mask]

    def _predictions(self, item: Encoded, best: np.ndarray) -> list[dict[str, Any]]:
        """Return the best words of each mask of a text, [masks, k, 2]."""
        decode, core = self.head.tokenizer.text_of, self.head.tokenizer.core
        ids = list(item.columns["input_ids"])
        found = []
        for number, (place, words) in enumerate(zip(self._places(item), best, strict=True)):
            for score, word in words.tolist():
                index = self.ids[int(word)] if self.ids else int(word)
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
                        "sequence": decode(filled, skip_special=len(best) == 1),
                    }
                )
        return found


def target_id(target: str, tokenizer: Tokenizer, tell: Tell) -> int:
    """Return the id of a word: its own, or that of its first token. UsageError for neither."""
    index = tokenizer.core.token_to_id(target)
    if index is not None:
        return index
    pieces = tokenizer.core.encode(target, add_special_tokens=False)
    unknown = tokenizer.special_ids().get(tokenizer.roles["unk_token"])
    if not pieces.ids or pieces.ids[0] == unknown:
        raise UsageError(f"--targets: {target!r} is not in the vocabulary", "choose other words")
    if len(pieces.ids) > 1:
        tell.warn(
            f"--targets: {target!r} is not one token; its first, {pieces.tokens[0]!r}, is scored"
        )
    return pieces.ids[0]
