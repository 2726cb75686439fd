"""Reduce token vectors to one vector per text or per word.

Letters: `T` packed tokens, `n` texts, `B` texts of one length, `L` that length, `D` dimensions.

The states of texts are packed: concatenated without padding. Consecutive texts of equal length are
reduced together; each sum runs over the tokens of one text, in order, so a vector does not depend
on the rest of the batch. States and results are arrays of torch or of NumPy; only functions that
have the same name in both are used. Source: sentence-transformers 6.2, Pooling.

Words are the words of the tokenizer: for BERT, text between white space, with each punctuation mark
as a separate word. Words of a pre-split text are the given words. The windows of a long text are
merged.
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
    """Return the mean with weights 1, 2, 3, ...; skipped tokens count as positions (SGPT)."""
    ones = library_of(tokens).ones_like(tokens[:1, ..., :1])
    positions = ones.cumsum(1) + skip  # [1, L - skip, ..., 1]
    return (tokens * positions).sum(1) / positions.sum(1)


def _weights_by_position(length: int, skip: int) -> np.ndarray:
    """Return the weights of `_weighted_mean`, [L - skip]."""
    positions = np.arange(skip, length) + 1.0
    return positions / positions.sum()


# tokens [B, L - skip, ..., D], number of skipped tokens before them -> [B, ..., D]
POOLING_FUNCTIONS: Mapping[str, Callable[[Any, int], Any]] = {
    "cls": lambda tokens, skip: tokens[:, 0],
    "max": lambda tokens, skip: library_of(tokens).amax(tokens, 1),
    "mean": lambda tokens, skip: tokens.mean(1),
    # sum / sqrt(L): between mean and sum
    "mean_sqrt_len": lambda tokens, skip: tokens.sum(1) / tokens.shape[1] ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda tokens, skip: tokens[:, -1],
}
# Poolings that are weighted sums of the tokens: L, skip -> the weights of tokens [L - skip].
TOKEN_WEIGHTS: Mapping[str, Callable[[int, int], np.ndarray]] = {
    "mean": lambda length, skip: np.full(length - skip, 1 / (length - skip)),
    "mean_sqrt_len": lambda length, skip: np.full(length - skip, (length - skip) ** -0.5),
    "weightedmean": _weights_by_position,
}
SHORTEST = 1e-12  # shorter vectors are not normalized


@dataclass(frozen=True)
class Pooling:
    """The reduction of the states of texts: one or several poolings, "pooler" or "none"."""

    modes: tuple[str, ...]
    skip: int = 0  # leading tokens of each text that are not pooled: [CLS] and a prompt

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return a vector [..., D] per text; with "none", the token vectors [L, ..., D]."""
        match self.modes:
            case ("none",):
                return split_by_sizes(states, lengths)
            case ("pooler",):
                return widen_half_precision(model.pool_first(states))
        return pool(states, lengths, self.modes, self.skip)


def pool(states: Any, lengths: Sequence[int], modes: Sequence[str], skip: int = 0) -> Any:
    """Pool token states [T, ..., D] of texts of these lengths; return [n, ..., D * len(modes)].

    The results of several modes are concatenated. ``skip`` is the number of leading tokens of each
    text that are not pooled ([CLS] and a prompt); the last token is always pooled. Half precision
    is summed and returned in float32.
    """
    if not lengths:
        return library_of(states).concat([states] * len(modes), -1)
    concat = library_of(states).concat
    pooled = []
    start = 0
    for length, equal_lengths in groupby(lengths):
        end = start + sum(equal_lengths)
        tokens = widen_half_precision(states[start:end].reshape(-1, length, *states.shape[1:]))
        skipped = min(skip, length - 1)
        unskipped = tokens[:, skipped:]
        pooled.append(concat([POOLING_FUNCTIONS[mode](unskipped, skipped) for mode in modes], -1))
        start = end
    return concat(pooled)


def split_by_sizes(states: Any, sizes: Sequence[int]) -> list[Any]:
    """Split an array [T, ...] into consecutive slices of these sizes."""
    ends = zip(accumulate(sizes), sizes, strict=True)
    return [states[end - size : end] for end, size in ends]


def widen_half_precision(states: Any) -> Any:
    """Return half precision as float32. NumPy arrays are returned unchanged: they are float32."""
    library = library_of(states)
    if library is np:
        return states
    return states.to(library.promote_types(states.dtype, library.float32))


def pool_windows(
    vectors: np.ndarray, counts: Sequence[int], weights: Sequence[float]
) -> np.ndarray:
    """Merge the vectors of windows of long texts; return [n, ..., D] for n texts.

    ``counts`` is the number of consecutive windows of each text. The vector of a text is the mean
    of its windows weighted by ``weights``, the number of tokens of each window.
    """
    means = []
    weights_of_texts = split_by_sizes(np.asarray(weights, vectors.dtype), counts)
    for windows, window_weights in zip(
        split_by_sizes(vectors, counts), weights_of_texts, strict=True
    ):
        shares = (window_weights / window_weights.sum()).reshape(-1, *[1] * (vectors.ndim - 1))
        means.append((windows * shares).sum(0))  # a single window is unchanged: share 1
    return np.stack(means)


def truncate_and_normalize(
    vectors: np.ndarray, *, dim: int | None = None, normalize: bool = False, dim_last: bool = False
) -> np.ndarray:
    """Truncate vectors [..., D] to ``dim`` dimensions, then normalize them to length 1.

    With ``dim_last``, normalize before truncating. A zero vector is unchanged.
    """
    if dim_last:
        return truncate_and_normalize(vectors, normalize=normalize)[..., :dim]
    vectors = vectors[..., :dim]
    if not normalize:
        return vectors
    lengths = np.sqrt(np.square(vectors).sum(-1, keepdims=True))
    return vectors / np.maximum(lengths, np.float32(SHORTEST))


