"""Logits to scores. Arrays are of NumPy, or of torch where a model on a GPU makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcli.embedding.pooling import library_of, split

ROWS = 256  # masks whose whole vocabulary is scored together


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return scores [..., n] that add up to 1."""
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    scores: np.ndarray = raised / raised.sum(-1, keepdims=True)
    return scores


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return scores [...] between 0 and 1, each for itself."""
    small = np.exp(-np.abs(logits))  # never too large
    scores: np.ndarray = np.where(logits >= 0, 1, small) / (1 + small)
    return scores


@dataclass(frozen=True)
class BestWords:
    """Finish with the best words at each mask, [masks, k, 2] per text: scores and words.

    A word is its place in ``ids``, the only ones that are ranked, or its id where there are none.
    """

    top_k: int
    ids: tuple[int, ...] = ()

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> Sequence[Any]:
        """Score the vocabulary at masked states [T, hidden]."""
        parts = [states[at : at + ROWS] for at in range(0, len(states), ROWS)]
        found = [self._best(model.packed_logits(part)) for part in parts]
        return split(library_of(states).concat(found), lengths)

    def _best(self, logits: Any) -> Any:
        library = library_of(logits)
        logits = library.asarray(logits, dtype=library.float32)
        with np.errstate(invalid="ignore"):  # infinite ones are refused with the text they are of
            peak = library.amax(logits, -1)[:, None]
            total = library.exp(logits - peak).sum(-1)[:, None]
            ranked = logits[:, list(self.ids)] if self.ids else logits
            values, places = top(ranked, min(self.top_k, ranked.shape[-1]))
            scores = library.exp(values - peak) / total
        wide = {"dtype": library.float64, "device": "cpu"}  # for large ids
        return library.stack([library.asarray(one, **wide) for one in (scores, places)], -1)


def top(scores: Any, count: int) -> tuple[Any, Any]:
    """Return the ``count`` largest of each row, the largest first, and their places."""
    if library_of(scores) is not np:
        found: tuple[Any, Any] = scores.topk(count)
        return found
    some = np.argpartition(-scores, count - 1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, some, -1), kind="stable")
    places = np.take_along_axis(some, order, -1)
    return np.take_along_axis(scores, places, -1), places
