"""Multiple choice: the continuation that fits a prompt best. Source: BERT, section 4.4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertcli.errors import InputError
from bertcli.models.activations import softmax
from bertcli.records.record import Record
from bertcli.tasks.several_texts import SeveralTextsTask
from bertcli.tokenizing.batch import Encoded

CHOICES = "choices"  # the field of a record with its choices


@dataclass(frozen=True)
class Chooser(SeveralTextsTask):
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

    def texts_of(self, record: Record) -> list[Record]:
        """Return a prompt with each choice. Raises InputError for one without a list of choices."""
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

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the scores of the choices, and the index of the best."""
        scores = softmax(np.stack(outputs))
        choices = [
            {"choice": item.record.pair, "score": score}
            for item, score in zip(items, scores.tolist(), strict=True)
        ]
        return {"best": int(scores.argmax()), "choices": choices}
