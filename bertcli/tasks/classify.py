"""What one vector of a text or pair says: its class, how relevant, what follows, what fits best.

Scores are those of transformers' text-classification pipeline; of a model with one label, those of
sentence-transformers' CrossEncoder, which asks the folder for its activation. Such a model sorts
texts by how relevant they are to a query:

best = ranked(Reranker(head, query="late delivery").stream(reader), top_k=10)
best[0].fields["score"]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from itertools import chain, count
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.options import CONFIG
from bertcli.embedding.sentence_modules import ACTIVATIONS, softmax
from bertcli.engines.runtime import refuse_extra
from bertcli.errors import LOG, InputError, ModelError, option
from bertcli.formats.tables import rounded
from bertcli.io.typed_json import JsonObject
from bertcli.records.batch import record_windows
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts
from bertcli.records.record import Record
from bertcli.tasks.head import FIRST, HeadTask
from bertcli.tasks.results import Result
from bertcli.tokenizing.batch import Encoded
from bertcli.tokenizing.run import TokenizeRun

SEVERAL_LABELS = "multi_label_classification"  # the problem_type of config.json
LIKELY = 0.5  # score from which a label of many that may hold together is given
SCORES = {**ACTIVATIONS, "Softmax": softmax}  # what makes scores of logits
BLANK = {"label": "", "score": 0.0}
BLANK_HIT = {"row": 0, "id": 0, "score": 0.0, "text": ""}


@dataclass(frozen=True)
class Classifier(HeadTask):
    """A classifier that is ready to run.

    It gives the best label, the best ``top_k``, or those from ``threshold`` on.
    """

    top_k: int | None = None
    threshold: float | None = None
    all_scores: bool = False
    logits: bool = False

    # What makes a score of the logit of a regression whose folder names no activation: nothing in
    # transformers' pipeline.
    regression: ClassVar[str] = "Identity"

    @cached_property
    def function(self) -> str:
        """What makes scores of logits, one of `SCORES`."""
        if self.logits:
            return "Identity"
        has_one_label = len(self.head.labels) == 1
        activation = self._named_activation
        if has_one_label and activation is not None:
            name = activation.rpartition(".")[2]
            if name in ACTIVATIONS:
                return name
            LOG.warn(
                f"the activation {activation} named in the model's folder is unknown; "
                "sigmoid is used"
            )
            return "Sigmoid"
        problem = self.head.runtime.config.problem_type
        if problem == "regression":
            return self.regression
        if has_one_label or problem == SEVERAL_LABELS:
            return "Sigmoid"
        return "Softmax"

    @property
    def _named_activation(self) -> str | None:
        """The activation in any of the places where cross-encoders ever kept it."""
        key = "activation_fn"
        source = str(self.head.runtime.spec.folder / "config.json")
        config = JsonObject(self.head.runtime.config.other, source)
        inner = config.object("sentence_transformers")
        old = config.text("sbert_ce_default_activation_function")
        return self.head.folder.object(CONFIG).text(key) or inner.text(key) or old

    @property
    def several(self) -> bool:
        """Whether a text has a list of labels: asked for, or because several may hold."""
        if self.top_k is not None or self.threshold is not None:
            return True
        may_hold = self.head.runtime.config.problem_type == SEVERAL_LABELS
        return may_hold and len(self.head.labels) > 1 and not self.all_scores

    @property
    def blank(self) -> dict[str, Any]:
        """A result as an example."""
        labels = len(self.head.labels)
        return {"labels": [BLANK]} if self.several else self._fields(np.zeros(labels))

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the label, the labels or the score of a text."""
        return self._fields(SCORES[self.function](outputs[0]))

    def _fields(self, scores: np.ndarray) -> dict[str, Any]:
        values = scores.tolist()
        labels = self.head.labels
        if len(values) == 1 and not self.several:
            return {"score": values[0]}
        ranked = sorted(zip(values, labels, strict=True), key=lambda pair: -pair[0])
        if self.several:
            least = self.threshold
            if least is None and self.top_k is None:
                least = 0.0 if self.logits else LIKELY
            likely = [pair for pair in ranked if least is None or pair[0] >= least]
            shown = likely[: self.top_k]
            return {"labels": [{"label": label, "score": value} for value, label in shown]}
        fields: dict[str, Any] = {"label": ranked[0][1], "score": ranked[0][0]}
        if self.all_scores:
            fields["scores"] = dict(zip(labels, values, strict=True))
        return fields


