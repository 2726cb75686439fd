"""Find near-duplicate texts of a corpus, by the cosine of their vectors.

    run = Duplicates(search, 0.95)      # the vectors of the search are stored
    run.execute()
    run.groups[0].keep, run.groups[0].rows
    Overlap(search, 0.95, other=other)  # the texts that another corpus has

Two texts are duplicates if their cosine is at least the threshold. A text is kept unless it is a
duplicate of a text that was kept before it, so each removed text is close to a kept one. With
``chain``, groups are the connected components of all pairs of duplicates, whose members may be far
from each other. All relevant pairs are compared, in float64 where float32 is not exact enough.

Letters: `n` rows, `D` dimensions, `d` dimensions of the screen, `a` and `b` rows of two blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain as chained
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertcli.embedding.sentence_modules import unit_vectors
from bertcli.errors import counted
from bertcli.formats.vector_files import Array, memory_mapped
from bertcli.io.progress import Advance, Show, show_nothing
from bertcli.records.batch import RecordBatch
from bertcli.records.input import ORIGIN
from bertcli.records.record import Record
from bertcli.retrieval.corpus import CorpusTexts
from bertcli.retrieval.nearest import DIGITS
from bertcli.retrieval.search import Search, corpus_vectors, unit_blocks


class DuplicateGroup(NamedTuple):
    """The row of a kept text, the rows of its duplicates [n], and their cosines to it."""

    keep: int
    rows: Array
    scores: Array


class Members(NamedTuple):
    """The texts that are in groups, by their rows [n], ascending."""

    rows: Array
    texts: RecordBatch

    @classmethod
    def of(cls, corpus: CorpusTexts, rows: Array, count: int) -> Members:
        """Return these rows of a corpus of ``count`` texts.

        Raises InputError if its vectors were computed from other texts.
        """
        rows = np.unique(rows)

        def taken() -> Iterator[RecordBatch]:
            first = 0
            for block in corpus.blocks(count):
                start, stop = rows.searchsorted([first, first + len(block)])
                yield RecordBatch.of(block).take((rows[start:stop] - first).tolist())
                first += len(block)

        return cls(rows, RecordBatch.of(chained.from_iterable(taken())))

    def record(self, row: int) -> Record:
        """Return the record of a row; without an id, it gets the number of the row."""
        record = self.texts[int(self.rows.searchsorted(row))]
        return record._replace(id=row) if record.id is None else record

    def location_fields(self, *, with_location: bool | None) -> tuple[str, ...]:
        """Return the fields that say where a text comes from."""
        has_ids = any(key is not None for key in self.texts.ids or ())
        return (*(["id"] if has_ids else ()), *(ORIGIN if with_location else ()))


@dataclass
class DuplicateRun(ABC):
    """Finds duplicates in a corpus whose vectors are stored. Execute once.

    Only texts that are in groups are kept in memory. ``kept_key`` is the output field for the row
    that is kept of a group.
    """

    search: Search
    threshold: float = 0.95  # minimum cosine of duplicates
    records: int = field(default=0, init=False)  # texts of the corpus
    groups: list[DuplicateGroup] = field(default_factory=list, init=False)
    members: Members = field(init=False)
    kept_members: Members = field(init=False)  # with the texts that are kept
    kept_key: ClassVar[str]

    @abstractmethod
    def execute(self, show: Show = show_nothing) -> list[DuplicateGroup]:
        """Compare all texts, and return the groups."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The number of duplicates as a sentence."""

    @property
    def dropped(self) -> int:
        """The number of duplicates."""
        return sum(len(group.rows) for group in self.groups)

    @property
    def is_kept(self) -> Array:
        """True for each text of the corpus that is kept, bool [n]."""
        is_kept = np.ones(self.records, bool)
        for group in self.groups:
            is_kept[group.rows] = False
        return is_kept

    @property
    def kept_location_fields(self) -> tuple[str, ...]:
        """The fields that say where a kept text comes from."""
        return self.location_fields

    @property
    def location_fields(self) -> tuple[str, ...]:
        """The fields that say where a text comes from."""
        with_location = self.search.texts.source.fields.with_location
        return self.members.location_fields(with_location=with_location)

    def fields(self, group: DuplicateGroup) -> dict[str, Any]:
        """Return the fields of a group to write, with ids, files and lines if there are any."""
        rows = group.rows.tolist()
        columns = {self.kept_key: group.keep, "rows": rows, "scores": group.scores.tolist()}
        kept = self.kept_members.record(group.keep)
        for name in ("id", *ORIGIN):
            if name in self.kept_location_fields:
                columns[f"{self.kept_key}_{name}"] = getattr(kept, name)
            if name in self.location_fields:
                columns[f"{name}s"] = [getattr(self.members.record(row), name) for row in rows]
        return columns

    def kept_columns(self, group: DuplicateGroup) -> dict[str, Any]:
        """Return the columns of a table for the kept text of a group."""
        keep_id = self.kept_members.record(group.keep).id
        return {self.kept_key: group.keep, f"{self.kept_key}_id": keep_id}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table: one for each duplicate."""
        for group in self.groups:
            kept = self.kept_columns(group)
            for row, score in zip(group.rows.tolist(), group.scores.tolist(), strict=True):
                record = self.members.record(row)
                columns = {"row": row, "id": record.id, "score": score, "text": record.text}
                yield kept | columns | (record.extra or {})

    @property
    def header(self) -> dict[str, Any]:
        """The columns of a table without rows, with values of their types."""
        return {
            self.kept_key: 0,
            f"{self.kept_key}_id": 0,
            "row": 0,
            "id": 0,
            "score": 0.0,
            "text": "",
        }


@dataclass
class Duplicates(DuplicateRun):
    """Finds the duplicates among the texts of a corpus."""

    keep: str = "first"  # the text of a group that is kept: "first" or "longest"
    chain: bool = False  # join duplicates of duplicates
    kept_key = "keep"

    def execute(self, show: Show = show_nothing) -> list[DuplicateGroup]:
        """Compare all texts, and return the groups.

        Raises InputError if the vectors were computed from other texts than those of the corpus.
        """
        vectors = corpus_vectors(self.search, any_model=True)
        self.records = len(vectors)
        vectors = vectors.reshape(self.records, -1 if self.records else 1)
        corpus = self.search.corpus_texts()
        lengths = self._lengths(corpus) if self.keep == "longest" else None
        comparison: Components | Selection
        if self.chain:
            comparison = Components(vectors, self.threshold)
        else:
            order = None if lengths is None else np.argsort(-lengths, kind="stable")
            comparison = Selection(vectors, self.threshold, order)
        for compared in comparison:
            show(Advance(compared, "texts", None))
        groups = comparison.groups()
        if self.chain and lengths is not None:
            groups = [longest_first(rows, lengths) for rows in groups]
        rows = np.concatenate([np.zeros(0, np.int64), *groups])
        self.members = self.kept_members = Members.of(corpus, rows, self.records)
        self.groups = [scored_group(vectors, rows) for rows in groups]
        self.groups.sort(key=lambda group: group.keep)
        return self.groups

    def _lengths(self, corpus: CorpusTexts) -> Array:
        """Return the number of characters of each text, [n]."""
        blocks = corpus.blocks(self.records)
        lengths = chained.from_iterable(RecordBatch.of(block).lengths for block in blocks)
        return np.fromiter(lengths, np.int64, self.records)

    @property
    def summary(self) -> str:
        """The numbers of groups, duplicates and texts."""
        duplicates = counted(self.dropped, "duplicate")
        groups = counted(len(self.groups), "group")
        return f"{groups}: {duplicates} among {counted(self.records, 'text')}"


@dataclass
class Overlap(DuplicateRun):
    """Finds the texts of a corpus that another corpus has, such as test texts in training data.

    Each is in the group of the most similar text of the other corpus, the first of several.
    """

    other: Search = field(kw_only=True)
    kept_key = "against"

    def execute(self, show: Show = show_nothing) -> list[DuplicateGroup]:
        """Compare the texts of both corpora, and return the groups.

        Raises InputError if vectors were computed by another model, or from other texts.
        """
        other_records = 0

        def vectors_of_both() -> Iterator[Array]:
            nonlocal other_records
            for block in unit_blocks(self.other):
                other_records += len(block)
                yield block
            yield from unit_blocks(self.search)

        vectors = memory_mapped(vectors_of_both())
        vectors = vectors.reshape(len(vectors), -1 if len(vectors) else 1)
        self.records = len(vectors) - other_records
        comparison = Matches(vectors, self.threshold, other_records)
        for compared in comparison:
            show(Advance(compared, "texts", None))
        for rows in comparison.groups():
            keep, found, scores = scored_group(vectors, rows)
            self.groups.append(DuplicateGroup(keep, found - other_records, scores))
        self.groups.sort(key=lambda group: group.keep)
        empty = np.zeros(0, np.int64)
        rows = np.concatenate([empty, *(group.rows for group in self.groups)])
        kept = np.array([group.keep for group in self.groups], np.int64)
        self.members = Members.of(self.search.corpus_texts(), rows, self.records)
        self.kept_members = Members.of(self.other.corpus_texts(), kept, other_records)
        return self.groups

    @property
    def kept_location_fields(self) -> tuple[str, ...]:
        """The fields that say where a text of the other corpus comes from."""
        with_location = self.other.texts.source.fields.with_location
        return self.kept_members.location_fields(with_location=with_location)

    def kept_columns(self, group: DuplicateGroup) -> dict[str, Any]:
        """Return the columns of a table for the text of the other corpus."""
        record = self.kept_members.record(group.keep)
        columns = super().kept_columns(group)
        for name in ORIGIN:
            if name in self.kept_location_fields:
                columns[f"{self.kept_key}_{name}"] = getattr(record, name)
        return {**columns, f"{self.kept_key}_text": record.text}

    @property
    def exact(self) -> int:
        """The number of texts that the other corpus has character by character."""
        return sum(
            self.members.record(row).text == self.kept_members.record(group.keep).text
            for group in self.groups
            for row in group.rows.tolist()
        )

    @property
    def summary(self) -> str:
        """The numbers of texts that the other corpus has, and of those that it has exactly."""
        paths = self.other.texts.source.paths
        corpus = paths[0] if len(paths) == 1 else counted(len(paths), "file")
        summary = f"{self.dropped:,} of {counted(self.records, 'text')} are in {corpus}"
        return f"{summary}, {self.exact:,} of them exactly" if self.dropped else summary


def longest_first(rows: Array, lengths: Array) -> Array:
    """Return the rows of a group with the longest text first; of several, the first of them."""
    longest = int(rows[lengths[rows].argmax()])
    return np.concatenate([[longest], rows[rows != longest]])


def scored_group(vectors: Array, rows: Array) -> DuplicateGroup:
    """Return the group of these rows; the first row is kept."""
    keep = int(rows[0])
    duplicates = rows[1:]
    scores = cosines(vectors, np.repeat(keep, len(duplicates)), duplicates)
    return DuplicateGroup(keep, duplicates, scores)


# --- pairs of rows ---

ROWS_PER_BLOCK = 4096
ROWS_PER_STRIP = 1024  # rows that are compared with a block at once
ROUNDING = 1e-4  # above the float32 error of a product of vectors of length 1
SAMPLED_ROWS = 512  # the principal axes of this many vectors screen all
SCREEN_RATIO = 4  # dimensions of vectors for one dimension of the screen
PAIRS_PER_STEP = 4096  # pairs whose cosines are computed in float64 at once


class ScreenedRows(NamedTuple):
    """Rows [n], their vectors [n, D], and their screens [n, d + 1] (see `screen`)."""

    rows: Array
    vectors: Array
    screens: Array


class Pairs(NamedTuple):
    """Candidate pairs between two lists of rows."""

    rows: Array  # [a]
    other_rows: Array  # [b]
    is_candidate: Array  # bool [a, b]: not below the threshold in float32
    products: Array  # float32 [a, b]


class Comparison:
    """Compares vectors of length 1, [n, D], with a threshold.

    ``kept_by`` [n] has the row that is kept in place of each row; its own number while it is kept.
    Of equal vectors, only the first in the ``order`` is compared: ``distinct``.
    """

    def __init__(self, vectors: Array, threshold: float, order: Array | None = None) -> None:
        self.vectors = vectors
        self.threshold = threshold
        order = np.arange(len(vectors)) if order is None else order
        self.kept_by = np.zeros(len(vectors), np.int64)
        seen: dict[bytes, int] = {}
        for row in order.tolist():
            self.kept_by[row] = seen.setdefault(blake2b(vectors[row]).digest(), row)
        zeros = np.flatnonzero(~vectors.any(axis=1))  # no duplicates of each other
        self.kept_by[zeros] = zeros
        self.distinct = order[self.kept_by[order] == order]
        sample = vectors[self.distinct[:: len(self.distinct) // SAMPLED_ROWS + 1]]
        principal_axes = np.linalg.svd(sample, full_matrices=False).Vh
        self.axes = principal_axes[: sample.shape[1] // SCREEN_RATIO].T

    def groups(self) -> list[Array]:
        """Return the rows of each group of two or more rows; the first is the kept one."""
        order = np.argsort(self.kept_by, kind="stable")
        starts = np.flatnonzero(np.diff(self.kept_by[order], prepend=-1))
        groups = []
        for rows in np.split(order, starts[1:]):
            if len(rows) > 1:
                keep = self.kept_by[rows[0]]
                groups.append(np.concatenate([[keep], rows[rows != keep]]))
        return groups

    def block(self, rows: Array) -> ScreenedRows:
        """Return these rows with their vectors and screens."""
        vectors = self.vectors[rows]
        return ScreenedRows(rows, vectors, screen(vectors, self.axes))

    def pairs(self, left: ScreenedRows, right: ScreenedRows, allowed: Array | None = None) -> Pairs:
        """Return the candidate pairs of two blocks, among those ``allowed``, bool [a, b]."""
        is_candidate = left.screens @ right.screens.T >= self.threshold - ROUNDING
        if allowed is not None:
            is_candidate &= allowed
        a, b = nonzero_lines(is_candidate)
        products = left.vectors[a] @ right.vectors[b].T
        is_candidate = submatrix(is_candidate, a, b) & (products >= self.threshold - ROUNDING)
        i, j = nonzero_lines(is_candidate)
        return Pairs(
            rows=left.rows[a[i]],
            other_rows=right.rows[b[j]],
            is_candidate=submatrix(is_candidate, i, j),
            products=submatrix(products, i, j),
        )

    def are_duplicates(self, rows: Array, other_rows: Array) -> Array:
        """Return True for each pair of rows that are duplicates, computed in float64: [p]."""
        return cosines(self.vectors, rows, other_rows) >= self.threshold


class Selection(Comparison):
    """Keeps or removes one row after the other, in the order. Iterate it once."""

    def __iter__(self) -> Iterator[int]:
        """Yield the number of rows that are kept or removed."""
        remaining = self.distinct
        while len(remaining):
            kept = self.block(self._kept_among(remaining[:ROWS_PER_BLOCK]))
            remaining = remaining[ROWS_PER_BLOCK:]
            for start in range(0, len(remaining), ROWS_PER_STRIP):
                self._remove(kept, self.block(remaining[start : start + ROWS_PER_STRIP]))
            remaining = self._still_kept(remaining)
            yield len(self.vectors) - len(remaining)
        self.kept_by = self.kept_by[self.kept_by]  # for rows with equal vectors

    def _still_kept(self, rows: Array) -> Array:
        """Return those of the rows that have not been removed."""
        return rows[self.kept_by[rows] == rows]

    def _kept_among(self, rows: Array) -> Array:
        """Return the rows that are kept of a block that is compared with itself."""
        kept = rows[:0]
        for start in range(0, len(rows), ROWS_PER_STRIP):
            strip = rows[start : start + ROWS_PER_STRIP]
            if len(kept):
                self._remove(self.block(kept), self.block(strip))
                strip = self._still_kept(strip)
            self._select(self.block(strip))
            kept = np.concatenate([kept, self._still_kept(strip)])
        return kept

    def _remove(self, kept: ScreenedRows, later: ScreenedRows) -> None:
        """Remove the later rows that are duplicates of a kept row, in favour of the first one."""
        pairs = self.pairs(kept, later)
        count = len(pairs.rows)
        if not count:
            return
        certain = pairs.products >= self.threshold + ROUNDING
        # Index of the first kept row that is a duplicate of each later row, or ``count``, [b].
        first_duplicate = np.where(certain.any(axis=0), certain.argmax(axis=0), count)
        doubtful = pairs.is_candidate & (np.arange(count)[:, None] < first_duplicate)
        a, b = doubtful.nonzero()
        for start in range(0, len(a), PAIRS_PER_STEP):
            rows = a[start : start + PAIRS_PER_STEP]
            columns = b[start : start + PAIRS_PER_STEP]
            confirmed = self.are_duplicates(pairs.rows[rows], pairs.other_rows[columns])
            np.minimum.at(first_duplicate, columns[confirmed], rows[confirmed])
        removed = first_duplicate < count
        self.kept_by[pairs.other_rows[removed]] = pairs.rows[first_duplicate[removed]]

    def _select(self, block: ScreenedRows) -> None:
        """Remove the rows of a block that are duplicates of an earlier kept row of the block."""
        count = len(block.rows)
        pairs = self.pairs(block, block, np.arange(count)[:, None] < np.arange(count))
        for number in np.flatnonzero(pairs.is_candidate.any(axis=1)):
            row = pairs.rows[number]
            if self.kept_by[row] != row:
                continue
            columns = np.flatnonzero(pairs.is_candidate[number])
            columns = columns[self.kept_by[pairs.other_rows[columns]] == pairs.other_rows[columns]]
            removed = pairs.products[number, columns] >= self.threshold + ROUNDING
            doubtful = pairs.other_rows[columns[~removed]]
            removed[~removed] = self.are_duplicates(np.repeat(row, len(doubtful)), doubtful)
            self.kept_by[pairs.other_rows[columns[removed]]] = row


class Matches(Comparison):
    """Finds, for each row from ``first`` on, the most similar row before it. Iterate once.

    An equal vector is more similar than any other; of equal scores, the earlier row is taken.
    """

    def __init__(self, vectors: Array, threshold: float, first: int) -> None:
        super().__init__(vectors, threshold)
        self.first = first
        self.best_scores = np.full(len(vectors), -np.inf)

    def __iter__(self) -> Iterator[int]:
        """Yield the number of rows from ``first`` on that were compared."""
        known = self.distinct[self.distinct < self.first]
        new = self.distinct[self.distinct >= self.first]
        for start in range(0, len(new), ROWS_PER_BLOCK):
            block = self.block(new[start : start + ROWS_PER_BLOCK])
            for known_start in range(0, len(known), ROWS_PER_STRIP):
                self._match(self.block(known[known_start : known_start + ROWS_PER_STRIP]), block)
            yield int(block.rows[-1]) + 1 - self.first
        self.kept_by = self.kept_by[self.kept_by]  # for rows with equal vectors

    def _match(self, known: ScreenedRows, new: ScreenedRows) -> None:
        """Match new rows to their most similar known rows, unless an earlier match is as good."""
        pairs = self.pairs(known, new)
        if not len(pairs.rows):
            return
        best = self.best_scores[pairs.other_rows]
        products = np.where(pairs.is_candidate, pairs.products, -np.inf)
        may_be_best = products >= np.maximum(products.max(axis=0) - 2 * ROUNDING, best - ROUNDING)
        a, b = may_be_best.nonzero()
        scores = cosines(self.vectors, pairs.rows[a], pairs.other_rows[b])
        order = np.lexsort((a, -scores, b))
        columns, firsts = np.unique(b[order], return_index=True)
        chosen = order[firsts]  # the best pair of each column
        is_better = (scores[chosen] >= self.threshold) & (scores[chosen] > best[columns])
        chosen = chosen[is_better]
        rows = pairs.other_rows[b[chosen]]
        self.best_scores[rows] = scores[chosen]
        self.kept_by[rows] = pairs.rows[a[chosen]]

    def groups(self) -> list[Array]:
        """Return the rows of each group: a row before ``first``, and those that match it."""
        kept_by = self.kept_by[self.first :]
        rows = np.flatnonzero(kept_by < self.first)
        order = rows[np.argsort(kept_by[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(kept_by[order])) + 1
        groups = np.split(order, starts) if len(order) else []
        return [np.concatenate([[kept_by[group[0]]], self.first + group]) for group in groups]


class Components(Comparison):
    """Groups the connected components of pairs of duplicates by their first rows. Iterate once."""

    def __iter__(self) -> Iterator[int]:
        """Yield the number of rows that were compared with all others."""
        for block_start in range(0, len(self.distinct), ROWS_PER_BLOCK):
            block_stop = block_start + ROWS_PER_BLOCK
            left = self.block(self.distinct[block_start:block_stop])
            for start in range(block_start, len(self.distinct), ROWS_PER_STRIP):
                right = self.block(self.distinct[start : start + ROWS_PER_STRIP])
                overlaps = start < block_stop
                is_later = left.rows[:, None] < right.rows if overlaps else None
                self._join(self.pairs(left, right, is_later))
            yield int(left.rows[-1]) + 1
        self.kept_by = self._roots(np.arange(len(self.kept_by)))

    def _join(self, pairs: Pairs) -> None:
        """Join the components of pairs of duplicates."""
        rows, other_rows, is_duplicate, products = pairs
        doubtful = is_duplicate & (products < self.threshold + ROUNDING)
        for line in np.flatnonzero(doubtful.any(axis=1)):
            columns = np.flatnonzero(doubtful[line])
            is_duplicate[line, columns] = self.are_duplicates(
                np.repeat(rows[line], len(columns)), other_rows[columns]
            )
        while True:  # each turn joins at least half of the remaining components
            is_duplicate &= self._roots(rows)[:, None] != self._roots(other_rows)
            if not is_duplicate.any():
                break
            a, b = nonzero_lines(is_duplicate)
            self._unite(rows[a], other_rows[is_duplicate[a].argmax(axis=1)])
            self._unite(rows[is_duplicate[:, b].argmax(axis=0)], other_rows[b])

    def _unite(self, a: Array, b: Array) -> None:
        """Join the components of pairs of rows."""
        while len(a):
            a = self._roots(a)
            b = self._roots(b)
            differ = a != b
            a = a[differ]
            b = b[differ]
            np.minimum.at(self.kept_by, np.maximum(a, b), np.minimum(a, b))

    def _roots(self, rows: Array) -> Array:
        """Return the first row of the current component of each row."""
        roots = self.kept_by[rows]
        parents = self.kept_by[roots]
        while (parents != roots).any():
            roots = parents
            parents = self.kept_by[roots]
        self.kept_by[rows] = roots
        return roots


def nonzero_lines(matrix: Array) -> tuple[Array, Array]:
    """Return the indices of the rows and of the columns of a matrix that are not all zero."""
    return np.flatnonzero(matrix.any(axis=1)), np.flatnonzero(matrix.any(axis=0))


def submatrix(matrix: Array, rows: Array, columns: Array) -> Array:
    """Return these rows and columns of a matrix, five times as fast as `np.ix_`."""
    return matrix.take(rows, 0).take(columns, 1)


def screen(vectors: Array, axes: Array) -> Array:
    """Return screens [n, d + 1], whose products bound those of vectors [n, D] from above.

    A screen has the coordinates of a vector along ``axes`` [D, d], and the length of its residual:
    the product of two residuals is at most that of their lengths (Cauchy-Schwarz).
    """
    coordinates = vectors @ axes
    squared_residuals = 1 - np.vecdot(coordinates, coordinates)
    return np.column_stack([coordinates, np.sqrt(squared_residuals.clip(0) + ROUNDING)])


def cosines(vectors: Array, rows: Array, other_rows: Array) -> Array:
    """Return the cosines of pairs of rows in float64, [p]."""
    scores = [np.zeros(0)]
    for start in range(0, len(rows), PAIRS_PER_STEP):
        left = unit_vectors(vectors[rows[start : start + PAIRS_PER_STEP]])
        right = unit_vectors(vectors[other_rows[start : start + PAIRS_PER_STEP]])
        scores.append(np.einsum("nd,nd->n", left, right))
    return np.concatenate(scores).round(DIGITS)
