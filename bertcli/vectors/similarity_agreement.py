"""How alike two models see the same texts, whatever the widths of their vectors.

Two numbers, both of cosines between texts: the correlation (Pearson) of the two similarity
matrices, and the share of the nearest neighbours of a text that both have. Of many rows a sample is
taken, the same in both files, so that memory and time are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertcli.vectors.reading import Array

Rows = NDArray[np.int64]

SAMPLE = 4096  # rows, at most
NEIGHBOURS = 10  # of each row, at most
AT_ONCE = 512  # rows whose similarities are held
SEED = 0  # of the sample
FEWEST = 3  # rows that have more than one similarity


class SimilarityAgreement(NamedTuple):
    """What two files agree on; None where there are too few rows to tell."""

    similarity_correlation: float | None
    neighbour_overlap: float | None
    neighbours: int
    rows_compared: int
    seed: int | None  # None: all rows were compared


class RowSample:
    """Some rows of a file, chosen by their numbers alone; those with NaN or infinity are known."""

    def __init__(self, blocks: Iterable[Array], most: int = SAMPLE) -> None:
        draw = np.random.default_rng(SEED)
        numbers: Rows = np.zeros(0, np.int64)
        keys, vectors, broken = np.zeros(0), None, []
        self.count, self.dtype = 0, ""
        for block in blocks:
            self.dtype = self.dtype or block.dtype.name
            rows = np.arange(self.count, self.count + len(block))
            broken.append(rows[~np.isfinite(block).all(axis=1)])
            self.count += len(block)
            keys = np.concatenate((keys, draw.random(len(block))))
            numbers = np.concatenate((numbers, rows))
            kept = block.astype(np.float32)
            vectors = kept if vectors is None else np.concatenate((vectors, kept))
            chosen = np.sort(np.argsort(keys, kind="stable")[:most])
            keys, numbers, vectors = keys[chosen], numbers[chosen], vectors[chosen]
        self.numbers = numbers
        self.vectors: Array = np.zeros((0, 0), np.float32) if vectors is None else vectors
        self.broken: Rows = np.concatenate(broken) if broken else numbers

    @property
    def width(self) -> int:
        """The number of dimensions."""
        return int(self.vectors.shape[1])


def agreement_of(a: RowSample, b: RowSample) -> tuple[SimilarityAgreement, int]:
    """Return what the samples of two files agree on, and how many rows are broken in either."""
    broken = np.union1d(a.broken, b.broken)
    whole = ~np.isin(a.numbers, broken)
    x, y = (_unit(one.vectors[whole]) for one in (a, b))
    rows = len(x)
    nearest = max(0, min(NEIGHBOURS, rows - 1))
    seed = SEED if a.count > len(a.numbers) else None
    if rows < FEWEST:
        return SimilarityAgreement(None, None, nearest, rows, seed), len(broken)
    shared, sums = 0, np.zeros(5)
    for start in range(0, rows, AT_ONCE):
        here = np.arange(start, min(start + AT_ONCE, rows))
        both = [one[here] @ one.T for one in (x, y)]
        for cosines in both:  # a row is no neighbour of its own
            cosines[np.arange(len(here)), here] = -np.inf
        best = [np.argpartition(-cosines, nearest - 1, axis=1)[:, :nearest] for cosines in both]
        shared += sum(
            len({*p} & {*q}) for p, q in zip(*(one.tolist() for one in best), strict=True)
        )
        p, q = (cosines[np.isfinite(cosines)].astype(np.float64) for cosines in both)
        sums += p.sum(), q.sum(), p @ p, q @ q, p @ q
    return (
        SimilarityAgreement(_pearson(sums, rows), shared / (rows * nearest), nearest, rows, seed),
        len(broken),
    )


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def _pearson(sums: NDArray[np.float64], rows: int) -> float | None:
    """Return the correlation from sums over all pairs of different rows; None for a constant."""
    x, y, xx, yy, xy = (sums / (rows * (rows - 1))).tolist()
    spread = (xx - x * x) * (yy - y * y)
    if xx - x * x < 1e-12 or yy - y * y < 1e-12:
        return None
    return float(max(-1.0, min(1.0, (xy - x * y) / spread**0.5)))
