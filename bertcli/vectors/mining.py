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
from itertools import chain
from typing import Any

import numpy as np

from bertcli.errors import InputError, UsageError
from bertcli.records.reader import Reader
from bertcli.records.records import Record, Text
from bertcli.records.source import Source
from bertcli.vectors.nearest import DIGITS, Nearest
from bertcli.vectors.reading import Array
from bertcli.vectors.run import stacked
from bertcli.vectors.search import AT_ONCE, CorpusTexts, Search, add_stored


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
        excluded = self._excluded(texts)
        pairs = [_checked(record) for record in self.reader]
        self.pairs = len(pairs)
        not_negative: dict[Text, set[Text]] = defaultdict(set)  # of an anchor
        for anchor, positive in pairs:
            not_negative[anchor] |= {anchor, positive}
        for start in range(0, len(pairs), AT_ONCE):
            batch = pairs[start : start + AT_ONCE]
            top_k = self.search.options.top_k
            most = top_k + max(len(not_negative[anchor]) for anchor, _ in batch)
            _, nearest = self.search.asking([Record(anchor) for anchor, _ in batch], most)
            if not isinstance(nearest, Nearest):
                raise UsageError("--mine needs one vector per text")
            positives = nearest.scaled(self._vectors([positive for _, positive in batch]))
            scores = np.einsum("nd,nd->n", nearest.queries, positives)
            nearest.excluded, nearest.ceilings = excluded, scores - self.margin
            add_stored(nearest, self.search.path)
            records = texts.at(nearest.found, nearest.rows)
            rows: list[dict[str, Any]] = []
            for (anchor, positive), score, matches in zip(
                batch, scores, nearest.matches(), strict=True
            ):
                negatives = [
                    {"anchor": anchor, "positive": positive, "negative": text, "margin": margin}
                    for match in matches
                    if (margin := round(float(score) - match.score, DIGITS)) >= self.margin
                    and (text := records[match.row].text) not in not_negative[anchor]
                ]
                rows += negatives[:top_k]
            self.negatives += len(rows)
            yield rows

    def _excluded(self, texts: CorpusTexts) -> Array:
        """Return the rows of texts that an earlier row has, or that are empty."""
        seen: set[int] = set()
        rows = [] if self.search.options.skip_empty is False else [*texts.empty]
        records = chain.from_iterable(texts.blocks(texts.digest.records))
        for row, key in enumerate(hash(str(record.text)) for record in records):
            if key in seen:
                rows.append(row)
            seen.add(key)
        return np.array(rows, int)

    def _vectors(self, texts: Sequence[Text]) -> Array:
        """Return the vectors of texts of the corpus, [n, D]."""
        embedder = self.search.embedder
        run = embedder.run(Reader(Source()), blocks=[[Record(text) for text in texts]])
        return np.concatenate([embedder.nothing, *map(stacked, embedder.embed(run))])


def _checked(record: Record) -> tuple[Text, Text]:
    if record.pair is None:
        raise InputError(
            f"{record.where}: has no positive",
            'a record is an object like {"anchor": "...", "positive": "..."}',
        )
    return record.text, record.pair
