"""Search compared with judgements: nDCG@10, recall@100 and MRR@10, as BEIR counts them.

Files are laid out as in BEIR (queries and corpus with `_id` and `text`, qrels as TSV) or TREC
(qrels of four columns). Source: Thakur et al., BEIR, 2021; Järvelin and Kekäläinen, 2002 (nDCG
with linear gains, as trec_eval has it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from bertcli.errors import InputError
from bertcli.evaluation.metrics import MeanPredictions
from bertcli.evaluation.report import Judge, Judged
from bertcli.files.streams import open_bytes
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.vectors.nearest import Nearest
from bertcli.vectors.search import DOCUMENT, QUERY

DEPTH, DEEP = 10, 100  # results that count for nDCG and MRR, and for recall
BLOCK = 1 << 16  # documents at a time


def judged(documents: Sequence[str], gains: Mapping[str, float]) -> tuple[float, float, float]:
    """Return nDCG@10, recall@100 and the reciprocal rank among the first 10 of one query."""
    discount = 1 / np.log2(np.arange(2, DEPTH + 2))
    reached = [gains.get(document, 0.0) for document in documents[:DEPTH]]
    ideal = sorted(gains.values(), reverse=True)[:DEPTH]
    dcg, best = (
        float((np.array(ranked) * discount[: len(ranked)]).sum()) for ranked in (reached, ideal)
    )
    recall = sum(document in gains for document in documents[:DEEP]) / max(len(gains), 1)
    first = next((rank for rank, gain in enumerate(reached, 1) if gain > 0), inf)
    return dcg / best if best else 0.0, recall, 1 / first


def nearest(
    queries: np.ndarray, corpus: np.ndarray, ids: tuple[Sequence[str], Sequence[str]]
) -> Iterator[list[str]]:
    """Yield the ids of the documents nearest to each query by cosine, without the query itself."""
    query_ids, document_ids = ids
    search = Nearest(queries, DEEP + 1)
    for start in range(0, len(corpus), BLOCK):
        search.add(corpus[start : start + BLOCK])
    for query, best in zip(query_ids, search.matches(), strict=True):
        named = [document_ids[match.row] for match in best]
        yield [document for document in named if document != query][:DEEP]


def read_documents(reader: Reader) -> dict[str, Record]:
    """Return the texts of a file of queries or documents by their ids; titles come first.

    Raises InputError for a text without an id, or an id that two have.
    """
    documents: dict[str, Record] = {}
    for record in reader:
        extra = record.extra or {}
        key = extra.get("_id", record.id)
        if key is None:
            raise InputError(f"{record.where}: no id", "give each text a field _id or id")
        if str(key) in documents:
            raise InputError(f"{record.where}: the id {key!r} occurs twice")
        title = extra.get("title")
        text = f"{title} {record.text}" if isinstance(title, str) else str(record.text)
        documents[str(key)] = record._replace(text=text.strip(), extra=None)
    if not documents:
        raise InputError(f"{', '.join(reader.source.paths)}: no texts found")
    return documents


def read_qrels(path: str) -> dict[str, dict[str, float]]:
    """Return the relevant documents of each query, and their gains.

    Raises InputError for a line that is neither BEIR's nor TREC's.
    """
    relevant: dict[str, dict[str, float]] = {}
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            cells = line.decode("utf-8", "replace").split()
            if not cells or (number == 1 and cells[0].lower() in ("query-id", "qid", "query_id")):
                continue
            try:
                gain = float(cells[-1])
            except ValueError:
                gain = inf
            if len(cells) not in (3, 4) or not isfinite(gain):
                raise InputError(
                    f"{path}:{number}: not a judgement",
                    "a line of qrels is: query, document, gain (BEIR) or query, 0, document, gain "
                    "(TREC)",
                )
            if gain > 0:
                relevant.setdefault(cells[0], {})[cells[-2]] = gain
    if not relevant:
        raise InputError(f"{path}: no relevant documents found", "qrels hold a gain above 0")
    return relevant


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
        if unknown := {text for query in judged for text in relevant[query]} - texts.keys():
            raise InputError(
                f"{qrels}: document {min(unknown)!r} is not in the corpus",
                f"{len(unknown):,} of the relevant documents are missing",
            )
        unjudged = len(asked) - len(judged)
        note = f"{unjudged:,} of {len(asked):,} queries have no relevant documents and do not count"
        return cls(judged, texts, relevant, note if unjudged else "")

    def judge(self, judge: Judge) -> Judged:
        """Return what a model finds."""
        queries = judge.vectors([*self.queries.values()], QUERY)
        corpus = judge.vectors([*self.corpus.values()], DOCUMENT)
        ids = [*self.queries], [*self.corpus]
        relevant = [self.relevant[query] for query in ids[0]]
        values = np.array([*map(judged, nearest(queries, corpus, ids), relevant)])
        names = (f"ndcg@{DEPTH}", f"recall@{DEEP}", f"mrr@{DEPTH}")
        return Judged("retrieval", MeanPredictions(names, values))
