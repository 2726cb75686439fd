"""A weight for each word of the vocabulary, nearly all of them 0: what SPLADE makes of a text.

A masked language model scores every word at every token; the weight of a word is the logarithm of
1 plus its score, 0 for scores below 0, at the token where it is highest ("max") or summed over the
tokens ("sum"). Letters: `T` packed tokens, `V` words, `k` those of a text that have a weight. Terms
are arrays [k, 2] of ids, ascending, and weights, both float32, which holds ids up to 2**24.

Arrays are of torch or of NumPy, as in `pooling`. Source: sentence-transformers 6.2, SpladePooling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertcli.checkpoints.scan import TERM_TABLE
from bertcli.embedding.pooling import Pooling, library_of, widened
from bertcli.embedding.sentence_modules import Dense, described
from bertcli.inference.runner import Finish, Terms
from bertcli.tokenizing.tokenizer import Tokenizer

# Tokens whose scores [ROWS, V] are there at a time: few, as V is large; and always as many, as the
# last bits of a product depend on their number.
ROWS = 64


@dataclass(frozen=True)
class TermPooling:
    """From packed states to the weights of each text."""

    how: str = "max"
    logarithms: int = 1  # how often log(1 + x) is taken: twice by some models of OpenSearch

    kind = "BertForMaskedLM"  # the class of the model
    layers: ClassVar[tuple[Dense, ...]] = ()  # that take its states

    @property
    def finish(self) -> Finish:
        """What is kept of a batch."""
        return self

    @property
    def scored(self) -> Terms:
        """What an engine may do with the scores of words."""
        return Terms(self.how, self.logarithms)

    @property
    def described(self) -> dict[str, Any]:
        """What decides the weights, for manifests."""
        return {"logarithms": self.logarithms}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text with these tokens, given what was kept of it."""
        return weights.astype(np.float32)

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> list[Any]:
        """Return for each text the words that have a weight, [k, 2]: ids, ascending, and weights.

        Half precision becomes float32.
        """
        return [nonzero(weights) for weights in self._dense(model, states, lengths)]

    def _dense(self, model: Any, states: Any, lengths: Sequence[int]) -> Iterator[Any]:
        """Yield the weights of all words, [V], for each text."""
        if hasattr(model, "term_scores"):  # the graph has done it
            for row in model.term_scores(states):
                yield self._activated(row) if self.how == "max" else row
            return
        scored, rows = _scores(model, states), states[:0]
        for length in lengths:
            held, left = None, length
            while left:
                rows = rows if len(rows) else next(scored)
                held = self._add(held, rows[:left])
                left, rows = left - len(rows[:left]), rows[left:]
            yield self._activated(held) if self.how == "max" else held

    def _add(self, held: Any, scores: Any) -> Any:
        """Add the scores of tokens [l, V] to what is held of their text, [V]."""
        library = library_of(scores)
        if self.how == "max":  # of the scores: their logarithms have the same order
            best = library.amax(scores, 0)
            return best if held is None else library.maximum(held, best)
        for row in self._activated(scores):  # one by one, or the sum would depend on the portion
            held = row if held is None else held + row
        return held

    def _activated(self, scores: Any) -> Any:
        """Return log(1 + x) of scores, 0 for those below 0."""
        library = library_of(scores)
        weights = library.clip(widened(scores), 0, None)
        for _ in range(self.logarithms):
            weights = library.log1p(weights)
        return weights


