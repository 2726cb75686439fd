"""Texts of a corpus that say nearly the same, by the cosine of their vectors.

    run = Duplicates(search, 0.95)      # whose vectors are stored
    for step in run:
        ...
    run.groups[0].keep, run.groups[0].rows

A text is kept unless it is a duplicate of a text kept before it: unless their cosine is at least
the threshold. So each text that is removed is close to the text that is kept instead of it. With
``chain``, groups are the connected components of all pairs of duplicates, whose members may be far
from each other. Either way all pairs that matter are compared, in float64 where float32 cannot
decide.

Letters: `n` rows, `D` dimensions, `d` dimensions of the screen, `a` and `b` rows of two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain as chained
from typing import Any, NamedTuple

import numpy as np

from bertcli.embedding.sentence_modules import unit
from bertcli.formats.vector_files import Array
from bertcli.io.progress import Advance, Show, show_nothing
from bertcli.records.batch import RecordBatch
from bertcli.records.input import ORIGIN
from bertcli.records.record import Record
from bertcli.retrieval.nearest import DIGITS
from bertcli.retrieval.search import CorpusTexts, Search, corpus_vectors


class DuplicateGroup(NamedTuple):
    """A text that is kept, the rows of its duplicates [n], and their cosines to it."""

    keep: int
    rows: Array
    scores: Array


@dataclass
class Duplicates:
    """A search for the duplicates of a corpus whose vectors are stored. Iterate it once.

    In memory are the texts of groups, as columns, and a number for each other text.
    """

    search: Search
    threshold: float = 0.95  # least cosine of duplicates
    keep: str = "first"  # text of a group, or the longest
    chain: bool = False  # join duplicates of duplicates
    records: int = field(default=0, init=False)  # texts of the corpus
    groups: list[DuplicateGroup] = field(default_factory=list, init=False)
    members: Array = field(init=False)  # the rows of all groups, in order; their records:
    texts: RecordBatch = field(init=False)

    def execute(self, show: Show = show_nothing) -> list[DuplicateGroup]:
        """Compare all texts, and return the groups.

        Raises InputError when the vectors were made from other texts than those of the corpus.
        """
        vectors = corpus_vectors(self.search, of_others=True)
        self.records = len(vectors)
        vectors = vectors.reshape(self.records, -1 if self.records else 1)
        corpus = CorpusTexts(self.search)
        lengths = self._lengths(corpus) if self.keep == "longest" else None
        comparison: Components | Selection
        if self.chain:
            comparison = Components(vectors, self.threshold)
        else:
            order = None if lengths is None else np.argsort(-lengths, kind="stable")
            comparison = Selection(vectors, self.threshold, order)
        for done in comparison:
            show(Advance(done, "texts", None))
        groups = comparison.groups()
        if self.chain and lengths is not None:
            groups = [longest_first(rows, lengths) for rows in groups]
        self.members = np.sort(np.concatenate([np.zeros(0, np.int64), *groups]))
        self.texts = RecordBatch.of(chained.from_iterable(self._texts_of_members(corpus)))
        self.groups = [scored(vectors, rows) for rows in groups]
        self.groups.sort(key=lambda group: group.keep)
        return self.groups

    def _lengths(self, corpus: CorpusTexts) -> Array:
        """Return the number of characters of each text, [n]."""
        blocks = corpus.blocks(self.records)
        lengths = chained.from_iterable(RecordBatch.of(block).weights for block in blocks)
        return np.fromiter(lengths, np.int64, self.records)

    def _texts_of_members(self, corpus: CorpusTexts) -> Iterator[RecordBatch]:
        """Yield the texts of the groups. Raises InputError when the corpus is another one."""
        first = 0
        for block in corpus.blocks(self.records):
            start, stop = self.members.searchsorted([first, first + len(block)])
            yield RecordBatch.of(block).take((self.members[start:stop] - first).tolist())
            first += len(block)

    @property
    def dropped(self) -> int:
        """The number of texts that are removed."""
        return len(self.members) - len(self.groups)

    @property
    def is_kept(self) -> Array:
        """Whether each text is kept, [n]."""
        is_kept = np.ones(self.records, bool)
        for group in self.groups:
            is_kept[group.rows] = False
        return is_kept

    def record_of(self, row: int) -> Record:
        """Return a text of a group; its id is its row where it has none."""
        record = self.texts[int(self.members.searchsorted(row))]
        return record._replace(id=row) if record.id is None else record

    def fields(self, group: DuplicateGroup) -> dict[str, Any]:
        """Return what is written of a group, with ids, files and lines where there are any."""
        rows = group.rows.tolist()
        columns = {"keep": group.keep, "rows": rows, "scores": group.scores.tolist()}
        names = ["id"] if any(key is not None for key in self.texts.ids or ()) else []
        for name in [*names, *(ORIGIN if self.search.texts.source.placed else ())]:
            keep, *others = (getattr(self.record_of(row), name) for row in (group.keep, *rows))
            columns |= {f"keep_{name}": keep, f"{name}s": others}
        return columns

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield what is written to a table: a row for each near-duplicate."""
        for group in self.groups:
            keep = {"keep": group.keep, "keep_id": self.record_of(group.keep).id}
            for row, score in zip(map(int, group.rows), map(float, group.scores), strict=True):
                record = self.record_of(row)
                own = {"row": row, "id": record.id, "score": score, "text": record.text}
                yield {**keep, **own, **(record.extra or {})}


