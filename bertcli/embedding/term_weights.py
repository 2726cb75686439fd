"""A weight for each word of the vocabulary, nearly all of them 0: what SPLADE makes of a text.

A masked language model scores every word at every token; the weight of a word is the logarithm of
1 plus its score, 0 for scores below 0, at the token where it is highest ("max") or summed over the
tokens ("sum"). Letters: `L` tokens of a text, `V` words, `k` those of it that have a weight. Terms
are arrays [k, 2] of ids, ascending, and weights, both float32, which holds ids up to 2**24.

Arrays are of torch or of NumPy, as in `pooling`. Source: sentence-transformers 6.2, SpladePooling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.pooling import Pooling, library_of, split, widened
from bertcli.embedding.sentence_modules import Dense, described
from bertcli.inference.runner import Finish, Terms
from bertcli.tokenizing.tokenizer import Tokenizer

ROWS = 64  # tokens whose scores [ROWS, V] are there at a time: few, as V is large


@dataclass(frozen=True)
class TermPooling:
    """From packed states to the weights of each text."""

    how: str = "max"
    logarithms: int = 1  # how often log(1 + x) is taken: twice by some models of OpenSearch

    table = None
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
        if hasattr(model, "term_scores"):  # the graph has taken the maximum, or weights and sum
            rows = model.term_scores(states)
            return [nonzero(self._weights(row) if self.how == "max" else row) for row in rows]
        return [nonzero(self._pooled(model, text)) for text in split(states, lengths)]

    def _pooled(self, model: Any, states: Any) -> Any:
        """Return the weights of all words, [V], for the states of a text [L, D]."""
        library = library_of(states)
        pool = library.amax if self.how == "max" else library.sum
        parts = [pool(self._weights(model.packed_logits(part)), 0) for part in states.split(ROWS)]
        return pool(library.stack(parts), 0)

    def _weights(self, scores: Any) -> Any:
        """Return log(1 + x) of scores, 0 for those below 0."""
        library = library_of(scores)
        weights = library.clip(widened(scores), 0, None)
        for _ in range(self.logarithms):
            weights = library.log1p(weights)
        return weights


@dataclass(frozen=True)
class OwnTerms:
    """Weights of a text's own tokens, of which the largest counts.

    A layer gives them (BGE-M3), or a table: then no model is run for queries like these. Source:
    FlagEmbedding, BGEM3FlagModel; sentence-transformers 6.2, SparseStaticEmbedding.
    """

    layer: Dense | None = None  # [1, D]
    table: np.ndarray | None = None  # [V]
    left_out: frozenset[int] = frozenset()  # ids of special tokens
    scored = None
    how = "max"

    @property
    def layers(self) -> tuple[Dense, ...]:
        """The layers that take the states of the model."""
        return (self.layer,) if self.layer else ()

    @property
    def finish(self) -> Finish:
        """What is kept of a batch: the weight of each token, [L, 1]."""
        return Pooling(("none",), 0, self.layers)

    @property
    def described(self) -> dict[str, Any]:
        """What decides the weights, for manifests."""
        if self.table is not None:
            return {"table": hashlib.sha256(self.table.tobytes()).hexdigest()}
        return {"layer": described(self.layers), "left_out": sorted(self.left_out)}

    def terms(self, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the terms [k, 2] of a text with these tokens, given what was kept of it."""
        weights = weights[:, 0] if self.table is None else self.table[ids]
        used = (weights != 0) & ~np.isin(ids, [*self.left_out])
        return merged([np.stack([ids[used], weights[used]], 1)], self.how)


TermMaker = TermPooling | OwnTerms


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
    terms = np.concatenate(windows)
    ids, places = np.unique(terms[:, 0], return_inverse=True)
    weights = np.zeros(len(ids), np.float32)
    add: Any = np.maximum if how == "max" else np.add
    add.at(weights, places, terms[:, 1])
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
