"""Which tokens are to be predicted, and what stands in their place.

Source: Devlin et al. 2018, section 3.1, and ``create_masked_lm_predictions`` of Google's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import NamedTuple

from bertcli.errors import ModelError
from bertcli.tokenizing.model_files import PREFIX
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.random_choice import below, drawn

MASK, KEEP = 0.8, 0.9  # below the first: [MASK]; below the second: the token itself; else another
_UNUSED = re.compile(r"\[unused\d+\]")


class Masked(NamedTuple):
    """A sequence with its predictions; positions ascend."""

    ids: list[int]
    positions: list[int]
    labels: list[int]  # what stood at the positions


@dataclass(frozen=True)
class Masker:
    """Masks sequences of one vocabulary.

    A random token is any but the special and the unused ones, which no text has: they would tell
    that something was replaced. (Google's code takes any.)
    """

    mask_id: int
    replacements: Sequence[int]  # what a random token is drawn from
    continuing: frozenset[int]  # pieces that continue a word
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    whole_word: bool = False

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, masked_lm_prob: float, max_predictions: int, *, whole_word: bool
    ) -> Masker:
        """Return the masker of a tokenizer. Raises ModelError without [MASK] or words."""
        special, mask = tokenizer.special_ids(), tokenizer.roles["mask_token"]
        if mask not in special:
            raise ModelError(
                f"the vocabulary has no {mask}, which stands for a token to predict",
                "choose another --model, or make one with bertcli pretrain vocab",
            )
        core = tokenizer.core
        added = {id for id, token in core.get_added_tokens_decoder().items() if token.special}
        outside = added | set(special.values())
        vocabulary = core.get_vocab()
        words = sorted(
            id
            for token, id in vocabulary.items()
            if id not in outside and not _UNUSED.fullmatch(token)
        )
        if not words:
            raise ModelError("the vocabulary has special tokens only", "choose another --model")
        pieces = frozenset(id for token, id in vocabulary.items() if token.startswith(PREFIX))
        return cls(special[mask], words, pieces, masked_lm_prob, max_predictions, whole_word)

    def mask(self, ids: Sequence[int], segments: Sequence[range], rng: Random) -> Masked:
        """Return a sequence masked; only positions in ``segments`` are ever touched."""
        wanted = min(self.max_predictions, max(1, round(len(ids) * self.masked_lm_prob)))
        chosen = sorted(self._chosen(ids, segments, wanted, rng))
        found = list(ids)
        for at in chosen:
            chance = rng.random()
            if chance < MASK:
                found[at] = self.mask_id
            elif chance >= KEEP:
                found[at] = self.replacements[below(rng, len(self.replacements))]
        return Masked(found, chosen, [ids[at] for at in chosen])

    def _chosen(
        self, ids: Sequence[int], segments: Sequence[range], wanted: int, rng: Random
    ) -> list[int]:
        """Choose positions by chance; a word that is too long for the rest is left alone."""
        if not self.whole_word:
            return [*islice(drawn(rng, [*chain.from_iterable(segments)]), wanted)]
        chosen: list[int] = []
        for word in drawn(rng, [word for part in segments for word in self._words(ids, part)]):
            if len(chosen) + len(word) <= wanted:
                chosen += word
            if len(chosen) == wanted:
                break
        return chosen

    def _words(self, ids: Sequence[int], part: range) -> Iterator[range]:
        """Yield the positions of each word; what a segment begins with is one in any case."""
        start = part.start
        for at in part[1:]:
            if ids[at] not in self.continuing:
                yield range(start, at)
                start = at
        yield range(start, part.stop)