def longest_first(rows: Array, lengths: Array) -> Array:
    """Return the rows of a group, the one with the longest text first; of equal ones the first."""
    longest = int(rows[lengths[rows].argmax()])
    return np.concatenate([[longest], rows[rows != longest]])


def scored(vectors: Array, rows: Array) -> DuplicateGroup:
    """Return the group of some rows, of which the first is kept."""
    keep, others = int(rows[0]), rows[1:]
    scores = cosines(vectors, np.repeat(keep, len(others)), others)
    return DuplicateGroup(keep, others, scores)


# --- pairs of rows ---

TALL = 4096  # rows of a block
ROWS = 1024  # rows that are compared with a block together
ROUNDING = 1e-4  # more than float32 takes from a product of vectors of length 1
SAMPLED = 512  # vectors, whose principal axes screen all
SCREENED = 4  # dimensions, of which one chooses the pairs that are compared
PAIRS = 4096  # whose cosines are computed in float64 together


class ScreenedRows(NamedTuple):
    """Some rows, their vectors [n, D], and what screens these [n, d + 1]."""

    rows: Array
    vectors: Array
    screens: Array


class Pairs(NamedTuple):
    """Pairs of two lists of rows that may be alike."""

    rows: Array  # [a]
    others: Array  # [b]
    near: Array  # [a, b]: not below the threshold in float32
    products: Array  # [a, b]


