"""Statistics of vectors that come in blocks."""

from __future__ import annotations

from math import isfinite
from typing import Any


class NumberStatistics:
    """Running counts, extremes and mean of numbers, and the norms of rows.

    A row with NaN or infinity has no norm: it is counted in `not_finite`.
    """

    def __init__(self, *, rows: bool) -> None:
        self.rows = rows  # whether rows are vectors, so that norms mean something
        self.numbers = self.nan = self.inf = 0
        self.low, self.high, self.total = float("inf"), float("-inf"), 0.0
        self.vectors = self.not_finite = 0
        self.norm_low, self.norm_high, self.norm_total = float("inf"), 0.0, 0.0
        self.shortest, self.longest = 0, 0

    def add(self, block: Any) -> None:
        """Add a numpy array [rows, width]."""
        import numpy

        self._count_rows(*block.shape)
        self.numbers += block.size
        if not block.size:
            return
        with numpy.errstate(all="ignore"):  # of numbers from a file, NaN and infinity are counted
            self._add(block.astype(numpy.float64))

    def _add(self, values: Any) -> None:
        import numpy

        finite = numpy.isfinite(values)
        whole = finite.all(axis=1)
        if not whole.all():
            self.nan += int(numpy.isnan(values).sum())
            self.inf += int(numpy.isinf(values).sum())
        kept = values if whole.all() else values[finite]
        if kept.size:
            self.low = min(self.low, float(kept.min()))
            self.high = max(self.high, float(kept.max()))
            self.total += float(kept.sum())
        if self.rows:
            self._norms(values[whole])

    def shape(self) -> list[Any]:
        """Return the shape of the rows seen so far; rows of different lengths have "min..max"."""
        width: Any = self.longest
        if self.shortest != self.longest:
            width = f"{self.shortest}..{self.longest}"
        return [self.vectors, width]

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON values.

        None where there was nothing to measure, or the numbers are too large for a sum.
        """
        finite = self.numbers - self.nan - self.inf
        measured = self.vectors - self.not_finite
        measures = self.rows and measured and self.longest
        norm = {
            "min": self.norm_low,
            "mean": self.norm_total / measured if measured else None,
            "max": self.norm_high,
        }
        return {
            "numbers": self.numbers,
            "nan": self.nan,
            "inf": self.inf,
            "min": self.low if finite else None,
            "mean": self.total / finite if finite and isfinite(self.total) else None,
            "max": self.high if finite else None,
            "vectors": self.vectors if self.rows else None,
            "not_finite": self.not_finite if self.rows else None,
            "norm": norm if measures and isfinite(self.norm_total) else None,
        }

    def _count_rows(self, rows: int, width: int) -> None:
        if rows:
            self.shortest = min(self.shortest, width) if self.vectors else width
            self.longest = max(self.longest, width)
            self.vectors += rows
            self.not_finite += rows  # until their norms are known

    def _norms(self, rows: Any) -> None:
        import numpy

        self.not_finite -= len(rows)
        if len(rows):
            norms = numpy.linalg.norm(rows, axis=1)
            self.norm_low = min(self.norm_low, float(norms.min()))
            self.norm_high = max(self.norm_high, float(norms.max()))
            self.norm_total += float(norms.sum())
