"""Hard negatives for training: texts of a corpus near to an anchor that are no positive of it.

    mining = Mining(search, reader, margin=0.1)     # records: anchors, with positives as pairs
    for rows in mining:
        print(rows[0]["anchor"], rows[0]["negative"])

As in sentence-transformers' mine_hard_negatives, a text that is nearer than the positive is likely
to be one: the ``margin`` is how much less alike than the positive a negative has to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcli.errors import InputError, UsageError
from bertcli.records.reader import Reader
from bertcli.records.records import Record, Text
from bertcli.records.source import Source
from bertcli.vectors.corpus import CorpusTexts, Texts
from bertcli.vectors.nearest import DIGITS, Match, Nearest, unit
from bertcli.vectors.reading import Array
from bertcli.vectors.run import stacked
from bertcli.vectors.search import AT_ONCE, Search, add_stored


@dataclass
class Mining:
    """A pass over pairs of anchor and positive. ``negatives`` counts what was found."""

    search: Search
    reader: Reader
    margin: float = 0.0
    pairs: int = 0
    negatives: int = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Yield rows with an anchor, its positive and a negative: as many as are found of each.

        Raises InputError for a record without a positive.
        """
        texts = CorpusTexts(self.search.path, self.search.texts)
        pairs = [_checked(record) for record in self.reader]
        self.pairs = len(pairs)
        positives: dict[Text, set[Text]] = defaultdict(set)
        for anchor, positive in pairs:
            positives[anchor].add(positive)
        for at in range(0, len(pairs), AT_ONCE):
            some = pairs[at : at + AT_ONCE]
            _, nearest = self.search.asking([Record(anchor) for anchor, _ in some])
            if not isinstance(nearest, Nearest):
                raise UsageError("--mine needs one vector per text")
            scores = np.einsum("nd,nd->n", nearest.queries, self._units([two for _, two in some]))
            add_stored(nearest, self.search.path)
            found = texts.at(nearest.found, nearest.rows)
            rows: list[dict[str, Any]] = []
            for pair, score, best in zip(some, scores, nearest.matches(), strict=True):
                rows += self._rows(pair, float(score), best, found, positives[pair[0]])
            self.negatives += len(rows)
            yield rows

    def _rows(
        self,
        pair: tuple[Text, Text],
        score: float,
        best: Sequence[Match],
        texts: Texts,
        positives: set[Text],
    ) -> Iterator[dict[str, Any]]:
        """Yield the negatives of one pair, whose own cosine is ``score``, the hardest first."""
        seen = {pair[0], *positives}
        for match in best:
            negative, apart = texts[match.row].text, round(score - match.score, DIGITS)
            if apart >= self.margin and negative not in seen:
                seen.add(negative)
                yield {
                    **{"anchor": pair[0], "positive": pair[1], "negative": negative},
                    "margin": apart,
                }

    def _units(self, texts: Sequence[Text]) -> Array:
        """Return the vectors of texts of the corpus, of length 1, [n, D]."""
        embedder = self.search.embedder
        run = embedder.run(Reader(Source()), blocks=[[Record(text) for text in texts]])
        return unit(np.concatenate([embedder.nothing, *map(stacked, embedder.embed(run))]))


def _checked(record: Record) -> tuple[Text, Text]:
    if record.pair is None:
        raise InputError(
            f"{record.where}: has no positive",
            'a record is an object like {"anchor": "...", "positive": "..."}',
        )
    return record.text, record.pair
