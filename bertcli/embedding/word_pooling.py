"""From the vectors of a text's tokens to one vector a word.

Letters: `L` tokens, `n` words, `D` dimensions. Words are those of the tokenizer: for BERT what
stands between white space, with each punctuation mark a word of its own; or, for a text that came
split, the words it was split into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.records.records import Text

if TYPE_CHECKING:
    from bertcli.tokenizing.columns import Encoded

# vectors of one word's tokens [l, ..., D] -> [..., D]
WORD_POOLINGS: Mapping[str, Callable[[Any], Any]] = {
    "first": lambda pieces: pieces[0],
    "last": lambda pieces: pieces[-1],
    "mean": lambda pieces: pieces.mean(0),
    "max": lambda pieces: pieces.max(0),
}
COLUMNS = ("word_ids", "sequence_ids", "offset_mapping")  # what words_of needs of an Encoded


class Word(NamedTuple):
    """A word: its text, its characters in the sentence it is in, and its tokens."""

    text: str
    span: tuple[int, int]  # within the word itself, for a text that came split
    sequence: int  # 0 for the text, 1 for its pair
    tokens: slice


def words_of(encoded: Encoded) -> list[Word]:
    """Return the words of a record in order; special tokens are in none of them.

    The columns of COLUMNS must be there, the offsets in characters.
    """
    record = encoded.record
    sentences = (record.text, record.pair)
    places = [*zip(*(encoded.columns[name] for name in COLUMNS[:2]), strict=True)]
    offsets, found = encoded.columns["offset_mapping"], []
    for (number, sequence), tokens in groupby(range(len(places)), key=places.__getitem__):
        if number is None or sequence is None:
            continue
        at = [*tokens]
        span = offsets[at[0]][0], offsets[at[-1]][1]
        text = _text_of(sentences[sequence], number, span)
        found.append(Word(text, span, sequence, slice(at[0], at[-1] + 1)))
    return found


def pool_words(vectors: Any, words: Sequence[Word], how: str) -> Any:
    """Pool token vectors [L, ..., D], a NumPy array: [n, ..., D], one a word.

    ``how`` is first, last, mean or max.
    """
    import numpy as np

    if not words:
        return vectors[:0]
    return np.stack([WORD_POOLINGS[how](vectors[word.tokens]) for word in words])


def _text_of(sentence: Text | None, number: int, span: tuple[int, int]) -> str:
    if isinstance(sentence, str):
        return sentence[span[0] : span[1]]
    return sentence[number] if sentence else ""
