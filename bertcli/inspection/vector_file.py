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
from bertcli.formats.arrays import ARCHIVE_ERRORS
from bertcli.formats.number_fields import NumberBlock, NumberFields
from bertcli.formats.registry import FORMATS, VECTORS
from bertcli.formats.safetensors import GET_AGAIN
from bertcli.io.paths import manifest_beside
from bertcli.io.streams import COMPRESSED_SUFFIXES, suffix_of, unreadable
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

FORMAT_BY_SUFFIX = {
    suffix: file_format
    for file_format in FORMATS.values()
    for suffix in file_format.suffixes
    if file_format.name in VECTORS or file_format.written_as in VECTORS
}
FILE_SUFFIXES = (*FORMAT_BY_SUFFIX, ".tsv", ".txt", *COMPRESSED_SUFFIXES)  # not of models


class ArrayStatistics:
    """Counts of the numbers of an array, and statistics of the norms of its rows.

    Norms that are not finite are left out.
    """

    def __init__(self, first_block: NumberBlock) -> None:
        """Create empty statistics; the first block has the name, dtype and shape of the array."""
        self.first_block = first_block
        self.rows = 0
        self.widths: set[int] = set()
        self.number_count = 0
        self.nan_count = 0
        self.infinity_count = 0
        self.norm_count = 0  # of finite norms
        self.norm_sum = 0.0
        self.min_norm = inf
        self.max_norm = 0.0

    def add(self, rows: Any) -> None:
        """Add a NumPy array [rows, width]."""
        import numpy

        self.rows += len(rows)
        self.widths.add(rows.shape[1])
        self.number_count += rows.size
        with numpy.errstate(all="ignore"):  # NaN and infinity in files are counted
            values = rows.astype(numpy.float64)
            self.nan_count += int(numpy.isnan(values).sum())
            self.infinity_count += int(numpy.isinf(values).sum())
            if not self.first_block.has_vectors or not rows.size:
                return
            norms = numpy.linalg.norm(values, axis=1)
            norms = norms[numpy.isfinite(norms)]
            self.norm_count += len(norms)
            self.norm_sum += float(norms.sum())
            self.min_norm = float(norms.min(initial=self.min_norm))
            self.max_norm = float(norms.max(initial=self.max_norm))

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON values; the width of rows that differ is "min..max"."""
        widths = sorted(self.widths)
        width: int | str = widths[0] if widths else 0
        if len(widths) > 1:
            width = f"{widths[0]}..{widths[-1]}"
        norm = None
        if self.norm_count:
            mean = self.norm_sum / self.norm_count
            norm = {"min": self.min_norm, "mean": mean, "max": self.max_norm}
        shape = self.first_block.shape
        return {
            "name": self.first_block.name,
            "dtype": self.first_block.dtype,
            "shape": [self.rows, width] if shape is None else shape,
            "numbers": self.number_count,
            "nan": self.nan_count,
            "inf": self.infinity_count,
            "norm": norm,
        }


def inspect_file(path: Path) -> FileReport:
    """Return the report on a file of vectors, which is read to its end.

    Raises InputError for a missing, empty or damaged file, or one of another format.
    """
    suffix = suffix_of(path)
    if suffix not in FORMAT_BY_SUFFIX:
        raise InputError(f"{path}: unknown format", f"known: {', '.join(FORMAT_BY_SUFFIX)}")
    file_format = FORMAT_BY_SUFFIX[suffix]
    contents = NumberFields(path, file_format)
    statistics: dict[str, ArrayStatistics] = {}
    try:
        if not is_regular(path, InputError, "check the path"):
            raise InputError(f"{path}: file not found", "check the path")
        report = FileReport(path, suffix[1:], path.stat().st_size)
        if report.bytes == 0 and not (file_format.is_json and manifest_beside(path).exists()):
            raise InputError(f"{path}: the file is empty", GET_AGAIN)
        for block in contents.blocks():
            array = statistics.setdefault(block.name, ArrayStatistics(block))
            if block.numbers is not None:
                array.add(block.numbers)
    except OSError as failed:
        raise unreadable(str(path), failed) from None
    except ARCHIVE_ERRORS as broken:
        raise InputError(f"{path}: broken or truncated: {broken}", GET_AGAIN) from None
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
    """Yield warnings about the statistics of an array."""
    prefix = f"{array['name']}: " if array["name"] else ""
    for key, adjective in (("nan", "NaN"), ("inf", "infinite")):
        if array[key]:
            yield f"{prefix}{array[key]:,} of {array['numbers']:,} numbers are {adjective}"
    if array["norm"] and array["norm"]["min"] == 0:
        yield f"{prefix}some vectors have length 0"
