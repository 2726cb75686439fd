"""Which of several continuations fits a text best. Source: BERT, section 4.4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np

from bertcli.embedding.sentence_modules import softmax
from bertcli.errors import InputError
from bertcli.records.batch import record_windows
from bertcli.records.record import Record
from bertcli.tasks.head import FIRST, HeadTask
from bertcli.tasks.results import Result
from bertcli.tokenizing.batch import Encoded
from bertcli.tokenizing.run import TokenizeRun

CHOICES = "choices"  # the field of a record with its choices


@dataclass(frozen=True)
class Chooser(HeadTask):
    """A chooser that is ready to run. Records are prompts. Source: BERT, section 4.4.

    The ``choices`` are given, or stand in an extra field of each record.
    """

    architecture: ClassVar[str] = "BertForMultipleChoice"

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
        layout = self.layout
        tokenizer = self.head.tokenizer
        tally = run.tally
        reader = run.reader
        first = run.start
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
