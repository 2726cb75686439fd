"""What an embedder makes of records: a vector each, or one for each of their tokens or words.

Letters: `L` tokens of a record, `n` its words, `D` dimensions. Words are those of the tokenizer:
for BERT what stands between white space, with each punctuation mark a word of its own; or, for a
text that came split, the words it was split into. Windows of long texts are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np

from bertcli.tokenizing.columns import Column, Encoded, TokenBlock

COLUMNS = ("input_ids", "token_type_ids")  # that a model needs of each text
TOKEN_COLUMNS = ("tokens", "offset_mapping", "sequence_ids")
WORD_COLUMNS = ("word_ids", "sequence_ids", "offset_mapping")  # that `words_of` needs
PLACES = "places"  # the column that `joined` needs
# Vectors of one word's tokens [l, ..., D] -> [..., D].
WORD_POOLINGS: Mapping[str, Callable[[Any], Any]] = {
    "first": lambda pieces: pieces[0],
    "last": lambda pieces: pieces[-1],
    "mean": lambda pieces: pieces.mean(0),
    "max": lambda pieces: pieces.max(0),
}


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

    def fields(self, *, pair: bool) -> dict[str, Any]:
        """Return what is written of them; ``pair`` tells whether there are two sentences."""
        fields: dict[str, Any] = {self.name: self.texts, "offsets": self.offsets}
        return fields | ({"sequence_ids": self.sequences} if pair else {})


def words_of(encoded: Encoded) -> tuple[TokenVectors, list[slice]]:
    """Return the words of a record in order, and the tokens of each; special ones are in none.

    The columns of WORD_COLUMNS must be there, the offsets in characters.
    """
    sentences = (encoded.record.text, encoded.record.pair)
    places = [*zip(*(encoded.columns[name] for name in WORD_COLUMNS[:2]), strict=True)]
    offsets = encoded.columns["offset_mapping"]
    words, tokens = TokenVectors("words", [], [], []), []
    for (number, sequence), group in groupby(range(len(places)), key=places.__getitem__):
        if number is None or sequence is None:
            continue
        at = [*group]
        span = offsets[at[0]][0], offsets[at[-1]][1]
        sentence = sentences[sequence] or ""
        words.texts.append(
            sentence[slice(*span)] if isinstance(sentence, str) else sentence[number]
        )
        words.offsets.append(span)
        words.sequences.append(sequence)
        tokens.append(slice(at[0], at[-1] + 1))
    return words, tokens


def pool_words(vectors: Any, words: Sequence[slice], how: str) -> Any:
    """Pool token vectors [L, ..., D], a NumPy array: [n, ..., D], one a word, of these tokens.

    ``how`` is first, last, mean or max.
    """
    if not words:
        return vectors[:0]
    return np.stack([WORD_POOLINGS[how](vectors[tokens]) for tokens in words])


def joined(windows: Sequence[Encoded], vectors: Sequence[Any]) -> tuple[Encoded, np.ndarray]:
    """Put the windows of one record together: each token once, with its vector [L, D...].

    A token that several windows share is taken from the one in which it has most context: where the
    nearer end of its sentence's part is farthest, the first of several. Special tokens come from
    the first window. Source: "max context" in BERT's run_squad.py.
    """
    if len(windows) == 1:
        return windows[0], vectors[0]
    candidates = []
    for number, window in enumerate(windows):
        sequences = window.columns["sequence_ids"]
        for sequence, part in groupby(range(len(sequences)), key=sequences.__getitem__):
            tokens = [*part]
            for at in tokens:
                context = 0 if sequence is None else min(at - tokens[0], tokens[-1] - at)
                candidates.append((window.columns[PLACES][at], -context, number, at))
    best: dict[int, tuple[int, int]] = {}  # place -> window, token
    for place, _, number, at in sorted(candidates):
        best.setdefault(place, (number, at))
    picked = best.values()
    columns: dict[str, Column] = {
        name: [windows[number].columns[name][at] for number, at in picked]
        for name in windows[0].columns
    }
    return windows[0]._replace(columns=columns), np.stack([vectors[n][at] for n, at in picked])


class Embedded(NamedTuple):
    """A record, its tokens, and its vector [D], or [k, D] with stacked layers.

    Where each token or word has a vector, those are [L, D...], and ``pieces`` says of what.
    """

    encoded: Encoded
    vector: np.ndarray
    pieces: TokenVectors | None = None


class EmbeddedBlock:
    """Records with their vectors, as columns; an `Embedded` is made where somebody asks for one.

    The vectors are an array [n, D...], or where tokens or words have one each, ``pieces`` says
    which, and the vectors of each record are [L, D...].
    """

    def __init__(
        self,
        batch: TokenBlock,
        vectors: np.ndarray | list[np.ndarray],
        pieces: list[TokenVectors] | None = None,
    ) -> None:
        self.batch, self.vectors, self.pieces = batch, vectors, pieces
        self.records, self.samples = batch.records, batch.samples
        self.lengths, self.cuts = batch.lengths, batch.cut

    @property
    def stacked(self) -> np.ndarray:
        """The vectors as one array, [n, D...]: one of each record, or those of all pieces."""
        vectors = self.vectors
        return np.concatenate(vectors) if isinstance(vectors, list) else vectors

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Embedded]:
        return map(Embedded, self.batch, self.vectors, self.pieces or repeat(None))
