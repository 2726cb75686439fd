"""Next sentence prediction. Source: BERT, section 3.1, Task #2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertcli.errors import InputError, option
from bertcli.models.activations import softmax
from bertcli.tasks.head import HeadTask
from bertcli.tokenizing.batch import Encoded


@dataclass(frozen=True)
class NextSentencePredictor(HeadTask):
    """A next sentence predictor that is ready to run. Source: BERT, section 3.1, Task #2."""

    architecture: ClassVar[str] = "BertForNextSentencePrediction"

    @property
    def blank(self) -> dict[str, Any]:
        """An example result."""
        return {"is_next": 0.0, "not_next": 0.0}

    def ask(self, item: Encoded) -> Encoded:
        """Return the item. Raises InputError for a text without a pair."""
        if item.record.pair is None:
            raise InputError(
                f"{item.record.where}: no second sentence",
                f"give two texts, {option('pairs')} FILE, or records with a pair field",
            )
        return item

    def fields(self, items: Sequence[Encoded], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
        """Return the probabilities that the second sentence follows the first, and that not."""
        return dict(zip(self.blank, softmax(outputs[0]).tolist(), strict=True))
