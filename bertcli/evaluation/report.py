"""Evaluate models on examples or queries, and report their metrics with confidence intervals.

Intervals are Wilson's for shares of the examples, else bootstrapped: computed from resampled
examples. Source: Efron, Bootstrap Methods, 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, log2, sqrt
from typing import Any

import numpy as np

from bertcli.embedding.record_embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS
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
# nDCG@10, recall@100 and MRR@10, computed as in BEIR. File formats are those of BEIR (queries and
# corpus with `_id` and `text`, qrels as TSV) or TREC (qrels with four columns).
# Source: Thakur et al., BEIR, 2021; Järvelin and Kekäläinen, 2002 (nDCG with linear gains, as in
# trec_eval).

RANKING_DEPTH = 10  # results considered for nDCG and MRR
RECALL_DEPTH = 100  # results considered for recall
DOCUMENTS_PER_BLOCK = 1 << 16  # documents compared at a time


def search_scores(
    documents: Sequence[str], gains: Mapping[str, float]
) -> tuple[float, float, float]:
    """Return nDCG@10, recall and the reciprocal rank (0 below the first 10) of one query.

    ``documents`` are the ids found, best first; recall counts all of them. ``gains`` are the gains
    of the relevant documents, by id.
    """
    found_gains = [gains.get(document, 0.0) for document in documents[:RANKING_DEPTH]]
    ideal_gains = sorted(gains.values(), reverse=True)[:RANKING_DEPTH]
    ndcg = discounted_gain(found_gains) / discounted_gain(ideal_gains)
    recall = sum(document in gains for document in documents) / len(gains)
    first_rank = next((rank for rank, gain in enumerate(found_gains, 1) if gain > 0), inf)
    return ndcg, recall, 1 / first_rank


def discounted_gain(gains: Sequence[float]) -> float:
    """Return the discounted cumulative gain (DCG) of documents with these gains, best first."""
    return sum(gain / log2(rank) for rank, gain in enumerate(gains, 2))


def read_documents(reader: Reader) -> dict[str, Record]:
    """Return the queries or documents of a file by id, with the title before the text.

    Raises InputError for a text without an id, a repeated id, or a file without texts.
    """
    documents: dict[str, Record] = {}
    for record in reader:
        fields = record.extra or {}
        key = fields.get("_id", record.id)
        if key is None:
            raise InputError(f"{record.where}: no id", "give each text a field _id or id")
        if str(key) in documents:
            raise InputError(f"{record.where}: the id {key!r} occurs twice")
        title = fields.get("title")
        text = f"{title} {record.text}" if isinstance(title, str) else str(record.text)
        documents[str(key)] = record._replace(text=text.strip(), extra=None)
    if not documents:
        raise InputError(f"{', '.join(reader.source.paths)}: no texts found")
    return documents


MAX_JUDGEMENT_BYTES = 1 << 16  # bytes
JUDGEMENT = "a line of qrels is: query, document, gain (BEIR) or query, 0, document, gain (TREC)"
QUERY_COLUMNS = ("query-id", "qid", "query_id")  # first column of a header


def read_qrels(path: str) -> dict[str, dict[str, float]]:
    """Return the gains of the relevant documents: query id -> document id -> gain above 0.

    Raises InputError for a line in neither the BEIR nor the TREC format.
    """

    def refuse(error: InputError) -> None:
        raise InputError(error.marked.replace("the record", "the line"), JUDGEMENT) from None

    relevant: dict[str, dict[str, float]] = {}
    with open_bytes(path) as file:
        for block in blocks(file, path, max_bytes=MAX_JUDGEMENT_BYTES, skip=refuse):
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


def search_evaluations(
    models: Sequence[EvaluatedModel], queries: Reader, corpus: Reader, qrels: str
) -> list[Evaluation]:
    """Return the search metrics of each model, for the queries that have relevant documents.

    Raises InputError if the judgements (``qrels``) refer to other queries or documents.
    """
    relevant = read_qrels(qrels)
    query_records = read_documents(queries)
    documents = read_documents(corpus)
    query_records = {key: record for key, record in query_records.items() if key in relevant}
    if not query_records:
        raise InputError(f"{qrels}: none of its queries is in the file of queries")
    unknown: set[str] = set()
    for query in query_records:
        unknown |= relevant[query].keys() - documents.keys()
    if unknown:
        raise InputError(
            f"{qrels}: document {min(unknown)!r} is not in the corpus",
            f"{len(unknown):,} of the relevant documents are missing",
        )
    names = (f"ndcg@{RANKING_DEPTH}", f"recall@{RECALL_DEPTH}", f"mrr@{RANKING_DEPTH}")
    ids = list(documents)
    results = []
    for model in models:
        query_vectors = model.vectors(list(query_records.values()), QUERY_PROMPTS)
        # One more, because a query is not a result for itself.
        search = Nearest(query_vectors, RECALL_DEPTH + 1, dot=model.compares_by_dot)
        vectors = model.vectors(list(documents.values()), DOCUMENT_PROMPTS)
        for start in range(0, len(vectors), DOCUMENTS_PER_BLOCK):
            search.add(vectors[start : start + DOCUMENTS_PER_BLOCK])
        values = []
        for query, matches in zip(query_records, search.matches(), strict=True):
            found_ids = [ids[match.row] for match in matches if ids[match.row] != query]
            values.append(search_scores(found_ids[:RECALL_DEPTH], relevant[query]))
        predictions = MeanPredictions(names, np.array(values))
        results.append(Evaluation("retrieval", len(query_records), predictions))
    return results


def evaluations(
    models: Sequence[EvaluatedModel],
    readers: Sequence[Reader],
    qrels: str | None = None,
    task: str | None = None,
    names: FieldNames = DEFAULT_NAMES,
) -> list[Evaluation]:
    """Return the evaluation of each model.

    Without ``qrels``, ``readers`` is one reader of examples; with judgements, a reader of queries
    and a reader of the corpus.
    """
    if qrels is not None:
        queries, corpus = readers
        return search_evaluations(models, queries, corpus, qrels)
    (reader,) = readers
    extra_fields: set[str] = set()
    for model in models:
        extra_fields.update(model.extra_fields)
    examples = read_examples(reader, task, sorted(extra_fields), names)
    return [examples.task.evaluate(model, examples.examples) for model in models]


# --- the report ---

MIN_SAMPLES = 200  # of a bootstrap
MAX_SAMPLES = 1000
MAX_SAMPLED_EXAMPLES = 20_000_000  # in all samples, unless these are fewer than MIN_SAMPLES
QUANTILES = (0.025, 0.975)  # bounds of a 95 % interval
# Bootstrapped intervals of fewer examples are too narrow. Coverage of the nominal 95 % interval of
# a share of 0.9: 95 % with 30 examples, 87 % with 20, 65 % with 10.
MIN_EXAMPLES = 30
Z = 1.959964  # 95 % of a normal distribution is within this many standard deviations


def interval_warning(evaluation: Evaluation, *, compared: bool = False) -> str:
    """Return a warning if there are too few examples for bootstrapped intervals, else "".

    With ``compared``, the report also has differences between models; their intervals are all
    bootstrapped.
    """
    shares = evaluation.predictions.SHARES
    names = [name for name in evaluation.predictions.metrics() if name not in shares]
    if compared:
        names.append("differences")
    if evaluation.n >= MIN_EXAMPLES or not names:
        return ""
    listed = ", ".join(names)
    return (
        f"fewer than {MIN_EXAMPLES} examples ({evaluation.n}): intervals of {listed} may be too "
        "narrow"
    )


def bootstrap_intervals(
    metrics: Callable[[Rows], Mapping[str, float]], count: int
) -> dict[str, list[float]]:
    """Return the bootstrapped 95 % interval of each metric of ``count`` rows. The seed is fixed."""
    rng = np.random.default_rng(0)
    sample_count = max(MIN_SAMPLES, min(MAX_SAMPLES, MAX_SAMPLED_EXAMPLES // count))
    samples = [metrics(rng.integers(0, count, count)) for _ in range(sample_count)]
    return {
        name: np.quantile([sample[name] for sample in samples], QUANTILES).tolist()
        for name in samples[0]
    }


def wilson_interval(share: float, count: float) -> list[float]:
    """Return Wilson's 95 % interval of a share of ``count`` examples, within 0 and 1.

    Unlike a bootstrapped interval, it does not shrink to a point for shares of 0 and 1: for 100 of
    100 correct examples it is 0.963 to 1.
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

    Intervals of shares of the examples are Wilson's. Other intervals are bootstrapped, unless the
    metric is 0 or 1: then all samples are equal, and the interval is Wilson's for the number of
    examples that the metric depends on.
    """
    bounds = bootstrap_intervals(predictions.metrics, count)
    values = predictions.metrics()
    for name, size in predictions.sample_sizes().items():
        if name in predictions.SHARES or values[name] in (0, 1):
            bounds[name] = wilson_interval(values[name], size)
    return bounds


def report(evaluation: Evaluation, comparison: Evaluation | None = None) -> dict[str, Any]:
    """Return the metrics with intervals; with ``comparison``, also its metrics and the differences.

    Differences are the metrics of the comparison minus those of the first model.
    """
    metrics = evaluation.predictions.metrics
    count = evaluation.n
    fields = {"task": evaluation.task, "n": count, **metrics()}
    fields["intervals"] = intervals(evaluation.predictions, count)
    fields |= evaluation.details
    if comparison:
        other_metrics = comparison.predictions.metrics

        def differences(rows: Rows = ALL) -> dict[str, float]:
            values = metrics(rows)
            other_values = other_metrics(rows)
            return {name: other_values[name] - values[name] for name in values}

        fields["compare"] = other_metrics() | {
            "differences": differences(),
            "intervals": bootstrap_intervals(differences, count),
        }
    return rounded(fields)
