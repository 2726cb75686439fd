"""What vectors cannot be written as: told before any is computed, so without NumPy."""

from __future__ import annotations

from bertcli.errors import OutputError, UsageError
from bertcli.vectors.precision import RANGED

STREAMED = ("jsonl", "csv")
WITH_TERMS = ("jsonl", "npz", "parquet")  # formats of sparse vectors


def refuse_dense(form: str) -> None:
    """Raise UsageError for a format that holds no weights of terms."""
    if form not in WITH_TERMS:
        known = ", ".join(WITH_TERMS)
        raise UsageError(
            f"--sparse: weights of terms cannot be written as {form}", f"one of {known}"
        )


def refuse_stream(form: str, precision: str) -> None:
    """Raise OutputError for what is made of all rows together."""
    if form not in STREAMED or precision in RANGED:
        what = form if form not in STREAMED else f"--precision {precision}"
        raise OutputError(f"{what} cannot be streamed", "use -o FILE")
