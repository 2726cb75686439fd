"""A file of vectors as one report: shapes, types, norms, NaN and infinity, and its manifest.

    inspect_file(Path("out.npy")).arrays[0]["norm"]   # {"min": 1.0, "mean": 1.0, "max": 1.0}

A file (NPY, NPZ, safetensors, JSON lines, CSV, Parquet) is read once, in blocks, so one of any size
needs the memory of a block: a numpy array [rows, width] of at most a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import inf, prod
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import InputError
from bertcli.formats.arrays import BLOCK, UNREADABLE, open_arrays
from bertcli.formats.delimited import open_csv
from bertcli.formats.jsonl import objects_of
from bertcli.formats.registry import FORMATS, VECTORS, FileFormat, Holds
from bertcli.formats.safetensors import AGAIN
from bertcli.io.paths import manifest_beside
from bertcli.io.streams import PACKED, suffix_of, unreadable
from bertcli.io.typed_json import BadJsonError, is_regular, parse, read_object

ROWS = 256  # of a Parquet file that are measured together
SPANS = ("offsets", "offset_mapping")  # pairs of numbers that are places in a text, not vectors


@dataclass
class FileReport:
    """All that `bertcli inspect` reports about a file."""

    file: Path
    format: str
    bytes: int
    records: int | None = None
    fields: dict[str, str] = field(default_factory=dict)  # of records -> their types
    arrays: list[dict[str, Any]] = field(default_factory=list)
    manifest: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return not any(array["nan"] or array["inf"] for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**vars(self), "file": str(self.file)}


# --- reading ---


class ArrayPart(NamedTuple):
    """Some rows of an array in a file: `shape` is None where only reading all of it tells."""

    name: str
    dtype: str
    shape: list[Any] | None
    block: Any  # a numpy array [rows, width]; None where no numbers can be read
    rows: bool = True  # whether the rows are vectors


def array_parts(path: Path, report: FileReport) -> Iterator[ArrayPart]:
    """Yield the arrays of an NPY, NPZ or safetensors file; numbers of a list are a row each."""
    with open_arrays(str(path), str(path), report.format) as opened:
        for name, open_array in opened.items():
            array = open_array()
            if getattr(array.dtype, "hasobject", False):
                where = f"{path}: {name}" if name else str(path)
                why = "holds Python objects, which are not read: they may run code"
                raise InputError(f"{where}: {why}")
            numeric = array.label == "BF16" or getattr(array.dtype, "kind", "") in (*"fiub",)
            width = array.shape[-1] if len(array.shape) > 1 else 1
            rows = prod(array.shape) // width if width and numeric else 0
            vectors = len(array.shape) > 1
            for block in chain([None], array.read(rows, width, BLOCK)):
                yield ArrayPart(name, array.label, list(array.shape), block, vectors)


def _csv_rows(path: Path) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield the location of each row of CSV, and its cells by the names in the header."""
    with open_csv(str(path)) as table:
        columns = table.columns
        if not columns:
            raise InputError(f"{path}: the file has no header", AGAIN)
        if len({*columns}) < len(columns):
            raise InputError(f"{path}: two columns have the same name")
        for rows in table.blocks():
            yield [
                (f"{path}:{number}", dict(zip(columns, map(_cell, cells), strict=True)))
                for number, cells in rows
            ]


def _cell(text: Any) -> Any:
    """Return the number, list or object that a cell holds; a text that is none of them, as it is.

    An empty cell is None.
    """
    try:
        return parse(text) if text and text[0] in "[{-0123456789" else text or None
    except BadJsonError:
        return text


def record_parts(path: Path, report: FileReport, file_format: FileFormat) -> Iterator[ArrayPart]:
    """Yield the lists of numbers in JSON objects, one a line, or in cells of CSV, JSON there."""
    import numpy

    report.records = 0
    for block in objects_of(str(path)) if file_format.is_json else _csv_rows(path):
        report.records += len(block)
        vectors_of: dict[str, list[Any]] = {}
        for where, record in block:
            for name, value in record.items():
                vectors = [] if name in SPANS else _vectors(value)
                try:
                    arrays = [numpy.array(vector, numpy.float64) for vector in vectors]
                except OverflowError:
                    raise InputError(f"{where}: field {name!r} holds too large numbers") from None
                vectors_of.setdefault(name, []).extend(arrays)
                kind = type(value).__name__.replace("NoneType", "null")
                kind = "numbers" if vectors else kind
                before = report.fields.get(name, kind)
                alike = before in (kind, "null") or kind == "null"
                report.fields[name] = kind if alike else "mixed"
        for name, arrays in vectors_of.items():
            yield from _parts_of_vectors(name, "JSON", arrays)


