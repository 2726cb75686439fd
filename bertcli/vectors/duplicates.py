"""Texts of a corpus that say nearly the same, by the cosine of their vectors.

    search = Search.open(folder, EmbedOptions(), SearchOptions(vectors=path), reader)
    run = Duplicates(search, threshold=0.95)
    for step in run:
        ...
    run.groups[0].keep, run.groups[0].rows

The vectors are those that a search of the corpus has, and are read from the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from bertcli.inference.progress import Advance
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.vectors.components import Components, cosines
from bertcli.vectors.corpus import CorpusTexts, Texts
from bertcli.vectors.nearest import refuse_infinite, unit
from bertcli.vectors.reading import Array, floats, put_aside
from bertcli.vectors.search import Search


class DuplicateGroup(NamedTuple):
    """A text that is kept, the others of its group, and their cosines to it."""

    keep: int
    rows: list[int]
    scores: list[float]


@dataclass
class Duplicates:
    """A pass over the vectors of a corpus, which are stored. Iterate once, then ask for groups."""

    search: Search
    threshold: float = 0.95  # how alike near-duplicates are
    keep: str = "first"  # text of a group, or the longest
    groups: list[DuplicateGroup] = field(default_factory=list, init=False)
    texts: Texts = field(default_factory=dict, init=False)  # of all groups
    records: int = field(default=0, init=False)  # of the corpus

    def __iter__(self) -> Iterator[Advance]:
        """Yield how far the comparison is.

        Raises InputError when the vectors were made from other texts than those of the corpus.
        """
        with TemporaryFile() as file:  # without a name: a kill leaves nothing
            found = put_aside(self._units(), file)
            vectors = np.zeros((0, 1), np.float32) if found is None else found
            self.records = len(vectors)
            components = Components(vectors, self.threshold)
            for done in components:
                yield Advance(done, "texts", None)
            groups = components.groups()
            rows = {int(row) for rows in groups for row in rows}
            texts = CorpusTexts(self.search.path, self.search.texts)
            self.texts = texts.at(rows, self.records)
            self.groups = [self._group(vectors, rows) for rows in groups]
            del found, vectors, components  # Windows removes no file that is mapped

    @property
    def dropped(self) -> set[int]:
        """The rows that are near-duplicates of one that is kept."""
        return set(chain.from_iterable(group.rows for group in self.groups))

    @property
    def with_ids(self) -> bool:
        """Whether a text of a group has an id."""
        return any(text.id is not None for text in self.texts.values())

    def id_of(self, row: int) -> Any:
        """Return the id of a text, or its row."""
        key = self.texts[row].id
        return row if key is None else key

    def fields(self, group: DuplicateGroup) -> dict[str, Any]:
        """Return what is written of a group, with ids where there are any."""
        found = group._asdict()
        if self.with_ids:
            found |= {"keep_id": self.id_of(group.keep), "ids": [*map(self.id_of, group.rows)]}
        return found

    def rows(self, group: DuplicateGroup) -> list[dict[str, Any]]:
        """Return what is written to a table: a row for each near-duplicate."""
        keep = {"keep": group.keep, "keep_id": self.id_of(group.keep)}
        return [
            {
                **keep,
                "row": row,
                "id": self.id_of(row),
                "score": score,
                "text": self.texts[row].text,
            }
            for row, score in zip(group.rows, group.scores, strict=True)
        ]

    def kept(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the texts without near-duplicates, in another pass, as rows of plain lines."""
        dropped, first = self.dropped, 0
        for block in Reader(self.search.texts.source).blocks():
            numbered = enumerate(block, first)
            yield [{"text": record.text} for row, record in numbered if row not in dropped]
            first += len(block)

    def _units(self) -> Iterator[Array]:
        """Yield the vectors, of length 1. Raises InputError for one that is not finite."""
        count = 0
        width = self.search.embedder.nothing.shape[-1]
        for block in floats(self.search.path, width):
            refuse_infinite(block, count)
            count += len(block)
            yield unit(block)

    def _group(self, vectors: Array, rows: Array) -> DuplicateGroup:
        keep = int(rows[0])
        if self.keep == "longest":
            keep = max(map(int, rows), key=lambda row: (_length(self.texts[row]), -row))
        others = rows[rows != keep]
        scores = [
            cosines(vectors, np.repeat(keep, len(some)), some)
            for some in np.array_split(others, len(others) // 1024 + 1)
        ]
        return DuplicateGroup(keep, others.tolist(), np.concatenate(scores).tolist())


def _length(record: Record) -> int:
    return sum(len(text) for text in (record.text, record.pair) if text)
