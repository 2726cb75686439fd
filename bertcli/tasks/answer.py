"""Answers to questions as spans of their context: Section 4.2 and 4.3 of the paper.

Results equal those of transformers' question-answering pipeline, with its windows: 384 tokens,
overlapping by 128. The softmax is over the context and [CLS], which represents "no answer". The
score of a span is the product of its start and end scores. Spans are extended to complete words,
and the scores of equal answers are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bertcli.errors import InputError, option
from bertcli.io.typed_json import JsonObject
from bertcli.models.activations import softmax
from bertcli.models.config import BertConfig
from bertcli.records.record import Record
from bertcli.tasks.head import HeadTask
from bertcli.tasks.labels import NUMBER
from bertcli.tasks.learning import (
    Evaluation,
    Example,
    ExampleFields,
    TokenLearningTask,
    example_records,
)
from bertcli.tasks.metrics import MeanPredictions, answer_predictions
from bertcli.tokenizing.batch import Encoded, Layout, sequence_span

if TYPE_CHECKING:
    from torch import Tensor

    from bertcli.tasks.evaluated_model import EvaluatedModel
    from bertcli.tasks.learning import Window

COLUMNS = ("offset_mapping", "word_ids", "sequence_ids")
WINDOW_TOKENS = 384
STRIDE_TOKENS = 128
NO_ANSWER = {"answer": "", "score": 0.0, "start": 0, "end": 0}


def best_answers(
    windows: Iterable[Window],
    top_k: int = 1,
    max_answer_length: int = 15,
    *,
    no_answer: bool = False,
) -> list[dict[str, Any]]:
    """Return the best answers in the windows of one context, from their logits [L, 2].

    With ``no_answer``, the empty answer is a candidate.
    """
    answers: dict[str, dict[str, Any]] = {}
    no_answer_score = 1.0
    for item, logits in windows:
        offsets = item.columns["offset_mapping"]
        words = item.columns["word_ids"]
        context_start, context_stop = sequence_span(item.columns["sequence_ids"], 1)
        allowed = np.zeros(len(logits), dtype=bool)
        allowed[0] = True  # [CLS]
        allowed[context_start:context_stop] = True
        start, end = softmax(np.where(allowed, logits.T, -np.inf))
        no_answer_score = min(no_answer_score, float(start[0] * end[0]))
        start[0] = 0.0
        end[0] = 0.0
        scores = np.tril(np.triu(np.outer(start, end)), max_answer_length - 1)
        spans = np.argwhere(scores)  # other spans are impossible
        likely = scores[tuple(spans.T)]
        # Extending spans to words may make them equal, so more than top_k are taken.
        best = np.argsort(-likely, kind="stable")[: 2 * top_k + 10]
        for score, (first, last) in zip(likely[best].tolist(), spans[best].tolist(), strict=True):
            while first > context_start and words[first - 1] == words[first]:
                first -= 1
            while last + 1 < context_stop and words[last + 1] == words[last]:
                last += 1
            text_start = offsets[first][0]
            text_end = offsets[last][1]
            text = str(item.record.pair)[text_start:text_end]
            answer = {"answer": text, "score": 0.0, "start": text_start, "end": text_end}
            answers.setdefault(text.lower(), answer)["score"] += score
    candidates = list(answers.values())
    if no_answer:
        candidates.append({**NO_ANSWER, "score": no_answer_score})
    return sorted(candidates, key=lambda answer: -answer["score"])[:top_k]


@dataclass(frozen=True)
class Answerer(HeadTask):
    """A reader of contexts that is ready to run. Records are questions, paired with contexts.

    With ``context``, records are questions about it; with ``question``, records are contexts and
    the question applies to each.
    """

    architecture: ClassVar[str] = "BertForQuestionAnswering"

    top_k: int = 1  # maximum number of answers
    max_answer_length: int = 15  # in tokens
    no_answer: bool = False  # True: the answer may be empty
    question: str | None = None
    context: str | None = None

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        return {"answers": [NO_ANSWER]} if self.top_k > 1 else NO_ANSWER

    @property
    def layout(self) -> Layout:
        """The layout of a question and its context: windows over the context."""
        settings = self.head.settings
        return context_windows(self.head.layout(), settings.max_length, settings.stride)

    def prepare(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records as pairs of question and context."""
        if self.context is not None:
            return [row._replace(pair=self.context) for row in records]
        if self.question is not None:
            return [row._replace(text=self.question, pair=row.text) for row in records]
        return records

    def ask(self, item: Encoded) -> Encoded:
        """Return the item with its question and context, because a run yields records as read.

        Raises InputError if there is no context.
        """
        (record,) = self.prepare([item.record])
        if record.pair is None:
            raise InputError(
                f"{record.where}: no context",
                f"give {option('context')}, or records with the fields question and context",
            )
        return item._replace(record=record)

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the best answer, or answers, to a question from all its windows."""
        windows = zip(items, outputs, strict=True)
        answers = best_answers(
            windows, self.top_k, self.max_answer_length, no_answer=self.no_answer
        )
        if self.top_k > 1:
            return {"answers": answers}
        return answers[0] if answers else NO_ANSWER


def context_windows(layout: Layout, max_length: int | None, stride: int | None = None) -> Layout:
    """Return a layout of windows over the context, by default of at most `WINDOW_TOKENS`."""
    length = max_length or min(layout.max_length or WINDOW_TOKENS, WINDOW_TOKENS)
    return replace(
        layout,
        columns=(*layout.columns, *COLUMNS),
        max_length=length,
        truncation="only_second",
        overflowing=True,
        stride=min(length // 2, STRIDE_TOKENS) if stride is None else stride,
    )


# --- the learning task ---


class AnswerSpan(NamedTuple):
    """An answer, and the offset of its first character in the context; None without an answer."""

    text: str
    start: int | None


class AnsweringTask(TokenLearningTask):
    """Learns the first and the last token of answers. The loss is the cross-entropy of both.

    Source: transformers' BertForQuestionAnswering. In a window without the answer, both are the
    first token, [CLS], as in the paper (4.3) and run_squad. The softmax covers only the tokens of
    the window, without padding.
    """

    name = "answer"
    fields = ExampleFields("question", "context", "answer", needs_pair=True)
    architecture = "BertForQuestionAnswering"
    takes_extra_ids = False
    impossible_if_frozen = "learn answers"
    fixed_labels = ("LABEL_0", "LABEL_1")

    def recognises(self, text: Any, label: Any) -> bool:
        """Return True for any value: the name of the question field decides."""
        return True

    def target(self, fields: JsonObject, names: ExampleFields) -> AnswerSpan:
        """Return the answer of an example. Raises InputError unless the context contains it."""
        answer = fields.text(names.target) or ""
        if not answer:
            return AnswerSpan("", None)
        context = str(fields.text(str(names.pair)))
        if fields.get("start") in (None, ""):
            start = context.find(answer)
        else:
            start = int(float(fields.needed("start", NUMBER)))
        if start < 0 or context[start : start + len(answer)] != answer:
            raise fields.bad(names.target, f"a part of the context, at {start}")
        return AnswerSpan(answer, start)

    def split_key(self, example: Example) -> str:
        """Return the context, so that questions about it stay in one split."""
        return str(example.record.pair)

    def keeps_head(self, config: BertConfig, labels: set[str]) -> bool:
        """Return True: all heads for answers have the same two outputs."""
        return True

    def outputs_of_head(self, label_count: int) -> str:
        """Return the plural noun for the outputs of a new head, for a note."""
        return "answers"

    def layout(self, layout: Layout, max_length: int | None) -> Layout:
        """Return a layout of windows over the context."""
        return context_windows(layout, max_length)

    def window_targets(self, windows: Sequence[Encoded], targets: Any) -> np.ndarray:
        """Return the first and the last token of the answer in each window, [n, 2]."""
        return np.array([answer_tokens(window, targets[window.sample]) for window in windows])

    def loss(
        self,
        logits: Tensor,
        targets: Tensor,
        lengths: Sequence[int],
        weights: Tensor | None,
        smoothing: float,
    ) -> Tensor:
        """Return the summed cross-entropy of first and last tokens."""
        import torch
        from torch.nn import functional as F
        from torch.nn.utils.rnn import pad_sequence

        windows = list(logits.split(list(lengths)))
        padded = pad_sequence(windows, batch_first=True, padding_value=-torch.inf)
        return F.cross_entropy(padded, targets, reduction="sum")

    def metric_targets(self, targets: Any, labels: Sequence[str]) -> list[str]:
        """Return the answers; "" for none."""
        return [answer.text for answer in targets]

    def predictions(
        self, targets: Sequence[Any], texts: Sequence[Sequence[Window]], labels: Sequence[str]
    ) -> MeanPredictions:
        """Return the best answers, which may be empty if one of the true answers is empty."""
        predicted = []
        for windows in texts:
            best = best_answers(windows, no_answer="" in targets)
            predicted.append(best[0]["answer"] if best else "")
        return answer_predictions(targets, predicted)

    def evaluate(self, model: EvaluatedModel, examples: Sequence[Example]) -> Evaluation:
        """Return the answers of a model to the questions."""
        targets = [example.target.text for example in examples]
        results, _ = model.predictions(Answerer, example_records(examples), no_answer="" in targets)
        predicted = [str(fields["answer"]) for fields in results]
        return Evaluation(self.name, len(examples), answer_predictions(targets, predicted))


def answer_tokens(window: Encoded, answer: AnswerSpan) -> tuple[int, int]:
    """Return the first and the last token of an answer; 0 and 0 if it is not in the window."""
    if answer.start is None:
        return 0, 0
    end = answer.start + len(answer.text)
    first, stop = sequence_span(window.columns["sequence_ids"], 1)
    offsets = window.columns["offset_mapping"]
    if first == stop or offsets[first][0] > answer.start or offsets[stop - 1][1] < end:
        return 0, 0
    answer_positions = [
        token
        for token in range(first, stop)
        if offsets[token][0] < end and offsets[token][1] > answer.start
    ]
    return (answer_positions[0], answer_positions[-1]) if answer_positions else (0, 0)


ANSWER = AnsweringTask()
