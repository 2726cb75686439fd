"""The predictions of a model for examples or queries, and their metrics with intervals.

Intervals are made by resampling the examples. Source: Efron, Bootstrap Methods, 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite, log2, sqrt
from typing import Any

import numpy as np

from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.sentence_modules import Dense, read_chain, unit
from bertcli.errors import InputError, ModelError, option
from bertcli.evaluation.metrics import (
    ALL,
    ClassPredictions,
    LabelPredictions,
    MeanPredictions,
    Predictions,
    Rows,
    ScorePredictions,
    TagPredictions,
    answer_predictions,
    calibration,
    label_numbers,
)
from bertcli.formats.tables import rounded
from bertcli.io.streams import blocks, open_bytes
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.records.examples import (
    CONTRAST,
    USUAL,
    Example,
    Examples,
    FieldNames,
    read_examples,
)
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts, Reader
from bertcli.records.record import Record
from bertcli.retrieval.nearest import Nearest
from bertcli.retrieval.search import compares_by_dot
from bertcli.tasks.answer import Answerer
from bertcli.tasks.classify import LIKELY, Classifier
from bertcli.tasks.head import (
    CLASSIFIER,
    Head,
    HeadTask,
    Settings,
    is_pooled_head,
)
from bertcli.tasks.tag import WordTagger
from bertcli.tokenizing.run import TokenCounts


@dataclass(frozen=True)
class Judged:
    """The predictions of a model for n examples, with further numbers for the report."""

    task: str
    n: int
    predictions: Predictions
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Judge:
    """A model whose predictions are compared with examples: opened once for one task."""

    folder: ModelFolder
    settings: Settings
    options: EmbedOptions  # of a model for vectors
    tally: TokenCounts = field(default_factory=TokenCounts)  # of all texts so far
    max_length: int | None = None  # of those texts

    @cached_property
    def config(self) -> BertConfig | None:
        """The config of the model; None for a table of vectors."""
        return None if self.folder.is_static else self.folder.encoder.config

    @property
    def extra_fields(self) -> Collection[str]:
        """The fields of examples with ids that the model needs."""
        return self.config.fields_of_extra.values() if self.config else ()

    def judge(self, examples: Examples) -> Judged:
        """Return the predictions for examples; ModelError when there can be none."""
        task, rows = examples.form.task, examples.examples
        truth = [example.target for example in rows]
        predictions: Predictions
        details: dict[str, Any] = {}
        match task:
            case "classify" | "multilabel":
                scores, names = self._class_scores(rows)
                labels = {label for target in truth for label in target}
                numbers = label_numbers(names, labels)
                _refuse_other_labels(labels, numbers)
                lacking = sorted(labels - numbers.keys())
                numbers |= {label: len(names) + place for place, label in enumerate(lacking)}
                if task == "classify":
                    classes = np.array([numbers[label] for (label,) in truth])
                    best, names = scores.argmax(-1), [*names, *lacking]
                    predictions = ClassPredictions(classes, best, len(names))
                    details = predictions.details(names)
                    details["calibration"] = calibration(scores, best == classes)
                else:
                    targets = np.array([[label in target for label in numbers] for target in truth])
                    predicted = np.zeros_like(targets)
                    predicted[:, : scores.shape[1]] = scores >= LIKELY
                    predictions = LabelPredictions(targets, predicted)
            case "tag":
                results, names = self._predicted(WordTagger, rows)
                _refuse_other_labels({tag for tags in truth for tag in tags}, names)
                predictions = TagPredictions(truth, [fields["tags"] for fields in results])
            case "answer":
                texts = [answer.text for answer in truth]
                results, _ = self._predicted(Answerer, rows, no_answer="" in texts)
                answers = [str(fields["answer"]) for fields in results]
                predictions = answer_predictions(texts, answers)
            case "regress" if self._scores_one():
                scores, _ = self._class_scores(rows)
                predictions = ScorePredictions(np.array(truth, np.float64), scores[:, 0])
            case _:
                if examples.form == CONTRAST:
                    raise ModelError(
                        "anchors and positives have no score to compare with",
                        f"give text, pair and score, or {option('queries')}, "
                        f"{option('corpus')} and {option('qrels')}",
                    )
                records = [example.record for example in rows]
                for record in records:
                    if record.pair is None:
                        raise ModelError(
                            f"{record.where}: an embedding model scores pairs, and this is a text",
                            "give pairs, or a model with a head of one score",
                        )
                sides = [record._replace(pair=None) for record in records]
                sides += [record._replace(text=record.pair or "", pair=None) for record in records]
                left, right = np.split(unit(self.vectors(sides)), 2)
                task, cosines = "embed", (left * right).sum(1)
                predictions = ScorePredictions(np.array(truth, np.float64), cosines)
        return Judged(task, len(rows), predictions, details)

    def _scores_one(self) -> bool:
        """Return True if the model has a head with one score."""
        config = self.config
        folder = self.folder
        if config is None:
            return False
        if is_pooled_head(folder):
            (last,) = read_chain(folder, folder.modules[-1:])
            return isinstance(last, Dense) and len(last.weight) == 1
        return config.num_labels == 1 and CLASSIFIER in config.architectures

    def _class_scores(self, examples: Sequence[Example]) -> tuple[np.ndarray, list[str]]:
        """Return the scores of all labels of each text, [n, k], and the labels."""
        results, names = self._predicted(Classifier, examples, all_scores=True)
        scores = [[*row.get("scores", {"": row["score"]}).values()] for row in results]
        return np.array(scores, np.float32), names

    def vectors(self, records: Sequence[Record], prompts: Sequence[str] = ()) -> np.ndarray:
        """Return the vectors of texts, [n, D].

        ``prompts`` are names, of which the first that the model has is used unless one was given.
        """
        embedder = self._embedder
        if self.options.prompt is None and self.options.prompt_name is None:
            embedder = embedder.with_prompt(prompts)
        run = RecordVectors(embedder, records)
        for _ in run:
            pass
        self.tally.merge(run.tally)
        self.max_length = embedder.max_length
        return run.vectors

    @property
    def by_dot(self) -> bool:
        """Whether the model compares vectors by dot product."""
        return compares_by_dot(self._embedder)

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder.open(self.folder, self.options)

    def _predicted(
        self, kind: type[HeadTask], examples: Sequence[Example], **options: Any
    ) -> tuple[list[Mapping[str, Any]], list[str]]:
        """Return what a task says of each example, computed window by window; and the labels."""
        head = Head.open(self.folder, kind.kind, self.settings)
        task = kind(head, **options)
        self.max_length = task.layout.max_length
        records = [example.record for example in examples]
        stream = task.stream(GivenTexts(records, Input(sentences=True)))
        results = [result.fields for window in stream for result in window]
        self.tally.merge(stream.tally)
        return results, head.labels


def _refuse_other_labels(labels: Collection[str], names: Collection[str]) -> None:
    """Raise ModelError when no label of the examples is one of the model's."""
    if labels and not {*names} & {*labels}:
        theirs, ours = (", ".join(sorted(group)[:10]) for group in (names, labels))
        raise ModelError(
            f"no label of the examples is one of the model's: {ours}", f"the model has: {theirs}"
        )


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


