"""Report on a file of vectors: shapes, types, norms, NaN and infinity, and its manifest.

    inspect_file(Path("out.npy")).arrays[0]["norm"]   # {"min": 1.0, "mean": 1.0, "max": 1.0}

A file (NPY, NPZ, safetensors, JSON lines, CSV, Parquet) is read once, in blocks: NumPy arrays
[rows, width] of at most a few megabytes. Memory does not depend on the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from bertcli.errors import InputError
from bertcli.formats.arrays import UNREADABLE
from bertcli.formats.number_fields import NumberBlock, NumberFields
from bertcli.formats.registry import FORMATS, VECTORS
from bertcli.formats.safetensors import AGAIN
from bertcli.io.paths import manifest_beside
from bertcli.io.streams import PACKED, suffix_of, unreadable
from bertcli.io.typed_json import is_regular, read_object


@dataclass
class FileReport:
    """The report of `bertcli inspect` about a file of vectors."""

    file: Path
    format: str
    bytes: int
    records: int | None = None
    fields: dict[str, str] = field(default_factory=dict)  # field of a record -> its type
    arrays: list[dict[str, Any]] = field(default_factory=list)
    manifest: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """True if all numbers are finite."""
        return not any(array["nan"] or array["inf"] for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**vars(self), "file": str(self.file)}


# --- the report ---

SUFFIXES = {  # suffix of a file of vectors -> file format
    suffix: entry
    for entry in FORMATS.values()
    for suffix in entry.suffixes
    if entry.name in VECTORS
}
FILE_SUFFIXES = (*SUFFIXES, *PACKED)


class ArrayStatistics:
    """Counts of the numbers of an array, and statistics of the norms of its rows.

    Norms that are not finite are left out.
    """

    def __init__(self, first: NumberBlock) -> None:
        self.first = first
        self.count = self.nan = self.inf = self.rows = 0
        self.widths: set[int] = set()
        self.norms = 0  # number of finite norms; below, their sum, minimum and maximum
        self.total = 0.0
        self.least = inf
        self.largest = 0.0

    def add(self, block: Any) -> None:
        """Add a NumPy array [rows, width]."""
        import numpy

        self.rows += len(block)
        self.widths.add(block.shape[1])
        self.count += block.size
        with numpy.errstate(all="ignore"):  # NaN and infinity in files are counted
            values = block.astype(numpy.float64)
            self.nan += int(numpy.isnan(values).sum())
            self.inf += int(numpy.isinf(values).sum())
            if not self.first.has_vectors or not block.size:
                return
            norms = numpy.linalg.norm(values, axis=1)
            norms = norms[numpy.isfinite(norms)]
            self.norms += len(norms)
            self.total += float(norms.sum())
            self.least = float(norms.min(initial=self.least))
            self.largest = float(norms.max(initial=self.largest))

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON values; the width of rows that differ is "min..max"."""
        widths = sorted(self.widths)
        width: int | str = widths[0] if widths else 0
        if len(widths) > 1:
            width = f"{widths[0]}..{widths[-1]}"
        norm = None
        if self.norms:
            norm = {"min": self.least, "mean": self.total / self.norms, "max": self.largest}
        return {
            "name": self.first.name,
            "dtype": self.first.dtype,
            "shape": [self.rows, width] if self.first.shape is None else self.first.shape,
            "numbers": self.count,
            "nan": self.nan,
            "inf": self.inf,
            "norm": norm,
        }


def inspect_file(path: Path) -> FileReport:
    """Return the report on a file of vectors, which is read to its end.

    Raises InputError for a missing, empty or damaged file, or one of another format.
    """
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown format", f"known: {', '.join(SUFFIXES)}")
    file_format = SUFFIXES[suffix]
    contents = NumberFields(path, file_format)
    statistics: dict[str, ArrayStatistics] = {}
    try:
        if not is_regular(path, InputError, "check the path"):
            raise InputError(f"{path}: file not found", "check the path")
        report = FileReport(path, suffix[1:], path.stat().st_size)
        if report.bytes == 0 and not (file_format.is_json and manifest_beside(path).exists()):
            raise InputError(f"{path}: the file is empty", AGAIN)
        for block in contents.blocks():
            array = statistics.setdefault(block.name, ArrayStatistics(block))
            if block.numbers is not None:
                array.add(block.numbers)
    except OSError as failed:
        raise unreadable(str(path), failed) from None
    except UNREADABLE as broken:
        raise InputError(f"{path}: broken or truncated: {broken}", AGAIN) from None
    report.records = contents.records
    report.fields = contents.fields
    report.arrays = [array.to_json() for array in statistics.values()]
    report.warnings += chain(*map(_concerns, report.arrays))
    try:
        report.manifest = dict(read_object(manifest_beside(path), InputError)) or None
    except InputError as broken:
        report.warnings.append(str(broken))
    return report


def _concerns(array: Mapping[str, Any]) -> Iterator[str]:
    name = f"{array['name']}: " if array["name"] else ""
    for kind, label in (("nan", "NaN"), ("inf", "infinite")):
        if array[kind]:
            yield f"{name}{array[kind]:,} of {array['numbers']:,} numbers are {label}"
    if array["norm"] and array["norm"]["min"] == 0:
        yield f"{name}some vectors have length 0"
