"""A search with its judgements, put to an embedding model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bertcli.errors import InputError
from bertcli.evaluation.predictions import Judge, Judged
from bertcli.evaluation.retrieval import SearchPredictions, nearest, read_documents, read_qrels
from bertcli.records.reader import Reader
from bertcli.records.records import Record


@dataclass(frozen=True)
class SearchTest:
    """Queries that have relevant documents, and all documents."""

    queries: Mapping[str, Record]
    corpus: Mapping[str, Record]
    relevant: Mapping[str, Mapping[str, float]]
    note: str = ""

    @classmethod
    def read(cls, queries: Reader, corpus: Reader, qrels: str) -> SearchTest:
        """Read the three files. InputError when the judgements are of other texts."""
        relevant, asked, texts = read_qrels(qrels), read_documents(queries), read_documents(corpus)
        judged = {key: record for key, record in asked.items() if key in relevant}
        if not judged:
            raise InputError(f"{qrels}: none of its queries is in the file of queries")
        if unknown := {one for key in judged for one in relevant[key]} - texts.keys():
            raise InputError(
                f"{qrels}: document {min(unknown)!r} is not in the corpus",
                f"{len(unknown):,} of the relevant documents are missing",
            )
        rest = len(asked) - len(judged)
        note = f"{rest:,} of {len(asked):,} queries have no relevant documents and do not count"
        return cls(judged, texts, relevant, note if rest else "")

    def judge(self, judge: Judge) -> Judged:
        """Return what a model finds."""
        records = [*self.queries.values(), *self.corpus.values()]
        vectors, count = judge.vectors(records), len(self.queries)
        ids = [*self.queries], [*self.corpus]
        found = list(nearest(vectors[:count], vectors[count:], ids))
        return Judged("retrieval", SearchPredictions(found, [self.relevant[key] for key in ids[0]]))