def parquet_parts(path: Path, report: FileReport) -> Iterator[ArrayPart]:
    """Yield the columns of lists of numbers in a Parquet file."""
    from bertcli.formats.parquet import opened

    with opened(str(path), str(path)) as table:
        report.records = table.metadata.num_rows
        report.fields = {field.name: str(field.type) for field in table.schema}
        for name, kind, vectors in table.vectors(SPANS, ROWS):
            yield from _parts_of_vectors(name, kind, vectors)


def _vectors(value: Any, deep: int = 3) -> list[list[float]]:
    """Return the vectors in a value: a list of numbers, or lists of them, so deep; else none.

    null stands for NaN, which JSON has not.
    """
    if not isinstance(value, list) or not value:
        return []
    if {*map(type, value)} <= {int, float, type(None)}:
        return [value]
    inner = [_vectors(row, deep - 1) for row in value] if deep > 1 else [[]]
    return [*chain(*inner)] if all(inner) else []


def _parts_of_vectors(name: str, kind: str, vectors: Sequence[Any]) -> Iterator[ArrayPart]:
    """Yield vectors, those behind each other that are of one length together."""
    import numpy

    for _, rows in groupby(vectors, len):
        yield ArrayPart(name, kind, None, numpy.stack([*rows]))


# --- the report ---

SUFFIXES = {  # of files of vectors
    suffix: entry
    for entry in FORMATS.values()
    for suffix in entry.suffixes
    if entry.name in VECTORS
}
FILE_SUFFIXES = (*SUFFIXES, *PACKED)


class ArrayStatistics:
    """The numbers of an array, and the norms of its rows; one that is not finite does not count."""

    def __init__(self, part: ArrayPart) -> None:
        self.part = part
        self.count = self.nan = self.inf = self.rows = 0
        self.widths: set[int] = set()
        self.norms = 0  # how many, and then their sum, the least and the largest
        self.total, self.least, self.largest = 0.0, inf, 0.0

    def add(self, block: Any) -> None:
        """Add a numpy array [rows, width]."""
        import numpy

        self.rows += len(block)
        self.widths.add(block.shape[1])
        self.count += block.size
        with numpy.errstate(all="ignore"):  # of numbers from a file, NaN and infinity are counted
            values = block.astype(numpy.float64)
            self.nan += int(numpy.isnan(values).sum())
            self.inf += int(numpy.isinf(values).sum())
            if not self.part.rows or not block.size:
                return
            norms = numpy.linalg.norm(values, axis=1)
            norms = norms[numpy.isfinite(norms)]
            self.norms += len(norms)
            self.total += float(norms.sum())
            self.least = float(norms.min(initial=self.least))
            self.largest = float(norms.max(initial=self.largest))

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON values; rows of different lengths have "min..max"."""
        part, widths, norm = self.part, sorted(self.widths), None
        width = widths[0] if len(widths) == 1 else f"{widths[0]}..{widths[-1]}" if widths else 0
        if self.norms:
            norm = {"min": self.least, "mean": self.total / self.norms, "max": self.largest}
        return {
            "name": part.name,
            "dtype": part.dtype,
            "shape": [self.rows, width] if part.shape is None else part.shape,
            "numbers": self.count,
            "nan": self.nan,
            "inf": self.inf,
            "norm": norm,
        }


def _parts_of(path: Path, report: FileReport, file_format: FileFormat) -> Iterator[ArrayPart]:
    """Yield the arrays and fields of numbers in a file."""
    if file_format.can_hold(Holds.ARRAYS):
        return array_parts(path, report)
    if file_format.is_columnar:
        return parquet_parts(path, report)
    return record_parts(path, report, file_format)


def inspect_file(path: Path) -> FileReport:
    """Read a file of vectors to its end. InputError when it is damaged or of another format."""
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: unknown format", f"known: {', '.join(SUFFIXES)}")
    file_format = SUFFIXES[suffix]
    statistics: dict[str, ArrayStatistics] = {}
    try:
        if not is_regular(path, InputError, "check the path"):
            raise InputError(f"{path}: file not found", "check the path")
        report = FileReport(path, suffix[1:], path.stat().st_size)
        if report.bytes == 0 and not (file_format.is_json and manifest_beside(path).exists()):
            raise InputError(f"{path}: the file is empty", AGAIN)
        for part in _parts_of(path, report, file_format):
            array = statistics.setdefault(part.name, ArrayStatistics(part))
            if part.block is not None:
                array.add(part.block)
    except OSError as failed:
        raise unreadable(str(path), failed) from None
    except UNREADABLE as broken:
        raise InputError(f"{path}: broken or truncated: {broken}", AGAIN) from None
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
