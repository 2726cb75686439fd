"""What the vectors of a record's tokens or words belong to; windows of long texts are merged.

Letters: `L` tokens of a record, `n` its words, `D` dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from bertcli.embedding.word_pooling import Word
from bertcli.tokenizing.columns import Column, Encoded

TOKEN_COLUMNS = ("tokens", "offset_mapping", "sequence_ids")
PLACES = "places"  # the column that `joined` needs


class TokenVectors(NamedTuple):
    """The tokens or words of a record, in the order of its vectors."""

    name: str  # "tokens" or "words"
    texts: list[str]
    offsets: list[tuple[int, int]]  # characters in the sentence; in the word if it came split
    sequences: list[int | None]  # 0 for the text, 1 for its pair, None for special tokens

    @classmethod
    def of_tokens(cls, encoded: Encoded) -> TokenVectors:
        """Return the tokens, special ones included."""
        return cls("tokens", *(list(encoded.columns[name]) for name in TOKEN_COLUMNS))

    @classmethod
    def of_words(cls, words: Sequence[Word]) -> TokenVectors:
        """Return the words, in which no special token is."""
        return cls(
            "words",
            [word.text for word in words],
            [word.span for word in words],
            [word.sequence for word in words],
        )

    def fields(self, *, pair: bool) -> dict[str, Any]:
        """Return what is written of them; ``pair`` tells whether there are two sentences."""
        found: dict[str, Any] = {self.name: self.texts, "offsets": self.offsets}
        return found | ({"sequence_ids": self.sequences} if pair else {})


def windows_of(batch: Iterable[Encoded]) -> list[list[Encoded]]:
    """Return the items record by record: most have one, those cut into windows several."""
    return [list(same) for _, same in groupby(batch, key=lambda item: item.sample)]


def portions(records: Sequence[list[Encoded]], most: int) -> Iterator[list[list[Encoded]]]:
    """Divide records, given as their windows, so that no portion of several has more tokens."""
    held: list[list[Encoded]] = []
    size = 0
    for windows in records:
        tokens = sum(item.length for item in windows)
        if held and size + tokens > most:
            yield held
            held, size = [], 0
        held.append(windows)
        size += tokens
    if held:
        yield held


def joined(windows: Sequence[Encoded], vectors: Sequence[Any]) -> tuple[Encoded, np.ndarray]:
    """Put the windows of one record together: each token once, with its vector [L, D...].

    A token that several windows share is taken from the one in which it has most context: where the
    nearer end of its sentence's part is farthest, the first of several. Special tokens come from
    the first window. Source: "max context" in BERT's run_squad.py.
    """
    if len(windows) == 1:
        return windows[0], vectors[0]
    best: dict[int, tuple[int, int, int]] = {}  # place -> context, window, token
    for number, window in enumerate(windows):
        for at, context in enumerate(_contexts(window.columns["sequence_ids"])):
            place = window.columns[PLACES][at]
            if place not in best or context > best[place][0]:
                best[place] = context, number, at
    picked = [(number, at) for _, (_, number, at) in sorted(best.items())]
    columns: dict[str, Column] = {
        name: [windows[number].columns[name][at] for number, at in picked]
        for name in windows[0].columns
    }
    return windows[0]._replace(columns=columns), np.stack([vectors[n][at] for n, at in picked])


def _contexts(sequences: Sequence[int | None]) -> Iterator[int]:
    """Yield for each token how far the nearer end of its sentence's part is."""
    for sequence, part in groupby(sequences):
        length = len(list(part))
        yield from (0 if sequence is None else min(at, length - 1 - at) for at in range(length))
