"""Which vectors are alike, exactly, and in the memory of a block: the components of near pairs.

    components = Components(normalized, 0.95)     # [N, D], of length 1, in memory or mapped
    for done in components:                       # rows that were compared with all after them
        ...
    components.groups()                           # arrays of two rows or more, in order

Two rows are joined when their cosine is at least the threshold, and whatever is joined by way of
others is one component. All pairs are compared, most of them by a bound: with ``P`` the first
principal axes of a sample, x . y <= (xP . yP) + |rest of x| |rest of y|, a product of `M` + 1
numbers instead of `D`. What may reach the threshold by that is computed, in float64 where float32
cannot decide. Rows that are equal are compared once.

Letters: `N` vectors, `D` dimensions, `M` axes, `a` and `b` rows of two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bertcli.vectors.nearest import DIGITS, unit
from bertcli.vectors.reading import Array

TALL, ROWS = 8192, 2048  # of two blocks that are compared
AXES = 64
SAMPLE = 4096  # rows that the axes are those of
ROUNDING = 1e-4  # more than float32 takes from a bound or a product of vectors of length 1


class Components:
    """The components of rows whose cosine is at least a threshold. Iterate once."""

    def __init__(self, vectors: Array, threshold: float) -> None:
        self.vectors, self.threshold = vectors, threshold
        self.parents = np.arange(len(vectors))  # of each row: one before it, or itself

    def __iter__(self) -> Iterator[int]:
        """Yield how many rows were compared with all others."""
        distinct = self._join_equal()
        axes = _axes(self.vectors)
        for at in range(0, len(distinct), TALL):
            rows = distinct[at : at + TALL]
            bounds = _bounding(self.vectors[rows], axes)
            for start in range(at, len(distinct), ROWS):
                others = distinct[start : start + ROWS]
                products = bounds @ _bounding(self.vectors[others], axes).T
                near = products >= self.threshold - ROUNDING
                if start < at + TALL:
                    near &= rows[:, None] < others
                if near.any():
                    self._join_near(rows, others, near)
            yield at + len(rows)

    def groups(self) -> list[Array]:
        """Return the rows of each component of two or more, the one with the first row first."""
        roots = self._roots(np.arange(len(self.parents)))
        order = np.argsort(roots, kind="stable")
        starts = np.flatnonzero(np.diff(roots[order], prepend=-1))
        return [rows for rows in np.split(order, starts[1:]) if len(rows) > 1]

    def _join_equal(self) -> Array:
        """Join equal rows that are no zeros, and return the first row of each kind."""
        sums = np.concatenate([_hashes(block) for block in _blocks(self.vectors)])
        _, first, kind = np.unique(sums, return_index=True, return_inverse=True)
        firsts = first[kind.reshape(-1)]
        alone = firsts == np.arange(len(firsts))
        for at in range(0, len(firsts), ROWS):
            rows = np.arange(at, min(at + ROWS, len(firsts)))[~alone[at : at + ROWS]]
            same = (self.vectors[rows] == self.vectors[firsts[rows]]).all(axis=1)
            alone[rows[~same]] = True  # only their hashes were equal
            joined = rows[same & self.vectors[rows].any(axis=1)]
            self.parents[joined] = firsts[joined]
        return np.flatnonzero(alone)

    def _join_near(self, rows: Array, others: Array, near: Array) -> None:
        """Join those of two blocks that ``near`` [a, b] says may be alike."""
        a, b = np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))
        near, rows, others = near[np.ix_(a, b)], rows[a], others[b]
        products = self.vectors[rows] @ self.vectors[others].T
        alike = near & (products >= self.threshold + ROUNDING)
        doubtful = near & ~alike & (products >= self.threshold - ROUNDING)
        while self._drop_joined(alike, rows, others):  # at least half of the components are joined
            a, b = np.flatnonzero(alike.any(axis=1)), np.flatnonzero(alike.any(axis=0))
            self._unite(rows[a], others[alike[a].argmax(axis=1)])
            self._unite(rows[alike[:, b].argmax(axis=0)], others[b])
        for at in np.flatnonzero(doubtful.any(axis=1)):
            which = np.flatnonzero(doubtful[at] & (self._roots(others) != self._roots(rows[[at]])))
            pair = np.repeat(rows[at], len(which)), others[which]
            yes = cosines(self.vectors, *pair) >= self.threshold
            self._unite(pair[0][yes], pair[1][yes])

    def _drop_joined(self, alike: Array, rows: Array, others: Array) -> bool:
        """Leave in ``alike`` [a, b] the pairs of two components; say whether there is one."""
        alike &= self._roots(rows)[:, None] != self._roots(others)
        return bool(alike.any())

    def _unite(self, a: Array, b: Array) -> None:
        """Join the components of pairs of rows."""
        while len(a):
            a, b = self._roots(a), self._roots(b)
            apart = a != b
            a, b = a[apart], b[apart]
            np.minimum.at(self.parents, np.maximum(a, b), np.minimum(a, b))

    def _roots(self, rows: Array) -> Array:
        """Return the first row of the component of each row, so far."""
        found = self.parents[rows]
        while ((further := self.parents[found]) != found).any():
            found = further
        self.parents[rows] = found
        return found


def cosines(vectors: Array, rows: Array, others: Array) -> Array:
    """Return the cosines of pairs of rows in float64."""
    products = np.einsum("nd,nd->n", unit(vectors[rows]), unit(vectors[others]))
    found: Array = products.round(DIGITS)
    return found


def _blocks(vectors: Array) -> Iterator[Array]:
    for at in range(0, max(1, len(vectors)), ROWS):
        yield vectors[at : at + ROWS]


def _hashes(vectors: Array) -> Array:
    """Return a number for each row [n, D] of float32, the same for equal rows."""
    draw = np.random.default_rng(0)
    factors = draw.integers(1, 1 << 63, vectors.shape[1], np.uint64) | np.uint64(1)
    words = np.ascontiguousarray(vectors + np.float32(0)).view(np.uint32)  # -0 is 0
    sums: Array = (words * factors).sum(axis=1)
    return sums


def _axes(vectors: Array) -> Array | None:
    """Return the principal axes [D, M] of a sample; None where they would save nothing."""
    if vectors.shape[1] < 2 * AXES:
        return None
    sample = vectors[:: max(1, len(vectors) // SAMPLE)].astype(np.float64)
    _, axes = np.linalg.eigh(sample.T @ sample)  # the largest come last
    found: Array = axes[:, -AXES:].astype(np.float32)
    return found


def _bounding(vectors: Array, axes: Array | None) -> Array:
    """Return rows whose products are no less than those of the vectors: [n, M + 1], or as given."""
    if axes is None:
        return vectors
    inside = vectors @ axes
    rest = np.einsum("nd,nd->n", vectors, vectors) - np.einsum("nm,nm->n", inside, inside)
    return np.column_stack([inside, np.sqrt(np.maximum(rest, 0) + ROUNDING / 10)])
