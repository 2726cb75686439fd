"""What goes on with a text: whether a sentence follows, which of several continuations fits best.

Source: BERT, section 3.1, Task #2, and section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcli.embedding.sentence_modules import softmax
from bertcli.errors import InputError
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.windows import windows
from bertcli.tasks.head import FIRST, Head, Stream, streamed, text_logits, without
from bertcli.tasks.results import Result
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.run import TokenCounts

BLANK_NEXT = {"is_next": 0.0, "not_next": 0.0}
BLANK = {"best": 0, "choices": [{"choice": "", "score": 0.0}]}
CHOICES = "choices"  # the extra field of a record that holds them


@dataclass(frozen=True)
class ChooseTask:
    """A chooser that is ready to run. Records are prompts.

    The ``choices`` are given, or stand in an extra field of each record.
    """

    head: Head
    field: str = CHOICES
    choices: Sequence[str] = ()

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over prompts. InputError for one without a list of choices."""
        tally = TokenCounts()
        windows = self._windows(reader, tally)
        consumed = frozenset({self.field})
        return Stream(reader, tally, windows, self.head.max_length, blank=BLANK, consumed=consumed)

    def _windows(self, reader: Reader, tally: TokenCounts) -> Iterator[list[Result]]:
        layout, first = self.head.layout(), 0
        for records in windows(reader.blocks(), min(FIRST, self.head.settings.window)):
            numbered = enumerate(records, first)
            asked = reader.collect(numbered, lambda number, record: (number, self._asked(record)))
            first += len(records)
            pairs = [pair for _, several in asked for pair in several]
            tally.literals += self.head.tokenizer.count_literals(pairs)
            batch = self.head.tokenizer.encode_batch(pairs, layout)
            tally.add(batch, self.head.tokenizer.limit)
            tally.records += len(asked) - len(pairs)  # a prompt is one record
            yield self._judge(asked, batch.encoded(layout.columns))

    def _asked(self, record: Record) -> list[Record]:
        """Return a prompt with each of its choices."""
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
        return [record._replace(pair=choice) for choice in choices]

    def _judge(
        self, asked: Sequence[tuple[int, list[Record]]], encoded: list[Encoded]
    ) -> list[Result]:
        logits = self.head.outputs(encoded, text_logits)
        results, at = [], 0
        for number, several in asked:
            stop = at + len(several)
            scores = softmax(np.stack(logits[at:stop]))
            listed: list[dict[str, Any]] = [
                {"choice": record.pair, "score": score}
                for record, score in zip(several, scores.tolist(), strict=True)
            ]
            fields = {"best": int(scores.argmax()), "choices": listed}
            cut = sum(item.cut for item in encoded[at:stop])
            result = Result(several[0]._replace(pair=None), number, fields, cut)
            results.append(without(frozenset({self.field}), result))
            at = stop
        return results


@dataclass(frozen=True)
class NextSentenceTask:
    """A next sentence predictor that is ready to run."""

    head: Head

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the pairs of a reader. InputError for a text without a pair."""
        return streamed(self.head, reader, self.head.layout(), self._judge, BLANK_NEXT, ask=_paired)

    def _judge(self, batch: list[Encoded]) -> list[Result]:
        results = []
        for item, logits in zip(batch, self.head.outputs(batch, text_logits), strict=True):
            follows, random = softmax(logits).tolist()
            fields = {"is_next": follows, "not_next": random}
            results.append(Result(item.record, item.sample, fields, item.cut))
        return results


def _paired(item: Encoded) -> Encoded:
    if item.record.pair is None:
        raise InputError(
            f"{item.record.where}: no second sentence",
            "give two texts, --pairs FILE, or records with a pair field",
        )
    return item