class Comparison:
    """The comparison of vectors of length 1, [n, D], with a threshold.

    ``kept_by`` is the row that a row is removed for, so far; its own while it is kept. Of equal
    vectors those later in the ``order`` are removed at once.
    """

    def __init__(self, vectors: Array, threshold: float, order: Array | None = None) -> None:
        self.vectors = vectors
        self.threshold = threshold
        order = np.arange(len(vectors)) if order is None else order
        self.kept_by = np.zeros(len(vectors), np.int64)
        seen: dict[bytes, int] = {}
        for row in order.tolist():
            self.kept_by[row] = seen.setdefault(blake2b(vectors[row]).digest(), row)
        nothing = np.flatnonzero(~vectors.any(axis=1))  # is like no other
        self.kept_by[nothing] = nothing
        self.distinct = order[self.kept_by[order] == order]
        sample = vectors[self.distinct[:: len(self.distinct) // SAMPLED + 1]]
        right = np.linalg.svd(sample, full_matrices=False).Vh
        self.axes = right[: sample.shape[1] // SCREENED].T

    def groups(self) -> list[Array]:
        """Return the rows of each group of two or more: the one that is kept, then the others."""
        order = np.argsort(self.kept_by, kind="stable")
        starts = np.flatnonzero(np.diff(self.kept_by[order], prepend=-1))
        groups = []
        for rows in np.split(order, starts[1:]):
            if len(rows) > 1:
                keep = self.kept_by[rows[0]]
                groups.append(np.concatenate([[keep], rows[rows != keep]]))
        return groups

    def block(self, rows: Array) -> ScreenedRows:
        """Return some rows with their vectors."""
        vectors = self.vectors[rows]
        return ScreenedRows(rows, vectors, screen(vectors, self.axes))

    def pairs(self, left: ScreenedRows, right: ScreenedRows, allowed: Array | None = None) -> Pairs:
        """Return the pairs of two blocks that may be alike, of those ``allowed`` [a, b]."""
        near = left.screens @ right.screens.T >= self.threshold - ROUNDING
        if allowed is not None:
            near &= allowed
        a, b = nonzero_lines(near)
        products = left.vectors[a] @ right.vectors[b].T
        near = submatrix(near, a, b) & (products >= self.threshold - ROUNDING)
        i, j = nonzero_lines(near)
        rows, others = left.rows[a[i]], right.rows[b[j]]
        return Pairs(rows, others, submatrix(near, i, j), submatrix(products, i, j))

    def are_alike(self, rows: Array, others: Array) -> Array:
        """Return whether pairs of rows are alike, decided in float64: [p]."""
        return cosines(self.vectors, rows, others) >= self.threshold


class Selection(Comparison):
    """The rows that are kept one after another, in an order. Iterate it once."""

    def __iter__(self) -> Iterator[int]:
        """Yield how many rows are decided."""
        left = self.distinct
        while len(left):
            kept = self.block(self._kept_among(left[:TALL]))
            left = left[TALL:]
            for start in range(0, len(left), ROWS):
                self._remove(kept, self.block(left[start : start + ROWS]))
            left = self._still_kept(left)
            yield len(self.vectors) - len(left)
        self.kept_by = self.kept_by[self.kept_by]  # equal rows

    def _still_kept(self, rows: Array) -> Array:
        return rows[self.kept_by[rows] == rows]

    def _kept_among(self, rows: Array) -> Array:
        """Return the rows of a block that are kept."""
        kept = rows[:0]
        for start in range(0, len(rows), ROWS):
            strip = rows[start : start + ROWS]
            if len(kept):
                self._remove(self.block(kept), self.block(strip))
                strip = self._still_kept(strip)
            self._select(self.block(strip))
            kept = np.concatenate([kept, self._still_kept(strip)])
        return kept

    def _remove(self, kept: ScreenedRows, others: ScreenedRows) -> None:
        """Remove the others that are alike to a row that is kept, for the first such row."""
        pairs = self.pairs(kept, others)
        count = len(pairs.rows)
        if not count:
            return
        certain = pairs.products >= self.threshold + ROUNDING
        first = np.where(certain.any(axis=0), certain.argmax(axis=0), count)  # [b]
        doubtful = pairs.near & (np.arange(count)[:, None] < first)
        a, b = doubtful.nonzero()
        for start in range(0, len(a), PAIRS):
            rows = a[start : start + PAIRS]
            columns = b[start : start + PAIRS]
            alike = self.are_alike(pairs.rows[rows], pairs.others[columns])
            np.minimum.at(first, columns[alike], rows[alike])
        removed = first < count
        self.kept_by[pairs.others[removed]] = pairs.rows[first[removed]]

    def _select(self, block: ScreenedRows) -> None:
        """Remove the rows of a block that are alike to an earlier one that is kept."""
        count = len(block.rows)
        pairs = self.pairs(block, block, np.arange(count)[:, None] < np.arange(count))
        for number in np.flatnonzero(pairs.near.any(axis=1)):
            row = pairs.rows[number]
            if self.kept_by[row] != row:
                continue
            columns = np.flatnonzero(pairs.near[number])
            columns = columns[self.kept_by[pairs.others[columns]] == pairs.others[columns]]
            alike = pairs.products[number, columns] >= self.threshold + ROUNDING
            doubtful = columns[~alike]
            alike[~alike] = self.are_alike(np.repeat(row, len(doubtful)), pairs.others[doubtful])
            self.kept_by[pairs.others[columns[alike]]] = row


class Components(Comparison):
    """The connected components of rows that are alike, each kept by its first. Iterate it once."""

    def __iter__(self) -> Iterator[int]:
        """Yield how many rows were compared with all others."""
        for top in range(0, len(self.distinct), TALL):
            left = self.block(self.distinct[top : top + TALL])
            for start in range(top, len(self.distinct), ROWS):
                right = self.block(self.distinct[start : start + ROWS])
                overlap = start < top + TALL
                later = left.rows[:, None] < right.rows if overlap else None
                self._join(self.pairs(left, right, later))
            yield int(left.rows[-1]) + 1
        self.kept_by = self._roots(np.arange(len(self.kept_by)))

    def _join(self, pairs: Pairs) -> None:
        """Join the components of pairs that are alike."""
        rows, others, near, products = pairs
        doubtful = near & (products < self.threshold + ROUNDING)
        for line in np.flatnonzero(doubtful.any(axis=1)):
            columns = np.flatnonzero(doubtful[line])
            near[line, columns] = self.are_alike(
                np.repeat(rows[line], len(columns)), others[columns]
            )
        while True:  # at least half of the components are joined
            near &= self._roots(rows)[:, None] != self._roots(others)
            if not near.any():
                break
            a, b = nonzero_lines(near)
            self._unite(rows[a], others[near[a].argmax(axis=1)])
            self._unite(rows[near[:, b].argmax(axis=0)], others[b])

    def _unite(self, a: Array, b: Array) -> None:
        """Join the components of pairs of rows."""
        while len(a):
            a = self._roots(a)
            b = self._roots(b)
            apart = a != b
            a, b = a[apart], b[apart]
            np.minimum.at(self.kept_by, np.maximum(a, b), np.minimum(a, b))

    def _roots(self, rows: Array) -> Array:
        """Return the first row of the component of each row, so far."""
        roots = self.kept_by[rows]
        while ((further := self.kept_by[roots]) != roots).any():
            roots = further
        self.kept_by[rows] = roots
        return roots


def nonzero_lines(matrix: Array) -> tuple[Array, Array]:
    """Return the rows and the columns of a matrix that hold anything."""
    return np.flatnonzero(matrix.any(axis=1)), np.flatnonzero(matrix.any(axis=0))


def submatrix(matrix: Array, rows: Array, columns: Array) -> Array:
    """Return some rows and columns of a matrix, five times as fast as by indices."""
    return matrix.take(rows, 0).take(columns, 1)


def screen(vectors: Array, axes: Array) -> Array:
    """Return [n, d + 1] whose products are at least those of vectors [n, D] of length 1.

    They are the coordinates along ``axes`` [D, d], and the length of the rest: the product of two
    such rests is at most that of their lengths (Cauchy and Schwarz).
    """
    coordinates = vectors @ axes
    rest = 1 - np.vecdot(coordinates, coordinates)
    return np.column_stack([coordinates, np.sqrt(rest.clip(0) + ROUNDING)])


def cosines(vectors: Array, rows: Array, others: Array) -> Array:
    """Return the cosines of pairs of rows in float64, [p]."""
    scores = [np.zeros(0)]
    for start in range(0, len(rows), PAIRS):
        left = unit(vectors[rows[start : start + PAIRS]])
        right = unit(vectors[others[start : start + PAIRS]])
        scores.append(np.einsum("nd,nd->n", left, right))
    return np.concatenate(scores).round(DIGITS)
