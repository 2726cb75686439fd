"""Rows of different lengths in one flat array: row b is values[offsets[b] : offsets[b + 1]]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]


def spans(pool: NDArray[Any], starts: Counts, lengths: Counts) -> NDArray[Any]:
    """Return pool[start : start + length] of all spans, concatenated."""
    is_filled = lengths > 0
    starts = starts[is_filled]
    lengths = lengths[is_filled]
    steps = np.ones(lengths.sum(), np.int64)  # from each index to the next
    steps[:1] = starts[:1]
    steps[np.cumsum(lengths)[:-1]] = starts[1:] - starts[:-1] - lengths[:-1] + 1
    return pool.take(np.cumsum(steps, out=steps), 0)  # ten times as fast as indexing


def offsets_of(lengths: Counts | list[int]) -> Counts:
    """Return the row offsets for rows of these lengths: each start, and the end of the last."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
