"""From the vectors of a text's tokens to one vector a text.

Letters: `T` packed tokens, `n` texts, `B` texts of one length, `L` that length, `D` dimensions.

Texts lie one after the other without padding, and neighbours of equal length are reduced together.
Each is summed over its own tokens alone, in their order, so that a vector does not depend on what
else is in the batch. What is pooled is an array of torch or of NumPy, and so is the result: the
functions that both have by one name do it. Source: sentence-transformers 6.2, Pooling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from bertcli.errors import UsageError
from bertcli.inference.runner import first_tokens


def library_of(array: Any) -> Any:
    """Return the library that an array is of, torch or NumPy."""
    return import_module(type(array).__module__.partition(".")[0])


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
    before: tuple[Callable[[np.ndarray], np.ndarray], ...] = ()  # what becomes of states first

    def __call__(self, model: Any, states: Any, lengths: Sequence[int]) -> Any:
        """Return a vector [..., D] per text, or with "none" one per token, [L, ..., D]."""
        for module in self.before:
            states = _by_numpy(module, states)
        match self.modes:
            case ("none",):
                return split(states, lengths)
            case ("pooler",):
                return widened(model.pooler(first_tokens(states, lengths)))
        return pool(states, lengths, self.modes, self.skip)


def pool(states: Any, lengths: Sequence[int], modes: Sequence[str], skip: int = 0) -> Any:
    """Pool token states [T, ..., D] of texts of these lengths: [n, ..., D * len(modes)].

    The results of several modes lie one behind the other. ``skip`` counts the tokens at the start
    of each text that are left out, [CLS] included: those of a prompt that is not to be pooled. Half
    precision is summed, and returned, in float32. ValueError when lengths and tokens disagree, or a
    text has no tokens.
    """
    if sum(lengths) != states.shape[0] or not all(lengths):
        raise ValueError(f"lengths {list(lengths)} do not make up {states.shape[0]} tokens")
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise UsageError(f"unknown --pooling {unknown[0]!r}", f"one of {', '.join(POOLINGS)}")
    if not lengths:
        return library_of(states).concat([states] * len(modes), -1)
    concat, pooled, start = library_of(states).concat, [], 0
    for length, same in groupby(lengths):
        end = start + sum(same)
        tokens = widened(states[start:end].reshape(-1, length, *states.shape[1:]))
        left = tokens[:, skip:] if skip < length else None
        of_modes = [
            _of_nothing(tokens[:, 0], mode) if left is None else POOLINGS[mode](left, skip)
            for mode in modes
        ]
        pooled.append(concat(of_modes, -1))
        start = end
    return concat(pooled)


def _of_nothing(first: Any, mode: str) -> Any:
    """Return what sentence-transformers gives when every token is left out; the first is [CLS]."""
    if mode == "cls":
        return first
    return library_of(first).full_like(first, -np.inf if mode == "max" else 0)


def split(states: Any, sizes: Sequence[int]) -> list[Any]:
    """Split [T, ...] into parts of these sizes."""
    ends = [*accumulate(sizes)]
    return [states[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _by_numpy(module: Callable[[np.ndarray], np.ndarray], states: Any) -> Any:
    """Return what a module of NumPy makes of states, as an array of their own library."""
    library = library_of(states)
    if library is np:
        return module(states)
    return library.from_numpy(module(states.float().cpu().numpy())).to(states.device)


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
    ``weights``, one a window: the tokens in it. A text of one window keeps its vector as it is.
    """
    if all(count == 1 for count in counts):
        return vectors
    averaged = []
    shares = split(np.asarray(weights, vectors.dtype), counts)
    for windows, share in zip(split(vectors, counts), shares, strict=True):
        share = (share / share.sum()).reshape(-1, *[1] * (vectors.ndim - 1))
        averaged.append((windows * share).sum(0))
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
    scaled: np.ndarray = vectors / np.maximum(lengths, np.float32(1e-12))
    return scaled