@dataclass(frozen=True)
class Reranker(Classifier):
    """A cross-encoder that is ready to score texts for a query, in the order of the input.

    Raises ModelError for a model that gives a pair more than one score, or takes no pairs.
    """

    query: str = ""

    regression: ClassVar[str] = "Sigmoid"  # as CrossEncoder, whatever the problem_type

    def __call__(  # type: ignore[override]
        self, query: str, texts: Iterable[Any], top_k: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of texts, the most relevant first."""
        stream = replace(self, query=query).stream(GivenTexts(texts, Input()))
        return [ranked_row(result, flat=False) for result in ranked(stream, top_k)]

    def __post_init__(self) -> None:
        head = self.head
        refuse_extra(head.runtime.spec.folder, head.runtime.config)
        if (labels := len(head.labels)) != 1:
            raise ModelError(
                f"{head.runtime.spec.folder}: gives a pair {labels} scores, and rerank needs one",
                f"give {option('model')} a cross-encoder",
            )

    def prepare(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return texts as pairs of the query."""
        pairs = [record._replace(text=self.query, pair=record.text) for record in records]
        return super().prepare(pairs)


def ranked(windows: Iterable[Sequence[Result]], top_k: int | None = None) -> list[Result]:
    """Return the results with the highest scores, of all or ``top_k``; equals in their order."""
    results = chain.from_iterable(windows)
    most = sys.maxsize if top_k is None else top_k
    return nlargest(most, results, key=lambda result: result.fields["score"])


def ranked_row(result: Result, *, flat: bool) -> dict[str, Any]:
    """Return what is written of a text; in a table every row says what was truncated."""
    scores = rounded(result.fields)
    row = corpus_row(result)
    key = row if result.record.id is None else result.record.id
    hit = {"row": row, "id": key, **scores, "text": result.record.text}
    if flat or result.cut:
        hit["truncated"] = result.cut
    return hit | {name: it for name, it in (result.record.extra or {}).items() if name != "row"}


def corpus_row(result: Result) -> Any:
    """Return the row of a text in the corpus that was searched, or else among the texts."""
    row = (result.record.extra or {}).get("row", result.sample)
    return int(row) if isinstance(row, str) and row.isdecimal() else row  # text in CSV


# --- what goes on with a text ---

CHOICES = "choices"  # the extra field of a record that holds them


@dataclass(frozen=True)
class NextSentencePredictor(HeadTask):
    """A next sentence predictor that is ready to run. Source: BERT, section 3.1, Task #2."""

    kind: ClassVar[str] = "BertForNextSentencePrediction"

    @property
    def blank(self) -> dict[str, Any]:
        """A result as an example."""
        return {"is_next": 0.0, "not_next": 0.0}

    def ask(self, item: Encoded) -> Encoded:
        """Return a pair. InputError for a text without one."""
        if item.record.pair is None:
            raise InputError(
                f"{item.record.where}: no second sentence",
                f"give two texts, {option('pairs')} FILE, or records with a pair field",
            )
        return item

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return how likely the second sentence follows the first."""
        return dict(zip(self.blank, softmax(outputs[0]).tolist(), strict=True))


@dataclass(frozen=True)
class Chooser(HeadTask):
    """A chooser that is ready to run. Records are prompts. Source: BERT, section 4.4.

    The ``choices`` are given, or stand in an extra field of each record.
    """

    kind: ClassVar[str] = "BertForMultipleChoice"

    field: str = CHOICES
    choices: Sequence[str] = ()

    @property
    def blank(self) -> dict[str, Any]:
        """A result as an example."""
        return {"best": 0, "choices": [{"choice": "", "score": 0.0}]}

    @property
    def consumed(self) -> frozenset[str]:  # type: ignore[override]
        """The field of the choices."""
        return frozenset({self.field})

    def encoded(self, run: TokenizeRun) -> Iterator[Sequence[Encoded]]:
        """Yield prompts, each with each of its choices, as tokens."""
        layout, tokenizer, tally = self.layout, self.head.tokenizer, run.tally
        reader, first = run.reader, run.start
        for records in record_windows(run.blocks(), min(FIRST, self.head.settings.window)):
            asked = reader.collect(self._asked, count(first), records)
            first += len(records)
            run.skipped += len(records) - len(asked)
            pairs = [pair for _, several in asked for pair in several]
            numbers = [number for number, several in asked for _ in several]
            tally.literals += tokenizer.count_literals(pairs)
            batch = replace(tokenizer.encode_records(pairs, layout), samples=numbers)
            tally.add(batch, tokenizer.limit)
            yield batch
            run.finish(first)

    def _asked(self, number: int, record: Record) -> tuple[int, list[Record]]:
        """Return a prompt's number, and it with each of its choices.

        Raises InputError for one without a list of them.
        """
        choices = list(self.choices) or (record.extra or {}).get(self.field)
        if not isinstance(choices, list) or not all(isinstance(text, str) for text in choices):
            raise InputError(
                f"{record.where}: {self.field!r} is not a list of texts",
                'a record is an object like {"prompt": "...", "choices": ["...", "..."]}',
            )
        if len(choices) < 2:
            raise InputError(
                f"{record.where}: at least two choices needed, found {len(choices)}",
                "give more choices",
            )
        return number, [record._replace(pair=choice) for choice in choices]

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return which choice fits each prompt; what is written is the prompt alone."""
        return [
            result._replace(record=result.record._replace(pair=None))
            for result in super().judge(batch)
        ]

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the scores of the choices, and the number of the best."""
        scores = softmax(np.stack(outputs))
        listed = [
            {"choice": item.record.pair, "score": score}
            for item, score in zip(items, scores.tolist(), strict=True)
        ]
        return {"best": int(scores.argmax()), "choices": listed}
