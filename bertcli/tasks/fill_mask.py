"""Prediction of masked words: Section 3.1 of the paper, Task #1.

Scores and texts equal those of transformers' fill-mask pipeline. Vocabulary scores are computed
only at masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.pooling import split_by_sizes
from bertcli.engines.engine import library_of
from bertcli.errors import LOG, InputError, UsageError, option
from bertcli.tasks.head import HeadTask
from bertcli.tokenizing.batch import Encoded

MASKS_PER_BLOCK = 256  # masks scored together against the vocabulary
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
        ids: list[int] = []
        for target in self.targets:
            token_id = tokenizer.core.token_to_id(target)
            if token_id is None:
                pieces = tokenizer.core.encode(target, add_special_tokens=False)
                unknown_id = tokenizer.special_ids().get(tokenizer.roles["unk_token"])
                if not pieces.ids or pieces.ids[0] == unknown_id:
                    raise UsageError(
                        f"{option('targets')}: {target!r} is not in the vocabulary",
                        "choose other words",
                    )
                if len(pieces.ids) > 1:
                    LOG.warn(
                        f"{option('targets')}: {target!r} is not one token; its first, "
                        f"{pieces.tokens[0]!r}, is scored"
                    )
                token_id = pieces.ids[0]
            ids.append(token_id)
        return list(dict.fromkeys(ids))

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        return {"predictions": [BLANK]}

    def finish(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return the best words at each mask, [masks, k, 2] per text: scores and ids."""
        best = [self._best(logits) for logits in vocabulary_logits(model, states)]
        return split_by_sizes(library_of(states).concat(best), lengths)

    def _best(self, logits: Any) -> Any:
        """Return the scores and ids of the best words of masks [n, k, 2], from logits."""
        library = library_of(logits)
        with np.errstate(invalid="ignore"):  # infinite logits are rejected later, with their text
            maximum = library.amax(logits, -1)[:, None]
            total = library.exp(logits - maximum).sum(-1)[:, None]
            candidates = logits[:, self.ids] if self.ids else logits
            values, indices = largest(candidates, min(self.top_k, candidates.shape[-1]))
            scores = library.exp(values - maximum) / total
        # Ids, or indices of `targets`: less than 2 ** 24, so exact in float32.
        return library.stack([scores, library.asarray(indices, dtype=library.float32)], -1)

    def ask(self, item: Encoded) -> Encoded:
        """Return the item. Raises InputError for a text without a mask."""
        if not self._mask_positions(item):
            token = self.head.tokenizer.roles["mask_token"]
            where = f" in its first {item.length} tokens" if item.dropped_tokens else ""
            raise InputError(
                f"{item.record.where}: no {token}{where}",
                f"write {token} where a word is missing, or use {option('on_error', 'skip')}",
            )
        return item

    def _mask_positions(self, item: Encoded) -> list[int]:
        mask_id = self.head.runtime.spec.selection.token_id
        ids = item.columns["input_ids"]
        return [position for position, token_id in enumerate(ids) if token_id == mask_id]

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the best words of each mask of a text, from an output [masks, k, 2]."""
        (item,) = items
        (best,) = outputs
        decode = self.head.tokenizer.decode
        core = self.head.tokenizer.core
        ids = list(item.columns["input_ids"])
        predictions = []
        positions = self._mask_positions(item)
        for number, (position, words) in enumerate(zip(positions, best, strict=True)):
            for score, word in words.tolist():
                token_id = self.ids[int(word)] if self.ids else int(word)
                # A model may have more embeddings than tokens: the additional ones have no text.
                token = [token_id] if core.id_to_token(token_id) is not None else []
                filled = [*ids[:position], *token, *ids[position + 1 :]]
                predictions.append(
                    {
                        "mask": number,
                        "score": score,
                        "token": token_id,
                        "token_str": decode(token),
                        # with several masks, special tokens stay, or the other masks would vanish
                        "sequence": decode(filled, len(best) == 1),
                    }
                )
        return {"predictions": predictions}


def vocabulary_logits(model: Any, states: Any) -> Iterator[Any]:
    """Yield the logits of the vocabulary, float32 [n, vocabulary], of blocks of states [N, hidden].

    The logits of many masks would need more memory than a batch.
    """
    library = library_of(states)
    for start in range(0, len(states), MASKS_PER_BLOCK):
        logits = model.packed_logits(states[start : start + MASKS_PER_BLOCK])
        yield library.asarray(logits, dtype=library.float32)


def largest(scores: Any, count: int) -> tuple[Any, Any]:
    """Return the ``count`` largest values of each row, in descending order, and their indices."""
    if library_of(scores) is not np:
        return scores.topk(count)
    unsorted = np.argpartition(-scores, count - 1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, unsorted, -1), kind="stable")
    indices = np.take_along_axis(unsorted, order, -1)
    return np.take_along_axis(scores, indices, -1), indices
