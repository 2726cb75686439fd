"""The predictions of a model for examples or queries, and their metrics with intervals.

Intervals are made by resampling the examples. Source: Efron, Bootstrap Methods, 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, log2, sqrt
from typing import Any

import numpy as np

from bertcli.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS
from bertcli.errors import InputError
from bertcli.formats.tables import rounded
from bertcli.io.streams import blocks, open_bytes
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.retrieval.nearest import Nearest
from bertcli.tasks.evaluated_model import EvaluatedModel
from bertcli.tasks.examples import read_examples
from bertcli.tasks.learning import DEFAULT_NAMES, Evaluation, FieldNames
from bertcli.tasks.metrics import ALL, MeanPredictions, Predictions, Rows

# --- search ---
# nDCG@10, recall@100 and MRR@10, as BEIR counts them. Files are laid out as in BEIR (queries and
# corpus with `_id` and `text`, qrels as TSV) or TREC (qrels of four columns).
# Source: Thakur et al., BEIR, 2021; Järvelin and Kekäläinen, 2002 (nDCG with linear gains, as
# trec_eval has it).

DEPTH, DEEP = 10, 100  # results that count for nDCG and MRR, and for recall
BLOCK = 1 << 16  # documents at a time


def search_scores(
    documents: Sequence[str], gains: Mapping[str, float]
) -> tuple[float, float, float]:
    """Return nDCG@10, recall@100 and the reciprocal rank among the first 10 of one query."""
    reached = [gains.get(document, 0.0) for document in documents[:DEPTH]]
    ideal = sorted(gains.values(), reverse=True)[:DEPTH]
    dcg, best = (
        sum(gain / log2(rank) for rank, gain in enumerate(ranked, 2)) for ranked in (reached, ideal)
    )
    recall = sum(document in gains for document in documents) / len(gains)
    first = next((rank for rank, gain in enumerate(reached, 1) if gain > 0), inf)
    return dcg / best, recall, 1 / first


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


LONGEST_JUDGEMENT = 1 << 16  # bytes
JUDGEMENT = "a line of qrels is: query, document, gain (BEIR) or query, 0, document, gain (TREC)"
QUERY_COLUMNS = ("query-id", "qid", "query_id")  # how a header begins


def read_qrels(path: str) -> dict[str, dict[str, float]]:
    """Return the relevant documents of each query, and their gains.

    Raises InputError for a line that is neither BEIR's nor TREC's.
    """

    def refuse(error: InputError) -> None:
        raise InputError(error.marked.replace("the record", "the line"), JUDGEMENT) from None

    relevant: dict[str, dict[str, float]] = {}
    with open_bytes(path) as file:
        for block in blocks(file, path, limit=LONGEST_JUDGEMENT, skip=refuse):
            for number, line in enumerate(block.lines, block.number):
                cells = line.decode("utf-8", "replace").split()
                is_header = number == 1 and cells and cells[0].lower() in QUERY_COLUMNS
                if not cells or is_header:
                    continue
                try:
                    gain = float(cells[-1])
                except ValueError:
                    gain = inf
                if len(cells) not in (3, 4) or not isfinite(gain):
                    raise InputError(f"{path}:{number}: not a judgement", JUDGEMENT)
                if gain > 0:
                    relevant.setdefault(cells[0], {})[cells[-2]] = gain
    if not relevant:
        raise InputError(f"{path}: no relevant documents found", "qrels hold a gain above 0")
    return relevant


def searches(
    models: Sequence[EvaluatedModel], queries: Reader, corpus: Reader, qrels: str
) -> list[Evaluation]:
    """Return what each model finds of a corpus for the queries that have relevant documents.

    InputError when the judgements are of other texts.
    """
    relevant = read_qrels(qrels)
    asked = read_documents(queries)
    texts = read_documents(corpus)
    asked = {key: record for key, record in asked.items() if key in relevant}
    if not asked:
        raise InputError(f"{qrels}: none of its queries is in the file of queries")
    if unknown := {text for query in asked for text in relevant[query]} - texts.keys():
        raise InputError(
            f"{qrels}: document {min(unknown)!r} is not in the corpus",
            f"{len(unknown):,} of the relevant documents are missing",
        )
    names = (f"ndcg@{DEPTH}", f"recall@{DEEP}", f"mrr@{DEPTH}")
    ids = [*texts]
    results = []
    for model in models:
        asking = model.vectors([*asked.values()], QUERY_PROMPTS)
        search = Nearest(asking, DEEP + 1, dot=model.compares_by_dot)
        vectors = model.vectors([*texts.values()], DOCUMENT_PROMPTS)
        for start in range(0, len(vectors), BLOCK):
            search.add(vectors[start : start + BLOCK])
        values = []
        for query, matches in zip(asked, search.matches(), strict=True):
            documents = [ids[match.row] for match in matches if ids[match.row] != query]
            values.append(search_scores(documents[:DEEP], relevant[query]))
        predictions = MeanPredictions(names, np.array(values))
        results.append(Evaluation("retrieval", len(asked), predictions))
    return results


def evaluations(
    models: Sequence[EvaluatedModel],
    readers: Sequence[Reader],
    qrels: str | None = None,
    task: str | None = None,
    names: FieldNames = DEFAULT_NAMES,
) -> list[Evaluation]:
    """Return the predictions of each model.

    They are for the examples of a reader; with judgements (``qrels``), for the queries of one
    reader in the texts of another.
    """
    if qrels is not None:
        queries, corpus = readers
        return searches(models, queries, corpus, qrels)
    (reader,) = readers
    extra = sorted({field for model in models for field in model.extra_fields})
    found = read_examples(reader, task, extra, names)
    return [found.task.evaluate(model, found.examples) for model in models]


# --- the report ---

DRAWS, WORK = 1000, 20_000_000  # samples, and examples in all of them at most
LEAST = 200  # samples all the same
EDGES = (0.025, 0.975)
# Examples below which the bootstrap is too narrow: where nine of ten cases are right, its interval
# of their share contains 0.9 in 95 % of the draws of 30 examples, in 87 % of those of 20, in 65 %
# of those of 10.
FEW = 30
Z = 1.959964  # standard deviations around the mean of a normal distribution that hold 95 %


def doubt(evaluation: Evaluation, *, compared: bool = False) -> str:
    """Return a warning about bootstrapped intervals of few examples, or an empty string.

    Intervals of the difference to a ``compared`` model are all bootstrapped.
    """
    shares = evaluation.predictions.SHARES
    names = [name for name in evaluation.predictions.metrics() if name not in shares]
    names += ["differences"] if compared else []
    if evaluation.n >= FEW or not names:
        return ""
    listed = ", ".join(names)
    return f"fewer than {FEW} examples ({evaluation.n}): intervals of {listed} may be too narrow"


def bootstrap_intervals(
    metrics: Callable[[Rows], Mapping[str, float]], count: int
) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric, from samples of the rows: the same each time."""
    draw = np.random.default_rng(0)
    draws = max(LEAST, min(DRAWS, WORK // count))
    samples = [metrics(draw.integers(0, count, count)) for _ in range(draws)]
    return {
        name: np.quantile([sample[name] for sample in samples], EDGES).tolist()
        for name in samples[0]
    }


def wilson_interval(share: float, count: float) -> list[float]:
    """Return the 95 % interval of a share of ``count`` examples, within 0 and 1.

    It is not a point where all or none are right: of 100 right of 100, it is 0.963 to 1.
    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not count:
        return [0.0, 1.0]
    scale = 1 + Z**2 / count
    middle = (share + Z**2 / (2 * count)) / scale
    half = Z / scale * sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2)
    low = 0.0 if share == 0 else middle - half
    high = 1.0 if share == 1 else middle + half
    return [low, high]


def intervals(predictions: Predictions, count: int) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric of ``count`` examples.

    Shares of the examples have Wilson's. Others are bootstrapped, unless they are 0 or 1: then all
    samples are equal, and the interval is Wilson's for the examples that the metric rests on.
    """
    found = bootstrap_intervals(predictions.metrics, count)
    values = predictions.metrics()
    for name, size in predictions.sample_sizes().items():
        if name in predictions.SHARES or values[name] in (0, 1):
            found[name] = wilson_interval(values[name], size)
    return found


def report(evaluation: Evaluation, other: Evaluation | None = None) -> dict[str, Any]:
    """Return the metrics of examples; of two models also the other's, and how much better."""
    ours = evaluation.predictions.metrics
    count = evaluation.n
    fields = {"task": evaluation.task, "n": count, **ours()}
    fields["intervals"] = intervals(evaluation.predictions, count)
    fields |= evaluation.details
    if other:
        theirs = other.predictions.metrics

        def differences(rows: Rows = ALL) -> dict[str, float]:
            before = ours(rows)
            after = theirs(rows)
            return {name: after[name] - before[name] for name in before}

        fields["compare"] = theirs() | {
            "differences": differences(),
            "intervals": bootstrap_intervals(differences, count),
        }
    return rounded(fields)
