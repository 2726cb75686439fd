"""The answer to a question as a span of its context: Section 4.2 and 4.3 of the paper.

Results are those of transformers' question-answering pipeline, with its windows: 384 tokens, of
which neighbours share 128.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby

from bertcli.errors import InputError
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tasks.head import Head, Stream, streamed, token_logits
from bertcli.tasks.results import Result
from bertcli.tasks.spans import NONE, Choosing
from bertcli.tokenizing.columns import Encoded, Layout

COLUMNS = ("offset_mapping", "word_ids", "sequence_ids")
WINDOW, SHARED = 384, 128  # tokens


@dataclass(frozen=True)
class AnswerTask:
    """A reader of contexts that is ready to run. Records are questions, their pairs contexts.

    A ``question`` that is given is asked of every record, which is a context then; with a
    ``context`` records are questions about it.
    """

    head: Head
    choosing: Choosing = field(default_factory=Choosing)
    question: str | None = None
    context: str | None = None

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over questions and contexts. InputError for one without the other."""
        blank = {"answers": [NONE]} if self.choosing.top_k > 1 else NONE
        prepare, ask = self._prepare, self._asked
        return streamed(self.head, reader, self.layout, self.judge, blank, prepare=prepare, ask=ask)

    @property
    def layout(self) -> Layout:
        """How a question and its context become tokens: in windows over the context."""
        settings = self.head.settings
        length = settings.max_length or min(self.head.max_length, WINDOW)
        return in_windows(self.head.layout(*COLUMNS), length, settings.stride)

    def _prepare(self, record: Record) -> Record:
        if self.question is not None:
            return record._replace(text=self.question, pair=record.text)
        return record if self.context is None else record._replace(pair=self.context)

    def _asked(self, item: Encoded) -> Encoded:
        """Return an item that has its question and context again: a Run gives what was read."""
        record = self._prepare(item.record)
        if record.pair is None:
            raise InputError(
                f"{record.where}: no context",
                "give --context, or records with the fields question and context",
            )
        return item._replace(record=record)

    def judge(self, batch: list[Encoded]) -> list[Result]:
        """Return the answers to questions that are tokenized, of all their windows."""
        logits = self.head.outputs(batch, token_logits)
        results = []
        pairs = zip(batch, logits, strict=True)
        for _, windows in groupby(pairs, key=lambda pair: pair[0].sample):
            parts = list(windows)
            found = self.choosing.answers(parts)
            item = parts[0][0]
            alone = found[0] if found else NONE
            fields = {"answers": found} if self.choosing.top_k > 1 else alone
            results.append(Result(item.record, item.sample, fields))
        return results


def in_windows(layout: Layout, length: int, stride: int | None = None) -> Layout:
    """Return a layout of windows over the context, of so many tokens with the question."""
    return replace(
        layout,
        max_length=length,
        truncation="only_second",
        overflowing=True,
        stride=min(length // 2, SHARED) if stride is None else stride,
    )
