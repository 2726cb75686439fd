"""Models with a task head, called from Python.

    Classifier.load("sentiment")(["A wonderful film."])      # [{"label": "good", "score": 0.98}]
    Tagger.load("dslim/bert-base-NER")("Angela lives in Berlin.")["entities"]
    Reranker.load("cross-encoder/ms-marco-TinyBERT-L2-v2")("late delivery", texts, top_k=5)

A call gives what the command of the same task writes of each text: a list of rows, or one row for
a single text. It takes the options of the task (top_k, threshold, aggregation and so on), `load`
those of the model (device, dtype, max_length and so on).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertcli.errors import called_from_python
from bertcli.hub import MODEL_FILES, ModelFolder, find_model
from bertcli.inference.compute import options_from
from bertcli.inference.progress import InLog, Tell
from bertcli.records.reader import GivenTexts
from bertcli.records.records import Record
from bertcli.records.source import Source
from bertcli.tasks.answer import AnswerTask
from bertcli.tasks.classify import ClassifyTask, RerankTask, ranked, ranked_row
from bertcli.tasks.continuations import ChooseTask, NextSentenceTask
from bertcli.tasks.fill_mask import FillMaskTask
from bertcli.tasks.head import CLASSIFIER, Head, PooledHead, Settings, open_classifier
from bertcli.tasks.results import row
from bertcli.tasks.tag import TagTask

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger("bertcli")


class TaskModel:
    """A model with a head, ready to judge texts."""

    kind: ClassVar[str] = CLASSIFIER  # the class of its head
    command: ClassVar[str] = "classify"  # for which a classifier is opened
    task: ClassVar[type[Any]]

    def __init__(self, head: Head | PooledHead) -> None:
        self.head: Any = head

    @classmethod
    @called_from_python()
    def load(
        cls, name: str | Path, *, revision: str | None = None, offline: bool = False, **options: Any
    ) -> Self:
        """Load a model: a name as in `find_model`, or a folder; ``options`` are `Settings`."""
        settings, tell = options_from(Settings, options), InLog(LOG)
        folder = find_model(os.fspath(name), files=MODEL_FILES, revision=revision, offline=offline)
        return cls.open(folder, settings, tell)

    @classmethod
    def open(cls, folder: ModelFolder, settings: Settings, tell: Tell) -> Self:
        """Open a model in a folder."""
        if cls.kind == CLASSIFIER:
            return cls(open_classifier(folder, settings, tell, cls.command))
        return cls(Head.open(folder, cls.kind, settings, tell))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.head.runtime.spec.folder)!r})"

    @called_from_python()
    def __call__(self, texts: str | Record | Iterable[Any], **options: Any) -> Any:
        """Return the row of each text, or that of a single one; texts as in `Embedder.encode`."""
        reader = GivenTexts(texts, Source())
        stream = self.task_of(options).stream(reader)
        rows = [row(result) for window in stream for result in window]
        return rows[0] if reader.alone else rows

    def task_of(self, options: dict[str, Any]) -> Any:
        """Return the task with these options, ready to run."""
        return options_from(self.task, options, head=self.head)


class Classifier(TaskModel):
    """Texts or pairs to classes, or to one score."""

    task = ClassifyTask


class Reranker(TaskModel):
    """A cross-encoder: texts in the order of how relevant they are to a query."""

    command = "rerank"

    @called_from_python()
    def __call__(  # type: ignore[override]
        self, query: str, texts: Iterable[Any], top_k: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of texts, the most relevant first."""
        stream = RerankTask(self.head, query).stream(GivenTexts(texts, Source()))
        return [ranked_row(result, flat=False) for result in ranked(stream, top_k)]


class Tagger(TaskModel):
    """Texts to entities."""

    kind = "BertForTokenClassification"
    task = TagTask


class MaskFiller(TaskModel):
    """Texts with masks to the words that were there."""

    kind = "BertForMaskedLM"
    task = FillMaskTask


class NextSentencePredictor(TaskModel):
    """Pairs to how likely the second sentence follows the first."""

    kind = "BertForNextSentencePrediction"
    task = NextSentenceTask


class Answerer(TaskModel):
    """Pairs of a question and a context to answers; or contexts, with ``question``."""

    kind = "BertForQuestionAnswering"
    task = AnswerTask


class Chooser(TaskModel):
    """Prompts to the best of several ``choices``."""

    kind = "BertForMultipleChoice"
    task = ChooseTask
