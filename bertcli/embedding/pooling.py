"""From the vectors of a text's tokens to one vector a text, or one for each of its words.

Letters: `T` packed tokens, `n` texts, `B` texts of one length, `L` that length, `D` dimensions.

Texts lie one after the other without padding, and neighbours of equal length are reduced together.
Each is summed over its own tokens alone, in their order, so that a vector does not depend on what
else is in the batch. What is pooled is an array of torch or of NumPy, and so is the result: the
functions that both have by one name do it. Source: sentence-transformers 6.2, Pooling.

Words are those of the tokenizer: for BERT what stands between white space, with each punctuation
mark a word of its own; or, for a text that came split, the words it was split into. Windows of long
texts are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np

from bertcli.engines.engine import library_of
from bertcli.tokenizing.batch import Column, Encoded, TokenBatch


def _weighted_mean(tokens: Any, skip: int) -> Any:
    """Return the mean with weights 1, 2, 3, ... of all tokens, those left out included (SGPT)."""
    ones = library_of(tokens).ones_like(tokens[:1, ..., :1])
    places = ones.cumsum(1) + skip  # [1, L - skip, ..., 1]
    return (tokens * places).sum(1) / places.sum(1)


# tokens [B, L - skip, ..., D], number of tokens left out before them -> [B, ..., D]
POOLINGS: Mapping[str, Callable[[Any, int], Any]] = {
    "cls": lambda tokens, skip: tokens[:, 0],
    "max": lambda tokens, skip: library_of(tokens).amax(tokens, 1),
    "mean": lambda tokens, skip: tokens.mean(1),
    # between mean and sum
    "mean_sqrt_len": lambda tokens, skip: tokens.sum(1) / tokens.shape[1] ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda tokens, skip: tokens[:, -1],
}


@dataclass(frozen=True)
class Pooling:
    """What is kept of the states of texts: poolings by name, or "pooler" or "none" alone."""

    modes: tuple[str, ...]
    skip: int = 0  # tokens at the start of each text that are left out: those of a prompt

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return a vector [..., D] per text, or with "none" one per token, [L, ..., D]."""
        match self.modes:
            case ("none",):
                return split(states, lengths)
            case ("pooler",):
                return widened(model.pool_first(states))
        return pool(states, lengths, self.modes, self.skip)


def pool(states: Any, lengths: Sequence[int], modes: Sequence[str], skip: int = 0) -> Any:
    """Pool token states [T, ..., D] of texts of these lengths: [n, ..., D * len(modes)].

    The results of several modes lie one behind the other. ``skip`` counts the tokens at the start
    of each text that are left out, [CLS] included: those of a prompt that is not to be pooled; the
    last one never is. Half precision is summed, and returned, in float32.
    """
    if not lengths:
        return library_of(states).concat([states] * len(modes), -1)
    concat = library_of(states).concat
    pooled = []
    start = 0
    for length, same in groupby(lengths):
        end = start + sum(same)
        tokens = widened(states[start:end].reshape(-1, length, *states.shape[1:]))
        omitted = min(skip, length - 1)
        left = tokens[:, omitted:]
        pooled.append(concat([POOLINGS[mode](left, omitted) for mode in modes], -1))
        start = end
    return concat(pooled)


def split(states: Any, sizes: Sequence[int]) -> list[Any]:
    """Split [T, ...] into parts of these sizes."""
    ends = zip(accumulate(sizes), sizes, strict=True)
    return [states[end - size : end] for end, size in ends]


def widened(states: Any) -> Any:
    """Return half precision as float32. What NumPy holds is float32 already."""
    library = library_of(states)
    if library is np:
        return states
    return states.to(library.promote_types(states.dtype, library.float32))


def pool_windows(
    vectors: np.ndarray, counts: Sequence[int], weights: Sequence[float]
) -> np.ndarray:
    """Put the windows of long texts together: vectors of windows -> [n, ..., D], n texts.

    Each text has ``counts`` windows, one after the other. Its vector is their mean, weighted by
    ``weights``, one a window: the tokens in it.
    """
    averaged = []
    shares = split(np.asarray(weights, vectors.dtype), counts)
    for windows, share in zip(split(vectors, counts), shares, strict=True):
        share = (share / share.sum()).reshape(-1, *[1] * (vectors.ndim - 1))
        averaged.append((windows * share).sum(0))  # the only window of a text is its vector
    return np.stack(averaged)


def finish(
    vectors: np.ndarray, *, dim: int | None = None, normalize: bool = False, dim_last: bool = False
) -> np.ndarray:
    """Truncate vectors [..., D] to ``dim`` dimensions, and then to length 1, or ``dim_last``.

    A vector of zeros stays one.
    """
    if dim_last:
        return finish(vectors, normalize=normalize)[..., :dim]
    vectors = vectors[..., :dim]
    if not normalize:
        return vectors
    lengths = np.sqrt(np.square(vectors).sum(-1, keepdims=True))
    return vectors / np.maximum(lengths, np.float32(1e-12))


# --- what comes of records ---

TOKEN_COLUMNS = ("tokens", "offset_mapping", "sequence_ids")
WORD_COLUMNS = ("word_ids", "sequence_ids", "offset_mapping")  # that `words_of` needs
PLACES = "places"  # the column that `joined` needs
OF_WORDS = {"first": "cls", "last": "lasttoken"}  # names of poolings of the tokens of a word


class TokenVectors(NamedTuple):
    """The tokens or words of a record, in the order of its vectors."""

    name: str  # "tokens" or "words"
    texts: list[str]
    offsets: list[tuple[int, int]]  # characters in the sentence; in the word if it came split
    sequences: list[int | None]  # 0 for the text, 1 for its pair, None for special tokens

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
    words = TokenVectors("words", [], [], [])
    tokens = []
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
    """Pool token vectors [L, ..., D], a NumPy array: [n, ..., D], one for each of n words.

    ``how`` is first, last, mean or max.
    """
    if not words:
        return vectors[:0]
    pooled = POOLINGS[OF_WORDS.get(how, how)]
    return np.concatenate([pooled(vectors[np.newaxis, tokens], 0) for tokens in words])


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
    # place -> window, token; of the candidates for a place the first one counts
    best = {place: (number, at) for place, _, number, at in sorted(candidates, reverse=True)}
    picked = [*best.values()][::-1]
    columns: dict[str, Column] = {
        name: [windows[number].columns[name][at] for number, at in picked]
        for name in windows[0].columns
    }
    return windows[0]._replace(columns=columns), np.stack([vectors[n][at] for n, at in picked])


class EmbeddedBlock:
    """The tokens of records with their vectors.

    The vectors are an array [n, D...], or where tokens or words have one each, ``pieces`` says
    which, and the vectors of each record are [L, D...].
    """

    def __init__(
        self,
        batch: TokenBatch,
        vectors: np.ndarray | list[np.ndarray],
        pieces: list[TokenVectors] | None = None,
    ) -> None:
        self.batch = batch
        self.vectors = vectors
        self.pieces = pieces
        self.records = batch.records

    @property
    def stacked(self) -> np.ndarray:
        """The vectors as one array, [n, D...]: one of each record, or those of all pieces."""
        vectors = self.vectors
        return np.concatenate(vectors) if isinstance(vectors, list) else vectors

    def __len__(self) -> int:
        return len(self.records)
