"""Hard negatives for pairs: texts of a corpus that are near the anchor, and are not its positive.

    mining = Mining(search, reader)     # of records with an anchor and a positive
    for rows in mining: ...             # [{"anchor": ..., "positive": ..., "negative": ..., ...}]

`bertcli similar --mine` writes these rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from bertcli.embedding.embed_run import RecordVectors
from bertcli.errors import InputError
from bertcli.formats.vector_files import Array
from bertcli.records.reader import Reader
from bertcli.records.record import Record, Text
from bertcli.retrieval.corpus import CorpusTexts, records_of_rows, rows_of
from bertcli.retrieval.nearest import DIGITS, Nearest
from bertcli.retrieval.search import QUERIES_PER_BATCH, Search, add_stored


@dataclass
class Mining:
    """A pass that finds hard negatives for pairs of anchor and positive.

    A negative scores less than the positive by ``margin`` or more (0: at most as much). It is not
    the anchor, and not a positive of the same anchor in another pair.
    ``pairs`` and ``negatives`` count the pairs that were read and the negatives that were found.
    """

    search: Search
    reader: Reader
    margin: float = 0.0
    pairs: int = 0
    negatives: int = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Yield lists of rows with an anchor, its positive and a negative.

        A pair has at most ``top_k`` negatives. Raises InputError for a record without a positive.
        """
        texts = self.search.corpus_texts()
        excluded = self._excluded(texts)
        pairs: list[tuple[Text, Text]] = []
        not_negative: dict[Text, set[Text]] = defaultdict(set)  # anchor -> excluded texts
        for record in self.reader:
            if record.pair is None:
                raise InputError(
                    f"{record.where}: has no positive",
                    'a record is an object like {"anchor": "...", "positive": "..."}',
                )
            pairs.append((record.text, record.pair))
            not_negative[record.text] |= {record.text, record.pair}
        self.pairs = len(pairs)
        for start in range(0, len(pairs), QUERIES_PER_BATCH):
            batch = pairs[start : start + QUERIES_PER_BATCH]
            top_k = self.search.options.top_k
            depth = top_k + max(len(not_negative[anchor]) for anchor, _ in batch)
            nearest = self.search.collector([Record(anchor) for anchor, _ in batch], depth)
            assert isinstance(nearest, Nearest)  # as --mine excludes --sparse and --token-vectors
            run = RecordVectors(self.search.embedder, [Record(positive) for _, positive in batch])
            run.execute()
            positives = nearest.scaled(run.vectors)
            scores = np.einsum("nd,nd->n", nearest.queries, positives)
            nearest.excluded = excluded
            nearest.ceilings = scores - self.margin
            add_stored(nearest, self.search.store)
            records = records_of_rows(rows_of(nearest.matches()), texts.blocks(nearest.rows))
            rows: list[dict[str, Any]] = []
            for (anchor, positive), score, matches in zip(
                batch, scores, nearest.matches(), strict=True
            ):
                negatives = []
                for match in matches:
                    margin = round(float(score) - match.score, DIGITS)
                    text = records[match.row].text
                    if margin >= self.margin and text not in not_negative[anchor]:
                        negatives.append(
                            {
                                "anchor": anchor,
                                "positive": positive,
                                "negative": text,
                                "margin": margin,
                            }
                        )
                rows += negatives[:top_k]
            self.negatives += len(rows)
            yield rows

    def _excluded(self, texts: CorpusTexts) -> Array:
        """Return the rows of empty texts, and of texts that repeat an earlier one."""
        seen: set[int] = set()
        rows = list(texts.empty)
        records = chain.from_iterable(texts.blocks(texts.digest.records))
        for row, key in enumerate(hash(str(record.text)) for record in records):
            if key in seen:
                rows.append(row)
            seen.add(key)
        return np.array(rows, int)