@dataclass(frozen=True)
class OwnTerms:
    """Weights of a text's own tokens: a layer gives each one, and the largest counts (BGE-M3).

    Source: FlagEmbedding, BGEM3FlagModel.
    """

    layer: Dense  # [1, D]
    left_out: frozenset[int] = frozenset()  # ids of special tokens
    scored = None
    how = "max"
    kind = "BertModel"

    @property
    def layers(self) -> tuple[Dense, ...]:
        """The layers that take the states of the model."""
        return (self.layer,)

    @property
    def finish(self) -> Finish:
        """What is kept of a batch: the weight of each token, [L, 1]."""
        return Pooling(("none",), 0, (self.layer,))

    @property
    def described(self) -> dict[str, Any]:
        """What decides the weights, for manifests."""
        return {"layer": described([self.layer]), "left_out": sorted(self.left_out)}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text with these tokens, given what was kept of it."""
        used = (weights[:, 0] != 0) & ~np.isin(ids, [*self.left_out])
        return merged([np.stack([ids[used], weights[used, 0]], 1), np.zeros((0, 2))], self.how)


@dataclass(frozen=True)
class TableTerms:
    """Weights of a text's own tokens, from a table: no model is run for queries like these.

    Source: sentence-transformers 6.2, SparseStaticEmbedding.
    """

    weights: np.ndarray  # [V]
    scored = None
    how = "max"
    kind = TERM_TABLE
    layers: ClassVar[tuple[Dense, ...]] = ()

    @property
    def finish(self) -> Finish:
        """What is kept of a batch: nothing."""
        return TermPooling()

    @property
    def described(self) -> dict[str, Any]:
        """What decides the weights, for manifests."""
        return {"table": hashlib.sha256(self.weights.tobytes()).hexdigest()}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text with these tokens."""
        present = np.unique(ids)
        present = present[self.weights[present] != 0]
        return np.stack([present, self.weights[present]], 1).astype(np.float32)


TermMaker = TermPooling | OwnTerms | TableTerms


def _scores(model: Any, states: Any) -> Iterator[Any]:
    """Yield the scores of every word for packed states [T, D], a portion at a time: [<= ROWS, V].

    The last portion is filled up with a token of its own.
    """
    library = library_of(states)
    for start in range(0, len(states), ROWS):
        part = states[start : start + ROWS]
        filled = library.concat([part, *[part[:1]] * (ROWS - len(part))])
        yield model.packed_logits(filled)[: len(part)]


def nonzero(weights: Any) -> Any:
    """Return the words that have a weight, [k, 2], of those of all words, [V]."""
    library = library_of(weights)
    ids = library.argwhere(weights)  # [k, 1]
    return library.concat([ids, weights[ids]], 1)


def largest(terms: np.ndarray, most: int | None) -> np.ndarray:
    """Return the terms [k, 2] with the largest weights, at most so many; of equals, the first."""
    if most is None or len(terms) <= most:
        return terms
    best = np.argsort(-terms[:, 1], kind="stable")[:most]
    return terms[np.sort(best)]


def merged(windows: Sequence[np.ndarray], how: str) -> np.ndarray:
    """Return the terms [k, 2] of a text from those of its windows."""
    if len(windows) == 1:
        return windows[0]
    ids, places = np.unique(np.concatenate(windows)[:, 0], return_inverse=True)
    weights = np.zeros(len(ids), np.float32)
    add: Any = np.maximum if how == "max" else np.add
    add.at(weights, places, np.concatenate(windows)[:, 1])
    return np.stack([ids, weights], 1).astype(np.float32)


@dataclass(frozen=True)
class TermNames:
    """The words of a vocabulary, by their ids."""

    tokenizer: Tokenizer
    width: int  # of the vocabulary, as the model has it

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or of one that is named by it; None for an unknown token."""
        index = self.tokenizer.core.token_to_id(token)
        if index is None and token[:1] == "[" and token[1:-1].isdecimal():
            return int(token[1:-1])
        return index

    def of(self, terms: np.ndarray) -> dict[str, float]:
        """Return the weights of terms [k, 2] by their tokens, the largest first.

        Weights have the fewest digits that read back to the same float32. Models may have more
        embeddings than there are tokens: those are named by their ids.
        """
        name = self.tokenizer.core.id_to_token
        ordered = terms[np.argsort(-terms[:, 1], kind="stable")]
        ids, weights = ordered[:, 0].astype(int).tolist(), ordered[:, 1].astype("U32").tolist()
        named = [f"[{index}]" if (token := name(index)) is None else token for index in ids]
        return dict(zip(named, map(float, weights), strict=True))