# --- vectors of records ---

TOKEN_COLUMNS = ("tokens", "offset_mapping", "sequence_ids")  # of `TokenFields`, in its order
POSITIONS = "positions"  # token positions before truncation, a column required by `merge_windows`
TOKEN_POOLINGS = {"first": "cls", "last": "lasttoken"}  # word pooling -> pooling of its tokens


class TokenFields(NamedTuple):
    """The output fields that describe the tokens or words of a record, beside their vectors."""

    name: str  # "tokens" or "words"
    texts: list[str]
    offsets: list[tuple[int, int]]  # in characters of the sentence; of the word if pre-split
    sequences: list[int | None]  # 0 for the text, 1 for its pair, None for special tokens

    def as_fields(self, *, pair: bool) -> dict[str, Any]:
        """Return the output fields; with ``pair``, include the sequence ids."""
        fields: dict[str, Any] = {self.name: self.texts, "offsets": self.offsets}
        return fields | ({"sequence_ids": self.sequences} if pair else {})

    def after(self, skipped: int) -> TokenFields:
        """Return the tokens after the first ``skipped`` ones."""
        return TokenFields(
            self.name, self.texts[skipped:], self.offsets[skipped:], self.sequences[skipped:]
        )


def words_with_tokens(encoded: Encoded) -> tuple[TokenFields, list[slice]]:
    """Return the words of a record in order, and the slice of tokens of each word.

    Special tokens belong to no word. ``encoded`` must have the columns word_ids, sequence_ids and
    offset_mapping, with offsets in characters.
    """
    sentences = (encoded.record.text, encoded.record.pair)
    columns = encoded.columns
    keys = [*zip(columns["word_ids"], columns["sequence_ids"], strict=True)]
    offsets = columns["offset_mapping"]
    words = TokenFields("words", [], [], [])
    tokens_of_words = []
    for (word, sequence), group in groupby(range(len(keys)), key=keys.__getitem__):
        if word is None or sequence is None:
            continue
        tokens = [*group]
        start = offsets[tokens[0]][0]
        end = offsets[tokens[-1]][1]
        sentence = sentences[sequence] or ""
        if isinstance(sentence, str):
            words.texts.append(sentence[start:end])
        else:
            words.texts.append(sentence[word])
        words.offsets.append((start, end))
        words.sequences.append(sequence)
        tokens_of_words.append(slice(tokens[0], tokens[-1] + 1))
    return words, tokens_of_words


def pool_words(vectors: Any, words: Sequence[slice], how: str) -> Any:
    """Pool token vectors [L, ..., D], a NumPy array; return [n, ..., D] for n words.

    ``how`` is "first", "last", "mean" or "max".
    """
    if not words:
        return vectors[:0]
    pooling = POOLING_FUNCTIONS[TOKEN_POOLINGS.get(how, how)]
    return np.concatenate([pooling(vectors[np.newaxis, tokens], 0) for tokens in words])


def merge_windows(windows: Sequence[Encoded], vectors: Sequence[Any]) -> tuple[Encoded, np.ndarray]:
    """Merge the windows of one record; return each token once, with the vectors [L, D...].

    A token in several windows is taken from the window with the most context: the largest distance
    to the nearer end of its sentence in the window. Ties go to the first window. Special tokens
    come from the first window. Source: "max context" in BERT's run_squad.py.
    """
    if len(windows) == 1:
        return windows[0], vectors[0]
    candidates = []  # (position in the text, -context, window, token of the window)
    for window, encoded in enumerate(windows):
        sequences = encoded.columns["sequence_ids"]
        for sequence, group in groupby(range(len(sequences)), key=sequences.__getitem__):
            tokens = [*group]
            for token in tokens:
                context = 0 if sequence is None else min(token - tokens[0], tokens[-1] - token)
                candidates.append((encoded.columns[POSITIONS][token], -context, window, token))
    # Sorted in reverse, so the best candidate of a position is written last.
    best = {position: (window, token) for position, _, window, token in sorted(candidates)[::-1]}
    chosen = [*best.values()][::-1]
    columns: dict[str, Column] = {
        name: [windows[window].columns[name][token] for window, token in chosen]
        for name in windows[0].columns
    }
    chosen_vectors = np.stack([vectors[window][token] for window, token in chosen])
    return windows[0]._replace(columns=columns), chosen_vectors


class EmbeddedBlock:
    """Records with their tokens and vectors, from the model to what writes or compares them.

    ``vectors`` is an array [n, D...] with one vector per record, or a list of an array [L, D...]
    per record: its token or word vectors, or its term weights. With token or word vectors,
    ``token_fields`` describes the tokens or words of each record. This is not a `Table`, because
    writers and searches need the records and token counts as well as the vectors. ``records`` may
    be replaced by records with fewer fields.
    """

    def __init__(
        self,
        batch: TokenBatch,
        vectors: np.ndarray | list[np.ndarray],
        token_fields: list[TokenFields] | None = None,
    ) -> None:
        self.batch = batch
        self.vectors = vectors
        self.token_fields = token_fields
        self.records = batch.records

    @property
    def stacked(self) -> np.ndarray:
        """All vectors as one array [n, D...]: one row per record, token or word."""
        vectors = self.vectors
        return np.concatenate(vectors) if isinstance(vectors, list) else vectors

    def __len__(self) -> int:
        return len(self.records)