def judged_search(
    judges: Sequence[Judge], queries: Reader, corpus: Reader, qrels: str
) -> list[Judged]:
    """Return what each model finds of a corpus for the queries that have relevant documents.

    InputError when the judgements are of other texts.
    """
    relevant, asked, texts = read_qrels(qrels), read_documents(queries), read_documents(corpus)
    asked = {key: record for key, record in asked.items() if key in relevant}
    if not asked:
        raise InputError(f"{qrels}: none of its queries is in the file of queries")
    if unknown := {text for query in asked for text in relevant[query]} - texts.keys():
        raise InputError(
            f"{qrels}: document {min(unknown)!r} is not in the corpus",
            f"{len(unknown):,} of the relevant documents are missing",
        )
    names, ids = (f"ndcg@{DEPTH}", f"recall@{DEEP}", f"mrr@{DEPTH}"), [*texts]
    results = []
    for judge in judges:
        asking = judge.vectors([*asked.values()], QUERY_PROMPTS)
        search = Nearest(asking, DEEP + 1, dot=judge.by_dot)
        vectors = judge.vectors([*texts.values()], DOCUMENT_PROMPTS)
        for start in range(0, len(vectors), BLOCK):
            search.add(vectors[start : start + BLOCK])
        values = []
        for query, matches in zip(asked, search.matches(), strict=True):
            documents = [ids[match.row] for match in matches if ids[match.row] != query]
            values.append(search_scores(documents[:DEEP], relevant[query]))
        predictions = MeanPredictions(names, np.array(values))
        results.append(Judged("retrieval", len(asked), predictions))
    return results


def judge_all(
    judges: Sequence[Judge],
    readers: Sequence[Reader],
    qrels: str | None = None,
    task: str | None = None,
    names: FieldNames = USUAL,
) -> list[Judged]:
    """Return the predictions of each model.

    They are for the examples of a reader; with judgements (``qrels``), for the queries of one
    reader in the texts of another.
    """
    if qrels is not None:
        queries, corpus = readers
        return judged_search(judges, queries, corpus, qrels)
    (reader,) = readers
    extra = sorted({field for judge in judges for field in judge.extra_fields})
    examples = read_examples(reader, task, extra, names)
    return [judge.judge(examples) for judge in judges]


# --- the report ---

DRAWS, WORK = 1000, 20_000_000  # samples, and examples in all of them at most
LEAST = 200  # samples all the same
EDGES = (0.025, 0.975)
# Examples below which the bootstrap is too narrow: where nine of ten cases are right, its interval
# of their share contains 0.9 in 95 % of the draws of 30 examples, in 87 % of those of 20, in 65 %
# of those of 10.
FEW = 30
Z = 1.959964  # standard deviations around the mean of a normal distribution that hold 95 %


def doubt(judged: Judged, *, compared: bool = False) -> str:
    """Return a warning about bootstrapped intervals of few examples, or an empty string.

    Intervals of the difference to a ``compared`` model are all bootstrapped.
    """
    shares = judged.predictions.SHARES
    names = [name for name in judged.predictions.metrics() if name not in shares]
    names += ["differences"] if compared else []
    if judged.n >= FEW or not names:
        return ""
    listed = ", ".join(names)
    return f"fewer than {FEW} examples ({judged.n}): intervals of {listed} may be too narrow"


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


def report(judged: Judged, other: Judged | None = None) -> dict[str, Any]:
    """Return the metrics of examples; of two models also the other's, and how much better."""
    ours, count = judged.predictions.metrics, judged.n
    fields = {"task": judged.task, "n": count, **ours()}
    fields["intervals"] = intervals(judged.predictions, count)
    fields |= judged.details
    if other:
        theirs = other.predictions.metrics

        def differences(rows: Rows = ALL) -> dict[str, float]:
            before, after = ours(rows), theirs(rows)
            return {name: after[name] - before[name] for name in before}

        fields["compare"] = theirs() | {
            "differences": differences(),
            "intervals": bootstrap_intervals(differences, count),
        }
    return rounded(fields)
