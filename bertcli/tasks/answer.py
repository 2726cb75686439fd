"""The answer to a question as a span of its context: Section 4.2 and 4.3 of the paper.

Results are those of transformers' question-answering pipeline, with its windows: 384 tokens, of
which neighbours share 128. The softmax is over the context and [CLS], which stands for "no answer".
A span scores the product of its start and its end, grows to whole words, and adds to an equal
answer found elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bertcli.embedding.sentence_modules import softmax
from bertcli.errors import InputError, option
from bertcli.records.record import Record
from bertcli.tasks.head import HeadTask
from bertcli.tokenizing.batch import Encoded, Layout, sequence_span

COLUMNS = ("offset_mapping", "word_ids", "sequence_ids")
WINDOW, SHARED = 384, 128  # tokens
Window: TypeAlias = tuple[Encoded, np.ndarray]  # the tokens of a text and their logits, [L, k]
NONE = {"answer": "", "score": 0.0, "start": 0, "end": 0}


def best_answers(
    windows: Iterable[Window],
    top_k: int = 1,
    max_answer_length: int = 15,
    *,
    no_answer: bool = False,
) -> list[dict[str, Any]]:
    """Return the best answers in the windows of one context, from their logits [L, 2].

    With ``no_answer`` there may be none.
    """
    answers: dict[str, dict[str, Any]] = {}
    nothing = 1.0
    for item, logits in windows:
        offsets, words = item.columns["offset_mapping"], item.columns["word_ids"]
        context, stop = sequence_span(item.columns["sequence_ids"], 1)
        allowed = np.zeros(len(logits), dtype=bool)
        allowed[0] = allowed[context:stop] = True
        start, end = softmax(np.where(allowed, logits.T, -np.inf))
        nothing = min(nothing, float(start[0] * end[0]))
        start[0] = end[0] = 0.0
        scores = np.tril(np.triu(np.outer(start, end)), max_answer_length - 1)
        spans = np.argwhere(scores)  # the others are impossible
        likely = scores[tuple(spans.T)]
        # spans that become equal when they grow to words leave room for others
        best = np.argsort(-likely, kind="stable")[: 2 * top_k + 10]
        for score, (first, last) in zip(likely[best].tolist(), spans[best].tolist(), strict=True):
            while first > context and words[first - 1] == words[first]:
                first -= 1
            while last + 1 < stop and words[last + 1] == words[last]:
                last += 1
            begin, behind = offsets[first][0], offsets[last][1]
            text = str(item.record.pair)[begin:behind]
            answer = {"answer": text, "score": 0.0, "start": begin, "end": behind}
            answers.setdefault(text.lower(), answer)["score"] += score
    none = [{**NONE, "score": nothing}] if no_answer else []
    return sorted([*answers.values(), *none], key=lambda answer: -answer["score"])[:top_k]


@dataclass(frozen=True)
class Answerer(HeadTask):
    """A reader of contexts that is ready to run. Records are questions, their pairs contexts.

    With a ``context`` records are questions about it; else a ``question`` that is given is asked
    of every record, which is a context then.
    """

    kind: ClassVar[str] = "BertForQuestionAnswering"

    top_k: int = 1  # how many answers are given
    max_answer_length: int = 15  # tokens
    no_answer: bool = False  # whether there may be none
    question: str | None = None
    context: str | None = None

    @property
    def blank(self) -> dict[str, Any]:
        """A result as an example."""
        return {"answers": [NONE]} if self.top_k > 1 else NONE

    @property
    def layout(self) -> Layout:
        """How a question and its context become tokens: in windows over the context."""
        settings = self.head.settings
        return in_windows(self.head.layout(), settings.max_length, settings.stride)

    def prepare(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return records with their question and context."""
        if self.context is not None:
            return [row._replace(pair=self.context) for row in records]
        if self.question is not None:
            return [row._replace(text=self.question, pair=row.text) for row in records]
        return records

    def ask(self, item: Encoded) -> Encoded:
        """Return an item that has its question and context again: a run gives what was read.

        InputError for one without the other.
        """
        (record,) = self.prepare([item.record])
        if record.pair is None:
            raise InputError(
                f"{record.where}: no context",
                f"give {option('context')}, or records with the fields question and context",
            )
        return item._replace(record=record)

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the best answer to a question, or answers, of all its windows."""
        windows = zip(items, outputs, strict=True)
        answers = best_answers(
            windows, self.top_k, self.max_answer_length, no_answer=self.no_answer
        )
        if self.top_k > 1:
            return {"answers": answers}
        return answers[0] if answers else NONE


def in_windows(layout: Layout, asked: int | None, stride: int | None = None) -> Layout:
    """Return a layout of windows over the context, by default of `WINDOW` tokens at most."""
    length = asked or min(layout.max_length or WINDOW, WINDOW)
    return replace(
        layout,
        columns=(*layout.columns, *COLUMNS),
        max_length=length,
        truncation="only_second",
        overflowing=True,
        stride=min(length // 2, SHARED) if stride is None else stride,
    )
