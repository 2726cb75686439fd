"""Texts of a corpus that say nearly the same, by the cosine of their vectors.

    run = Duplicates(search, 0.95)      # whose vectors are stored
    for step in run:
        ...
    run.groups[0].keep, run.groups[0].rows

Two rows are joined when their cosine is at least the threshold, and whatever is joined by way of
others is one component. All pairs are compared, in float64 where float32 cannot decide.

Letters: `n` rows, `D` dimensions, `a` and `b` rows of two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertcli.inference.progress import Advance
from bertcli.records.records import Record, TextBlock
from bertcli.records.source import ORIGIN
from bertcli.vectors.nearest import DIGITS, unit
from bertcli.vectors.reading import Array
from bertcli.vectors.search import CorpusTexts, Search, corpus_vectors


class DuplicateGroup(NamedTuple):
    """A text that is kept, the others of its group [n], and their cosines to it."""

    keep: int
    rows: Array
    scores: Array


@dataclass
class Duplicates:
    """A pass over the vectors of a corpus, which are put aside. Iterate once, then ask for groups.

    Only the texts of groups are held, as columns.
    """

    search: Search
    threshold: float = 0.95  # how alike near-duplicates are
    keep: str = "first"  # text of a group, or the longest
    records: int = field(default=0, init=False)  # texts of the corpus
    groups: list[DuplicateGroup] = field(default_factory=list, init=False)
    members: Array = field(init=False)  # the rows of all groups, in order; their records:
    texts: TextBlock = field(init=False)

    def __iter__(self) -> Iterator[Advance]:
        """Yield how far the comparison is.

        Raises InputError when the vectors were made from other texts than those of the corpus.
        """
        vectors = corpus_vectors(self.search, of_others=True)
        self.records = len(vectors)
        vectors = vectors.reshape(self.records, -1 if self.records else 1)
        components = Components(vectors, self.threshold)
        for done in components:
            yield Advance(done, "texts", None)
        groups = components.groups()
        self.members = np.sort(np.concatenate([np.zeros(0, np.int64), *groups]))
        self.texts = TextBlock.of(chain.from_iterable(self._texts_of_members()))
        self.groups = [self._group(vectors, rows) for rows in groups]

    def _texts_of_members(self) -> Iterator[TextBlock]:
        """Yield the texts of the groups. Raises InputError when the corpus is another one."""
        first = 0
        for block in CorpusTexts(self.search).blocks(self.records):
            start, stop = self.members.searchsorted([first, first + len(block)])
            yield TextBlock.of(block).take((self.members[start:stop] - first).tolist())
            first += len(block)

    @property
    def dropped(self) -> int:
        """The number of near-duplicates of a text that is kept."""
        return len(self.members) - len(self.groups)

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

    def kept(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the texts without near-duplicates, in another pass, as rows of plain lines."""
        first, is_kept = 0, np.ones(self.records, bool)
        for group in self.groups:
            is_kept[group.rows] = False
        for block in self.search.texts.again().blocks():
            chosen = np.flatnonzero(is_kept[first : first + len(block)]).tolist()
            yield [{"text": text} for text in TextBlock.of(block).take(chosen).texts]
            first += len(block)

    def _group(self, vectors: Array, rows: Array) -> DuplicateGroup:
        keep = int(rows[0])
        if self.keep == "longest":
            texts = self.texts.take(self.members.searchsorted(rows).tolist())
            keep = int(rows[np.argmax([*texts.weights])])
        others = rows[rows != keep]
        scores = [
            cosines(vectors, np.repeat(keep, len(part)), part)
            for part in np.array_split(others, len(others) // 1024 + 1)
        ]
        return DuplicateGroup(keep, others, np.concatenate(scores))


TALL, ROWS = 4096, 1024  # of two blocks that are compared
ROUNDING = 1e-4  # more than float32 takes from a product of vectors of length 1
SAMPLED = 512  # vectors, whose principal axes screen all
SCREENED = 4  # dimensions, of which one chooses the pairs that are compared


class Components:
    """The components of rows whose cosine is at least a threshold. Iterate once."""

    def __init__(self, vectors: Array, threshold: float) -> None:
        self.vectors, self.threshold = vectors, threshold
        seen: dict[bytes, int] = {}
        rows = (seen.setdefault(blake2b(row).digest(), at) for at, row in enumerate(vectors))
        self.parents = np.fromiter(rows, np.int64, len(vectors))  # one before a row, or itself
        nothing = np.flatnonzero(~vectors.any(axis=1))  # is like no other
        self.parents[nothing] = nothing

    def __iter__(self) -> Iterator[int]:
        """Yield how many rows were compared with all others."""
        every = np.flatnonzero(self.parents == np.arange(len(self.parents)))  # all equal rows once
        sample = self.vectors[every[:: len(every) // SAMPLED + 1]]
        axes = np.linalg.svd(sample, full_matrices=False).Vh[: sample.shape[1] // SCREENED].T
        for at in range(0, len(every), TALL):
            rows = every[at : at + TALL]
            left = self.vectors[rows]
            screened = screen(left, axes)
            for start in range(at, len(every), ROWS):
                others = every[start : start + ROWS]
                right = self.vectors[others]
                near = screened @ screen(right, axes).T >= self.threshold - ROUNDING
                if start < at + TALL:
                    near &= rows[:, None] < others
                a, b = held_by(near)
                products = left[a] @ right[b].T
                near = part_of(near, a, b) & (products >= self.threshold - ROUNDING)
                self._join(rows[a], others[b], near, products)
            yield int(rows[-1]) + 1

    def groups(self) -> list[Array]:
        """Return the rows of each component of two or more, the one with the first row first."""
        roots = self._roots(np.arange(len(self.parents)))
        order = np.argsort(roots, kind="stable")
        starts = np.flatnonzero(np.diff(roots[order], prepend=-1))
        sizes = np.diff(starts, append=len(order))
        several = zip(starts[sizes > 1], sizes[sizes > 1], strict=True)
        return [order[start : start + size] for start, size in several]

    def _join(self, rows: Array, others: Array, near: Array, products: Array) -> None:
        """Join those of two blocks that ``near`` [a, b] says may be alike."""
        a, b = held_by(near)
        rows, others, near, products = (
            rows[a],
            others[b],
            part_of(near, a, b),
            part_of(products, a, b),
        )
        doubtful = near & (products < self.threshold + ROUNDING)
        for at in np.flatnonzero(doubtful.any(axis=1)):
            which = np.flatnonzero(doubtful[at])
            exact = cosines(self.vectors, np.repeat(rows[at], len(which)), others[which])
            near[at, which] = exact >= self.threshold
        while True:  # at least half of the components are joined
            near &= self._roots(rows)[:, None] != self._roots(others)
            if not near.any():
                break
            a, b = held_by(near)
            self._unite(rows[a], others[near[a].argmax(axis=1)])
            self._unite(rows[near[:, b].argmax(axis=0)], others[b])

    def _unite(self, a: Array, b: Array) -> None:
        """Join the components of pairs of rows."""
        while len(a):
            a, b = self._roots(a), self._roots(b)
            apart = a != b
            a, b = a[apart], b[apart]
            np.minimum.at(self.parents, np.maximum(a, b), np.minimum(a, b))

    def _roots(self, rows: Array) -> Array:
        """Return the first row of the component of each row, so far."""
        roots = self.parents[rows]
        while ((further := self.parents[roots]) != roots).any():
            roots = further
        self.parents[rows] = roots
        return roots


def held_by(near: Array) -> tuple[Any, Any]:
    """Return the rows and the columns of a matrix that hold anything."""
    return np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))


def part_of(matrix: Array, rows: Array, columns: Array) -> Array:
    """Return some rows and columns of a matrix, five times as fast as by indices."""
    return matrix.take(rows, 0).take(columns, 1)


def screen(vectors: Array, axes: Array) -> Array:
    """Return [n, d + 1] whose products are at least those of vectors [n, D] of length 1.

    They are the coordinates along ``axes`` [D, d], and the length of what these leave out: the
    product of two such rests is at most that of their lengths (Cauchy and Schwarz).
    """
    part = vectors @ axes
    rest = 1 - np.vecdot(part, part)
    return np.column_stack([part, np.sqrt(rest.clip(0) + ROUNDING)])


def cosines(vectors: Array, rows: Array, others: Array) -> Array:
    """Return the cosines of pairs of rows in float64."""
    products = np.einsum("nd,nd->n", unit(vectors[rows]), unit(vectors[others]))
    return products.round(DIGITS)
