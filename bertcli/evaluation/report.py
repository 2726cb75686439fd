"""The predictions of a model for examples or queries, and the report of their metrics.

Intervals are made by resampling the examples. Source: Efron, Bootstrap Methods, 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import inf, isfinite, log2
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import bert_folder, is_static, read_config
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.errors import InputError, ModelError
from bertcli.evaluation.metrics import (
    ClassPredictions,
    LabelPredictions,
    MeanPredictions,
    Predictions,
    ScorePredictions,
    TagPredictions,
    answer_predictions,
    label_numbers,
)
from bertcli.files.streams import open_bytes
from bertcli.hub import ModelFolder
from bertcli.inference.progress import Ran, Tell
from bertcli.records.examples import CONTRAST, Example, Examples
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.source import Source
from bertcli.tasks.answer import Answerer
from bertcli.tasks.classify import LIKELY, Classifier
from bertcli.tasks.head import (
    CLASSIFIER,
    Head,
    HeadTask,
    Settings,
    is_pooled_head,
    open_classifier,
)
from bertcli.tasks.tag import WordTagger
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.embed_run import RecordVectors
from bertcli.vectors.nearest import Nearest, unit
from bertcli.vectors.search import DOCUMENT, QUERY, prompted


@dataclass(frozen=True)
class Judged:
    """The predictions of a model, with further numbers for the report."""

    task: str
    predictions: Predictions
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Judge:
    """A model whose predictions are compared with examples: opened once for one task."""

    folder: ModelFolder
    settings: Settings
    options: EmbedOptions  # of a model for vectors
    tell: Tell
    tally: TokenCounts = field(default_factory=TokenCounts)  # of all texts so far
    max_length: int | None = None  # of those texts

    @property
    def extra_fields(self) -> Collection[str]:
        """The fields of examples with ids that the model needs."""
        if is_static(self.folder.path):
            return ()
        return read_config(bert_folder(self.folder.path)).fields_of_extra.values()

    def judge(self, examples: Examples) -> Judged:
        """Return the predictions for examples; ModelError when there can be none."""
        task, rows = examples.form.task, examples.examples
        truth = [example.target for example in rows]
        match task:
            case "classify" | "multilabel":
                return self._labels(task, rows)
            case "tag":
                tagger = WordTagger(self._head("BertForTokenClassification"))
                _refuse_other_labels({tag for tags in truth for tag in tags}, tagger.labels)
                results = self._predicted(tagger, tagger.judge, rows)
                tags = [result.fields["tags"] for result in results]
                return Judged(task, TagPredictions(truth, tags))
            case "answer":
                texts = [answer.text for answer in truth]
                head = self._head("BertForQuestionAnswering")
                answering = Answerer(head, no_answer="" in texts)
                results = self._predicted(answering, answering.judge, rows)
                answers = [str(result.fields["answer"]) for result in results]
                return Judged(task, answer_predictions(texts, answers))
        if examples.form == CONTRAST:
            raise ModelError(
                "anchors and positives have no score to compare with",
                "give text, pair and score, or --queries, --corpus and --qrels",
            )
        if task == "regress" and _scores_one(self.folder):
            scores, _ = self._class_scores(rows)
            return Judged(task, ScorePredictions(np.array(truth, np.float64), scores[:, 0]))
        for example in rows:
            if example.record.pair is None:
                raise ModelError(
                    f"{example.record.where}: an embedding model scores pairs, and this is a text",
                    "give pairs, or a model with a head of one score",
                )
        records = [example.record for example in rows]
        sides = [record._replace(pair=None) for record in records]
        sides += [record._replace(text=record.pair or "", pair=None) for record in records]
        left, right = np.split(unit(self.vectors(sides)), 2)
        cosines = (left * right).sum(1)
        return Judged("embed", ScorePredictions(np.array(truth, np.float64), cosines))

    def _class_scores(self, examples: Sequence[Example]) -> tuple[np.ndarray, list[str]]:
        """Return the scores of all labels of each text, [n, k], and the labels."""
        classifier = open_classifier(self.folder, self.settings, self.tell)
        task = Classifier(classifier)
        scores = self._predicted(task, task.scores, examples)
        return np.stack(scores), classifier.labels

    def _labels(self, task: str, examples: Sequence[Example]) -> Judged:
        scores, names = self._class_scores(examples)
        targets = [
            [example.target] if task == "classify" else example.target for example in examples
        ]
        labels = {label for target in targets for label in target}
        numbers = label_numbers(names, labels)
        _refuse_other_labels(labels, numbers)
        lacking = sorted(labels - numbers.keys())
        numbers |= {label: len(names) + place for place, label in enumerate(lacking)}
        if task == "classify":
            classes = np.array([numbers[label] for (label,) in targets])
            predictions = ClassPredictions(classes, scores)
            return Judged(task, predictions, predictions.details([*names, *lacking]))
        truth = np.array([[label in target for label in numbers] for target in targets])
        predicted = np.zeros_like(truth)
        predicted[:, : len(names)] = scores >= LIKELY
        return Judged(task, LabelPredictions(truth, predicted))

    def vectors(self, records: Sequence[Record], prompts: Sequence[str] = ()) -> np.ndarray:
        """Return the vectors of texts, [n, D].

        ``prompts`` are names, of which the first that the model has is used unless one was given.
        """
        embedder = self._embedder
        if self.options.prompt is None and self.options.prompt_name is None:
            embedder = prompted(embedder, prompts)
        run = RecordVectors(embedder, records)
        for step in run:
            if isinstance(step, Ran) and step.warning:
                self.tell.warn(step.warning)
        self.tally.merge(run.tally)
        self.max_length = embedder.max_length
        return run.vectors

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder.open(self.folder, self.options, self.tell)

    def _head(self, kind: str) -> Head:
        return Head.open(self.folder, kind, self.settings, self.tell)

    def _predicted(
        self,
        task: HeadTask,
        predict: Callable[[Sequence[Encoded]], list[Any]],
        examples: Sequence[Example],
    ) -> list[Any]:
        """Return the prediction for each example, computed window by window."""
        self.max_length = task.layout.max_length
        records = [example.record for example in examples]
        parts = task.encoded(Reader(Source()), self.tally, [records])
        return [*chain.from_iterable(map(predict, parts))]


def _refuse_other_labels(labels: Collection[str], names: Collection[str]) -> None:
    """Raise ModelError when no label of the examples is one of the model's."""
    if labels and not {*names} & {*labels}:
        theirs, ours = (", ".join(sorted(group)[:10]) for group in (names, labels))
        raise ModelError(
            f"no label of the examples is one of the model's: {ours}", f"the model has: {theirs}"
        )


