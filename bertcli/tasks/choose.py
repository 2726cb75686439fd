"""Multiple choice: the continuation that fits a prompt best. Source: BERT, section 4.4."""

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
from bertcli.tasks.head import FIRST_WINDOW, HeadTask
from bertcli.tasks.results import Result
from bertcli.tokenizing.batch import Encoded
from bertcli.tokenizing.run import TokenizeRun

CHOICES = "choices"  # the field of a record with its choices


@dataclass(frozen=True)
class Chooser(HeadTask):
    """A chooser that is ready to run. Records are prompts. Source: BERT, section 4.4.

    The ``choices`` are the same for all prompts, or in the ``field`` of each record.
    """

    architecture: ClassVar[str] = "BertForMultipleChoice"

    field: str = CHOICES
    choices: Sequence[str] = ()

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        return {"best": 0, "choices": [{"choice": "", "score": 0.0}]}

    @property
    def consumed(self) -> frozenset[str]:  # type: ignore[override]
        """The field of the choices."""
        return frozenset({self.field})

    def encoded(self, run: TokenizeRun) -> Iterator[Sequence[Encoded]]:
        """Yield the tokens of pairs of a prompt and one of its choices, for several prompts."""
        layout = self.layout
        tokenizer = self.head.tokenizer
        tally = run.tally
        reader = run.reader
        start = run.start
        for records in record_windows(run.blocks(), min(FIRST_WINDOW, self.head.settings.window)):
            prompts = reader.collect(self._pairs, count(start), records)
            start += len(records)
            run.skipped += len(records) - len(prompts)
            pairs: list[Record] = []
            samples: list[int] = []
            for sample, pairs_of_prompt in prompts:
                pairs += pairs_of_prompt
                samples += [sample] * len(pairs_of_prompt)
            tally.literals += tokenizer.count_literals(pairs)
            batch = replace(tokenizer.encode_records(pairs, layout), samples=samples)
            tally.add(batch, tokenizer.limit)
            yield batch
            run.finish(start)

    def _pairs(self, sample: int, record: Record) -> tuple[int, list[Record]]:
        """Return the index of a prompt in the run, and its pairs with each choice.

        Raises InputError for a prompt without a list of choices.
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
        return sample, [record._replace(pair=choice) for choice in choices]

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return the result of each prompt, whose record is the prompt without a choice."""
        return [
            result._replace(record=result.record._replace(pair=None))
            for result in super().judge(batch)
        ]

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the scores of the choices, and the index of the best."""
        scores = softmax(np.stack(outputs))
        choices = [
            {"choice": item.record.pair, "score": score}
            for item, score in zip(items, scores.tolist(), strict=True)
        ]
        return {"best": int(scores.argmax()), "choices": choices}
