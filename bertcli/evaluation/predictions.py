"""What a model says of examples, as numbers that can be compared with the truth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bertcli.checkpoints.scan import bert_folder, is_static, read_config
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.record_vectors import RecordVectors
from bertcli.errors import ModelError
from bertcli.evaluation.answers import AnswerPredictions
from bertcli.evaluation.classes import ClassPredictions, LabelPredictions, per_class
from bertcli.evaluation.entities import TagPredictions
from bertcli.evaluation.scores import ScorePredictions
from bertcli.hub import ModelFolder
from bertcli.inference.progress import Ran
from bertcli.inference.tell import Tell
from bertcli.records.example_forms import CONTRAST
from bertcli.records.examples import Example, Examples
from bertcli.records.records import Record
from bertcli.tasks.answer import AnswerTask
from bertcli.tasks.classify import LIKELY, ClassifyTask
from bertcli.tasks.head import Head, Settings, is_pooled_head
from bertcli.tasks.pooled_head import CLASSIFIER, open_classifier
from bertcli.tasks.tag import TagTask
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.nearest import unit


class ModelPredictions(Protocol):
    """Predictions of n examples beside the truth."""

    def metrics(self, rows: np.ndarray | slice = slice(None)) -> Mapping[str, float]:
        """Return the metrics of some rows, or of all."""


@dataclass(frozen=True)
class Judged:
    """The predictions of a model, and what else is to be said of them."""

    task: str
    predictions: ModelPredictions
    details: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Judge:
    """A model that says something of examples: opened once for one task."""

    folder: ModelFolder
    settings: Settings
    embedder: Callable[[ModelFolder], Embedder]  # how it is opened for vectors
    tell: Tell
    tally: TokenCounts = field(default_factory=TokenCounts)  # of all texts so far

    @property
    def extra_fields(self) -> Collection[str]:
        """The fields of examples with ids that the model needs."""
        if is_static(self.folder.path):
            return ()
        return read_config(bert_folder(self.folder.path)).fields_of_extra.values()

    def judge(self, examples: Examples) -> Judged:
        """Return what the model says of examples; ModelError when it cannot."""
        task, every = examples.form.task, list(examples.examples)
        match task:
            case "classify" | "multilabel":
                return self._labels(task, every)
            case "regress":
                return self._scores(every)
            case "tag":
                return self._tags(every)
            case "answer":
                return self._answers(every)
            case _:
                if examples.form == CONTRAST:
                    raise ModelError(
                        "anchors and positives have no score to compare with",
                        "give text, pair and score, or --queries, --corpus and --qrels",
                    )
                return self._cosines(every)

    def _classifier(self) -> ClassifyTask:
        return ClassifyTask(open_classifier(self.folder, self.settings, self.tell, "evaluate"))

    def _labels(self, task: str, examples: Sequence[Example]) -> Judged:
        model = self._classifier()
        scores = np.stack(self._of_texts(model.head, model.scores, examples, model.head.layout()))
        number = {name: at for at, name in enumerate(model.head.labels)}
        targets = [one.target if task == "multilabel" else [one.target] for one in examples]
        unknown = sum(not number.keys() >= {*labels} for labels in targets)
        said = f"{unknown:,} of {len(examples):,} examples have a label that the model lacks"
        warnings = [said] if unknown else []
        if task == "classify" and len({*map(tuple, targets)}) == 1:
            warnings.append(f"all examples have the label {targets[0][0]!r}: macro F1 says little")
        if task == "multilabel":
            truth = np.zeros(scores.shape, bool)
            for row, labels in enumerate(targets):
                truth[row, [number[name] for name in labels if name in number]] = True
            return Judged(task, LabelPredictions(truth, scores >= LIKELY), {}, warnings)
        classes = np.array([number.get(labels[0], -1) for labels in targets])
        found = ClassPredictions(classes, scores)
        return Judged(task, found, _of_classes(found, model.head.labels), warnings)

    def _scores(self, examples: Sequence[Example]) -> Judged:
        """Return scores of pairs: of a head with one label, or cosines of an embedding model."""
        if not _scores_one(self.folder):
            return self._cosines(examples)
        model = self._classifier()
        said = np.stack(self._of_texts(model.head, model.scores, examples, model.head.layout()))[
            :, 0
        ]
        return Judged("regress", ScorePredictions(_numbers(examples), said))

    def _cosines(self, examples: Sequence[Example]) -> Judged:
        for example in examples:
            if example.record.pair is None:
                raise ModelError(
                    f"{example.record.where}: an embedding model scores pairs, and this is a text",
                    "give pairs, or a model with a head of one score",
                )
        records = [example.record for example in examples]
        texts = [record._replace(pair=None) for record in records]
        pairs = [record._replace(text=record.pair or "", pair=None) for record in records]
        one, other = np.split(unit(self.vectors([*texts, *pairs])), 2)
        return Judged("embed", ScorePredictions(_numbers(examples), (one * other).sum(1)))

    def vectors(self, records: Sequence[Record]) -> np.ndarray:
        """Return the vectors of texts, [n, D]."""
        found = RecordVectors(self.embedder(self.folder), records)
        for step in found:
            if isinstance(step, Ran) and step.warning:
                self.tell.warn(step.warning)
        self.tally.merge(found.tally)
        return found.vectors.astype(np.float64)

    def _head(self, kind: str) -> Head:
        return Head.open(self.folder, kind, self.settings, self.tell)

    def _tags(self, examples: Sequence[Example]) -> Judged:
        model = TagTask(self._head("BertForTokenClassification"))
        said = self._of_texts(model.head, model.word_labels, examples, model.word_layout)
        truth = [example.target for example in examples]
        return Judged("tag", TagPredictions(truth, said))

    def _answers(self, examples: Sequence[Example]) -> Judged:
        model = AnswerTask(self._head("BertForQuestionAnswering"))
        found = self._of_texts(model.head, model.judge, examples, model.layout)
        said = [str(result.fields["answer"]) for result in found]
        return Judged("answer", AnswerPredictions([one.target.text for one in examples], said))

    def _of_texts(
        self,
        head: Any,
        judge: Callable[[list[Encoded]], Sequence[Any]],
        examples: Sequence[Example],
        layout: Layout,
    ) -> list[Any]:
        """Return what is said of each example, window by window."""
        found: list[Any] = []
        size = head.settings.window
        for start in range(0, len(examples), size):
            records = [head.prepare(one.record) for one in examples[start : start + size]]
            items = head.tokenizer.encode(records, layout)
            self.tally.add(items, head.tokenizer.limit)
            found += judge(items)
        return found


def _numbers(examples: Sequence[Example]) -> np.ndarray:
    return np.array([example.target for example in examples], np.float64)


def _scores_one(folder: ModelFolder) -> bool:
    """Tell whether a model has a head with one score."""
    if is_static(folder.path):
        return False
    config = read_config(bert_folder(folder.path))
    headed = is_pooled_head(folder.path) or CLASSIFIER in config.architectures
    return headed and config.num_labels == 1


def _of_classes(found: ClassPredictions, names: Sequence[str]) -> dict[str, Any]:
    """Return the confusion, the numbers of each class, and the calibration."""
    confusion = found.confusion()
    each = per_class(confusion)
    return {
        "labels": list(names),
        "confusion": confusion[: len(names)].tolist(),
        "per_class": {
            name: {metric: values[at].item() for metric, values in each.items()}
            for at, name in enumerate(names)
        },
        "calibration": found.calibration(),
    }