def _scores_one(folder: ModelFolder) -> bool:
    """Return whether a model has a head with one score."""
    if is_static(folder.path):
        return False
    config = read_config(bert_folder(folder.path))
    headed = is_pooled_head(folder.path) or CLASSIFIER in config.architectures
    return headed and config.num_labels == 1


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
        return cls(judged, texts, relevant)

    def judge(self, judge: Judge) -> Judged:
        """Return what a model finds."""
        queries = judge.vectors([*self.queries.values()], QUERY)
        corpus = judge.vectors([*self.corpus.values()], DOCUMENT)
        ids = [*self.queries], [*self.corpus]
        relevant = [self.relevant[query] for query in ids[0]]
        values = np.array([*map(search_scores, nearest(queries, corpus, ids), relevant)])
        names = (f"ndcg@{DEPTH}", f"recall@{DEEP}", f"mrr@{DEPTH}")
        return Judged("retrieval", MeanPredictions(names, values))


# --- the report ---

DRAWS, WORK = 1000, 20_000_000  # samples, and examples in all of them at most
LEAST = 200  # samples all the same
SHARE = 0.95


def samples(count: int) -> Iterator[np.ndarray]:
    """Yield the rows of each sample, drawn with replacement, [count]."""
    draw = np.random.default_rng(0)
    for _ in range(max(LEAST, min(DRAWS, WORK // max(count, 1)))):
        yield draw.integers(0, count, count)


def intervals(drawn: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the 95 % interval of each metric, from those of samples."""
    edge = (1 - SHARE) / 2
    edges = edge, 1 - edge
    values = {name: [metrics[name] for metrics in drawn] for name in drawn[0]}
    return {name: np.quantile(numbers, edges).tolist() for name, numbers in values.items()}


def report(judged: Judged, n: int, other: Judged | None = None) -> dict[str, Any]:
    """Return the metrics of n examples; of two models also the other's, and how much better."""
    ours = judged.predictions.metrics
    fields = {
        "task": judged.task,
        "n": n,
        **ours(),
        "intervals": intervals([ours(rows) for rows in samples(n)]),
        **judged.details,
    }
    if other is not None:
        theirs = other.predictions.metrics
        drawn = [_minus(theirs(rows), ours(rows)) for rows in samples(n)]
        differences = _minus(theirs(), ours())
        fields["compare"] = {**theirs(), "differences": differences, "intervals": intervals(drawn)}
    return fields


def _minus(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left[name] - right[name] for name in left}
