"""What ends a run that makes vectors, each naming the record. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertcli.errors import InputError, ModelError
from bertcli.tokenizing.columns import Encoded

if TYPE_CHECKING:
    import numpy as np


def refuse_cut(batch: Sequence[Encoded], limit: int) -> None:
    """Raise InputError for a text of which truncation took something away."""
    for item in batch:
        if item.cut:
            raise InputError(
                f"{item.record.where}: {item.length + item.cut} tokens, and {limit} is the limit",
                "--on-truncate warn cuts texts, window encodes all of them",
            )


def refuse_empty(batch: Sequence[Encoded]) -> None:
    """Raise InputError for a text without a token, not even a special one."""
    for item in batch:
        if not item.length:
            raise InputError(
                f"{item.record.where}: has no tokens, so it has no vector",
                "leave out --no-special-tokens, or drop the text",
            )


def refuse_infinite(items: Sequence[Encoded], vectors: np.ndarray) -> None:
    """Raise ModelError for a record whose vectors [n, ...] hold NaN or infinity."""
    import numpy as np

    finite = np.isfinite(vectors).reshape(len(items), -1).all(axis=1)
    if not finite.all():
        record = items[int(finite.argmin())].record
        raise ModelError(
            f"{record.where}: its vector holds NaN or infinity",
            "bertcli inspect --verify checks the weights; float16 overflows, float32 does not",
        )
