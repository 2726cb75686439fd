"""Which of several continuations fits a prompt best: Section 4.4 of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcli.errors import InputError
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.windows import windows
from bertcli.tasks.head import FIRST, Head, Stream, text_logits
from bertcli.tasks.results import Result
from bertcli.tasks.scores import softmax
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.run import TokenCounts

BLANK = {"best": 0, "choices": [{"choice": "", "score": 0.0}]}
CHOICES = "choices"  # the extra field of a record that holds them


@dataclass(frozen=True)
class ChooseTask:
    """A chooser that is ready to run. Records are prompts.

    The choices are those ``given``, or stand in an extra field of each record.
    """

    head: Head
    field: str = CHOICES
    given: tuple[str, ...] = ()

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
            encoded = self.head.tokenizer.encode(pairs, layout)
            tally.add(encoded, self.head.tokenizer.limit)
            tally.records += len(asked) - len(pairs)  # a prompt is one record
            yield self._judge(asked, encoded)

    def _asked(self, record: Record) -> list[Record]:
        """Return a prompt with each of its choices."""
        choices = list(self.given) or (record.extra or {}).get(self.field)
        if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
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
            scores = softmax(np.stack(logits[at:stop])).tolist()
            cut = sum(item.cut for item in encoded[at:stop])
            results.append(self._result(number, several, scores, cut))
            at = stop
        return results

    def _result(
        self, number: int, several: Sequence[Record], scores: list[float], cut: int
    ) -> Result:
        best = max(range(len(scores)), key=scores.__getitem__)
        listed: list[dict[str, Any]] = [
            {"choice": record.pair, "score": score}
            for record, score in zip(several, scores, strict=True)
        ]
        fields = {"best": best, "choices": listed}
        record = several[0]
        extra = {name: it for name, it in (record.extra or {}).items() if name != self.field}
        return Result(record._replace(pair=None, extra=extra or None), number, fields, cut)
