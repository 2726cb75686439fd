"""Prediction of masked words: Section 3.1 of the paper, Task #1.

Scores and texts equal those of transformers' fill-mask pipeline. Vocabulary scores are computed
only at masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.pooling import split
from bertcli.engines.engine import library_of
from bertcli.errors import LOG, InputError, UsageError, option
from bertcli.tasks.head import HeadTask
from bertcli.tokenizing.batch import Encoded

ROWS = 256  # masks scored together against the vocabulary
BLANK = {"mask": 0, "score": 0.0, "token": 0, "token_str": "", "sequence": ""}


@dataclass(frozen=True)
class MaskFiller(HeadTask):
    """A masked language model that is ready to run. Only ``targets`` are scored, if given."""

    architecture: ClassVar[str] = "BertForMaskedLM"

    top_k: int = 5
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self.ids  # raises an error for words that cannot be scored

    @cached_property
    def ids(self) -> list[int]:
        """The ids of the targets, or of their first tokens.

        Raises UsageError for a target with neither.
        """
        tokenizer = self.head.tokenizer
        ids = list[int]()
        for target in self.targets:
            index = tokenizer.core.token_to_id(target)
            if index is None:
                pieces = tokenizer.core.encode(target, add_special_tokens=False)
                unknown = tokenizer.special_ids().get(tokenizer.roles["unk_token"])
                if not pieces.ids or pieces.ids[0] == unknown:
                    raise UsageError(
                        f"{option('targets')}: {target!r} is not in the vocabulary",
                        "choose other words",
                    )
                if len(pieces.ids) > 1:
                    LOG.warn(
                        f"{option('targets')}: {target!r} is not one token; its first, "
                        f"{pieces.tokens[0]!r}, is scored"
                    )
                index = pieces.ids[0]
            ids.append(index)
        return [*dict.fromkeys(ids)]

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        return {"predictions": [BLANK]}

    def finish(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return the best words at each mask, [masks, k, 2] per text: scores and ids."""
        parts = [states[at : at + ROWS] for at in range(0, len(states), ROWS)]
        best = [self._best(model.packed_logits(part)) for part in parts]
        return split(library_of(states).concat(best), lengths)

    def _best(self, logits: Any) -> Any:
        library = library_of(logits)
        logits = library.asarray(logits, dtype=library.float32)
        with np.errstate(invalid="ignore"):  # infinite logits are rejected later, with their text
            peak = library.amax(logits, -1)[:, None]
            total = library.exp(logits - peak).sum(-1)[:, None]
            ranked = logits[:, self.ids] if self.ids else logits
            values, places = top(ranked, min(self.top_k, ranked.shape[-1]))
            scores = library.exp(values - peak) / total
        # An id, or an index of `targets`: less than 2 ** 24, so exact in float32.
        return library.stack([scores, library.asarray(places, dtype=library.float32)], -1)

    def ask(self, item: Encoded) -> Encoded:
        """Return a text. Raises InputError for a text without a mask."""
        if not self._places(item):
            token = self.head.tokenizer.roles["mask_token"]
            cut = f" in its first {item.length} tokens" if item.cut else ""
            raise InputError(
                f"{item.record.where}: no {token}{cut}",
                f"write {token} where a word is missing, or use {option('on_error', 'skip')}",
            )
        return item

    def _places(self, item: Encoded) -> list[int]:
        mask = self.head.runtime.spec.reading.token
        return [place for place, index in enumerate(item.columns["input_ids"]) if index == mask]

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the best words of each mask of a text, from an output [masks, k, 2]."""
        (item,) = items
        (best,) = outputs
        decode = self.head.tokenizer.decode
        core = self.head.tokenizer.core
        ids = list(item.columns["input_ids"])
        predictions = []
        for number, (place, words) in enumerate(zip(self._places(item), best, strict=True)):
            for score, word in words.tolist():
                index = self.ids[int(word)] if self.ids else int(word)
                # A model may have more embeddings than tokens: the additional ones have no text.
                token = [index] if core.id_to_token(index) is not None else []
                filled = [*ids[:place], *token, *ids[place + 1 :]]
                predictions.append(
                    {
                        "mask": number,
                        "score": score,
                        "token": index,
                        "token_str": decode(token),
                        # with several masks, special tokens stay, or the other masks would vanish
                        "sequence": decode(filled, len(best) == 1),
                    }
                )
        return {"predictions": predictions}


def top(scores: Any, count: int) -> tuple[Any, Any]:
    """Return the ``count`` largest values of each row, in descending order, and their indexes."""
    if library_of(scores) is not np:
        return scores.topk(count)
    largest = np.argpartition(-scores, count - 1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, largest, -1), kind="stable")
    places = np.take_along_axis(largest, order, -1)
    return np.take_along_axis(scores, places, -1), places
