"""Evaluate models on examples or queries, and report their metrics with confidence intervals.

Intervals are Wilson's for shares of the examples, else bootstrapped: computed from resampled
examples. Source: Efron, Bootstrap Methods, 1979.
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
# nDCG@10, recall@100 and MRR@10, computed as in BEIR. File formats are those of BEIR (queries and
# corpus with `_id` and `text`, qrels as TSV) or TREC (qrels with four columns).
# Source: Thakur et al., BEIR, 2021; Järvelin and Kekäläinen, 2002 (nDCG with linear gains, as in
# trec_eval).

DEPTH, DEEP = 10, 100  # results considered for nDCG and MRR, and for recall
BLOCK = 1 << 16  # documents compared at a time


def search_scores(
    documents: Sequence[str], gains: Mapping[str, float]
) -> tuple[float, float, float]:
    """Return nDCG@10, recall and the reciprocal rank (0 below the first 10) of one query.

    ``documents`` are the ids found, best first; recall counts all of them. ``gains`` are the gains
    of the relevant documents, by id.
    """
    reached = [gains.get(document, 0.0) for document in documents[:DEPTH]]
    ideal = sorted(gains.values(), reverse=True)[:DEPTH]
    dcg, best = (
        sum(gain / log2(rank) for rank, gain in enumerate(ranked, 2)) for ranked in (reached, ideal)
    )
    recall = sum(document in gains for document in documents) / len(gains)
    first = next((rank for rank, gain in enumerate(reached, 1) if gain > 0), inf)
    return dcg / best, recall, 1 / first


def read_documents(reader: Reader) -> dict[str, Record]:
    """Return the queries or documents of a file by id, with the title before the text.

    Raises InputError for a text without an id, a repeated id, or a file without texts.
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
QUERY_COLUMNS = ("query-id", "qid", "query_id")  # first column of a header


def read_qrels(path: str) -> dict[str, dict[str, float]]:
    """Return the gains of the relevant documents: query id -> document id -> gain above 0.

    Raises InputError for a line in neither the BEIR nor the TREC format.
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
    """Return the search metrics of each model, for the queries that have relevant documents.

    Raises InputError if the judgements (``qrels``) refer to other queries or documents.
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
    """Return the evaluation of each model.

    Without ``qrels``, ``readers`` is one reader of examples; with judgements, a reader of queries
    and a reader of the corpus.
    """
    if qrels is not None:
        queries, corpus = readers
        return searches(models, queries, corpus, qrels)
    (reader,) = readers
    extra = sorted({field for model in models for field in model.extra_fields})
    found = read_examples(reader, task, extra, names)
    return [found.task.evaluate(model, found.examples) for model in models]


# --- the report ---

DRAWS, WORK = 1000, 20_000_000  # maximum number of samples, and of examples in all samples
LEAST = 200  # minimum number of samples
EDGES = (0.025, 0.975)
# Bootstrapped intervals of fewer examples are too narrow. Coverage of the nominal 95 % interval of
# a share of 0.9: 95 % with 30 examples, 87 % with 20, 65 % with 10.
FEW = 30
Z = 1.959964  # 95 % of a normal distribution is within this many standard deviations


def doubt(evaluation: Evaluation, *, compared: bool = False) -> str:
    """Return a warning if there are too few examples for bootstrapped intervals, else "".

    With ``compared``, the report also has differences between models; their intervals are all
    bootstrapped.
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
    """Return the bootstrapped 95 % interval of each metric of ``count`` rows. The seed is fixed."""
    draw = np.random.default_rng(0)
    draws = max(LEAST, min(DRAWS, WORK // count))
    samples = [metrics(draw.integers(0, count, count)) for _ in range(draws)]
    return {
        name: np.quantile([sample[name] for sample in samples], EDGES).tolist()
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
    found = bootstrap_intervals(predictions.metrics, count)
    values = predictions.metrics()
    for name, size in predictions.sample_sizes().items():
        if name in predictions.SHARES or values[name] in (0, 1):
            found[name] = wilson_interval(values[name], size)
    return found


def report(evaluation: Evaluation, other: Evaluation | None = None) -> dict[str, Any]:
    """Return the metrics with intervals; with ``other``, also its metrics and the differences.

    Differences are the other model's metrics minus the first model's.
    """
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
