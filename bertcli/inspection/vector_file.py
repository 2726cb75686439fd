"""A file of vectors as one report: shapes, types, norms, NaN and infinity, and its manifest.

    inspect_file(Path("out.npy")).arrays[0]["norm"]   # {"min": 1.0, "mean": 1.0, "max": 1.0}

A file (NPY, NPZ, safetensors, JSON lines, CSV, Parquet) is read once, in blocks, so one of any size
needs the memory of a block: a numpy array [rows, width] of at most a few megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import InputError
from bertcli.files.delimited import DelimitedRows, refuse_other_columns
from bertcli.files.jsonl import objects_of
from bertcli.files.npy import BLOCK
from bertcli.files.paths import manifest_beside
from bertcli.files.safetensors import AGAIN
from bertcli.files.stored_arrays import StoredArray, open_arrays
from bertcli.files.streams import LARGEST_RECORD, PACKED, LineDecoder, open_bytes
from bertcli.files.typed_json import BadJsonError, parse, read_object
from bertcli.files.zips import UNREADABLE

ROWS = 256  # vectors of JSON that are measured together
LARGEST = 10**300  # of a whole number; larger ones are no numbers of 64 bits
SPANS = ("offsets", "offset_mapping")  # pairs of numbers that are places in a text, not vectors


class ArrayPart(NamedTuple):
    """An array, or a piece of one, in a file: `shape` is None where only reading it tells."""

    name: str
    dtype: str
    shape: list[Any] | None
    blocks: Iterable[Any]
    rows: bool = True  # whether the blocks' rows are vectors


@dataclass
class FileFields:
    """What a file of records has beside arrays; filled while it is read."""

    records: int | None = None
    kinds: dict[str, str] = field(default_factory=dict)  # field -> its type
    warnings: list[str] = field(default_factory=list)


def arrays(path: Path, fields: FileFields, form: str) -> Iterator[ArrayPart]:
    """Yield the arrays of an NPY, NPZ or safetensors file."""
    with open_arrays(str(path), str(path), form) as opened:
        for name, open_array in opened.items():
            array = open_array()
            if getattr(array.dtype, "hasobject", False):
                where = f"{path}: {name}" if name else str(path)
                why = "holds Python objects, which are not read: they may run code"
                raise InputError(f"{where}: {why}")
            numeric = array.label == "BF16" or getattr(array.dtype, "kind", "") in (*"fiub",)
            blocks = _rows(array, path, form) if numeric else ()
            vectors = len(array.shape) > 1 and not array.by_columns
            yield ArrayPart(name, array.label, list(array.shape), blocks, vectors)
            if array.behind and form == "npy":
                fields.warnings.append("extra bytes after the end of the array")


def jsonl(path: Path, fields: FileFields) -> Iterator[ArrayPart]:
    """Yield the lists of numbers in JSON objects, one a line, whatever their field is called."""
    yield from _of_records(chain.from_iterable(objects_of(str(path))), fields)


def csv(path: Path, fields: FileFields) -> Iterator[ArrayPart]:
    """Yield the lists of numbers in the cells of CSV, which are JSON there."""
    yield from _of_records(_csv_rows(path), fields)


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of each row of CSV, and its cells by the names in the header."""

    def refuse(error: InputError) -> None:
        raise error

    with open_bytes(str(path)) as stream:
        decode = LineDecoder(str(path), "utf-8", "strict")
        rows = DelimitedRows(stream, decode, LARGEST_RECORD, refuse, tabs=False)
        _, columns = next(rows, (1, []))
        if not columns:
            raise InputError(f"{path}: the file has no header", AGAIN)
        if len({*columns}) < len(columns):
            raise InputError(f"{path}: two columns have the same name")
        for number, row in rows:
            where = f"{path}:{number}"
            refuse_other_columns(where, row, columns)
            yield where, {name: _cell(text) for name, text in zip(columns, row, strict=True)}


def _cell(text: Any) -> Any:
    """Return the number, list or object that a cell holds; a text that is none of them, as it is.

    An empty cell is None.
    """
    try:
        return parse(text) if text and text[0] in "[{-0123456789" else text or None
    except BadJsonError:
        return text


def _of_records(
    records: Iterable[tuple[str, dict[str, Any]]], fields: FileFields
) -> Iterator[ArrayPart]:
    waiting: dict[str, list[list[float]]] = {}
    fields.records = 0
    for where, record in records:
        fields.records += 1
        for name, value in record.items():
            vectors = [] if name in SPANS else _vectors(value)
            if any(map(_overflows, vectors)):
                raise InputError(f"{where}: field {name!r} holds too large numbers")
            _note_kind(fields, name, value, numeric=bool(vectors))
            if vectors:
                yield from _together(waiting, name, vectors)
    for name, rows in waiting.items():
        if rows:
            yield _measured(name, rows)


def parquet(path: Path, fields: FileFields) -> Iterator[ArrayPart]:
    """Yield the columns of lists of numbers in a Parquet file."""
    from bertcli.files.parquet import opened

    with opened(str(path), str(path), AGAIN) as table:
        fields.records = table.count
        fields.kinds = table.kinds
        lists = [name for name in table.vector_columns if name not in SPANS]
        for name, kind, vectors in table.vectors(lists, ROWS):
            yield ArrayPart(name, kind, None, _stacked(vectors))


def _rows(array: StoredArray, path: Path, form: str) -> Iterator[Any]:
    """Yield an array's numbers, [rows, width]: a row is the last axis, or one number of a list."""
    width = array.shape[-1] if len(array.shape) > 1 else 1
    rows = prod(array.shape) // width if width else 0
    try:
        yield from array.read(rows, width, max(1, BLOCK // max(1, width)))
    except (ValueError, EOFError) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}", AGAIN) from None


def _vectors(value: Any, deep: int = 3) -> list[list[float]]:
    """Return the vectors in a value: a list of numbers, or lists of them, so deep; else none."""
    if not (deep > 1 and isinstance(value, list) and value and isinstance(value[0], list)):
        return [value] if _is_numbers(value) else []
    inner = [_vectors(row, deep - 1) for row in value]
    return [vector for vectors in inner for vector in vectors] if all(inner) else []


def _overflows(row: list[float]) -> bool:
    return any(type(number) is int and abs(number) > LARGEST for number in row)


def _is_numbers(row: Any) -> bool:
    """Allow null, which stands for NaN: JSON has none."""
    return isinstance(row, list) and bool(row) and {*map(type, row)} <= {int, float, type(None)}


def _note_kind(fields: FileFields, name: str, value: Any, *, numeric: bool) -> None:
    kind = "numbers" if numeric else type(value).__name__.replace("NoneType", "null")
    before = fields.kinds.get(name, kind)
    fields.kinds[name] = kind if before in (kind, "null") or kind == "null" else "mixed"


def _together(
    waiting: dict[str, list[list[float]]], name: str, vectors: list[list[float]]
) -> Iterator[ArrayPart]:
    """Collect vectors of one length, and yield them when they are many or another length comes."""
    rows = waiting.setdefault(name, [])
    for vector in vectors:
        if rows and (len(rows) == ROWS or len(vector) != len(rows[0])):
            yield _measured(name, rows.copy())
            rows.clear()
        rows.append(vector)


def _measured(name: str, rows: list[list[float]]) -> ArrayPart:
    import numpy

    return ArrayPart(name, "JSON", None, [numpy.array(rows, dtype=numpy.float64)])


def _stacked(rows: list[Any]) -> Iterator[Any]:
    """Yield rows as one block, or as one block each when they differ in length."""
    import numpy

    if len({len(row) for row in rows}) == 1:
        yield numpy.stack(rows)
    else:
        yield from (row[None] for row in rows)


# --- the report ---

SOURCES: Mapping[str, Callable[[Path, FileFields], Iterator[ArrayPart]]] = {
    ".npy": partial(arrays, form="npy"),
    ".npz": partial(arrays, form="npz"),
    ".safetensors": partial(arrays, form="safetensors"),
    ".jsonl": jsonl,
    ".ndjson": jsonl,
    ".csv": csv,
    ".parquet": parquet,
}
NUMPY_NAMES = {  # what safetensors and Arrow call a type -> what numpy does, and the manifest
    "halffloat": "float16", "float": "float32", "double": "float64",
    "F16": "float16", "F32": "float32", "F64": "float64", "BOOL": "bool",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
}  # fmt: skip
LINES = (".jsonl", ".ndjson", ".csv")  # which may be packed
FILE_SUFFIXES = (*SOURCES, *(name + end for name in LINES for end in PACKED))


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

        rows, width = block.shape
        if rows:
            self.shortest = min(self.shortest, width) if self.vectors else width
            self.longest = max(self.longest, width)
            self.vectors += rows
            self.not_finite += rows  # until their norms are known
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
        numbers = values if whole.all() else values[finite]
        if numbers.size:
            self.low = min(self.low, float(numbers.min()))
            self.high = max(self.high, float(numbers.max()))
            self.total += float(numbers.sum())
        if not self.rows:
            return
        self.not_finite -= int(whole.sum())
        if whole.any():
            norms = numpy.linalg.norm(values[whole], axis=1)
            self.norm_low = min(self.norm_low, float(norms.min()))
            self.norm_high = max(self.norm_high, float(norms.max()))
            self.norm_total += float(norms.sum())

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


@dataclass(frozen=True)
class FileReport:
    """All that `bertcli inspect` reports about a file."""

    path: Path
    format: str
    nbytes: int
    fields: FileFields
    arrays: list[dict[str, Any]]
    manifest: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return not any(array["nan"] or array["inf"] for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "file": str(self.path),
            "format": self.format,
            "bytes": self.nbytes,
            "records": self.fields.records,
            "fields": self.fields.kinds,
            "arrays": self.arrays,
            "manifest": self.manifest,
            "warnings": self.warnings,
        }


def inspect_file(path: Path) -> FileReport:
    """Read a file of vectors to its end. InputError when it is damaged or of another format."""
    suffix = suffix_of(path)
    if suffix not in SOURCES:
        raise InputError(f"{path}: unknown format", f"known: {', '.join(FILE_SUFFIXES)}")
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "file not found"
            raise InputError(f"{path}: {what}", "check the path")
        size = path.stat().st_size
    except OSError as failed:  # a link in a circle
        raise InputError(f"{path}: {failed.strerror}") from None
    if size == 0 and not (SOURCES[suffix] is jsonl and manifest_beside(path).exists()):
        raise InputError(f"{path}: the file is empty", AGAIN)
    fields = FileFields()
    tallies: dict[str, tuple[ArrayPart, NumberStatistics]] = {}
    try:
        for part in SOURCES[suffix](path, fields):
            _, tally = tallies.setdefault(part.name, (part, NumberStatistics(rows=part.rows)))
            for block in part.blocks:
                tally.add(block)
    except OSError as failed:
        raise InputError(f"{path}: {failed.strerror or failed}") from None
    except UNREADABLE as broken:
        raise InputError(f"{path}: broken or truncated: {broken}", AGAIN) from None
    described = [
        {
            "name": part.name,
            "dtype": part.dtype,
            "shape": tally.shape() if part.shape is None else part.shape,
            **tally.summary(),
        }
        for part, tally in tallies.values()
    ]
    warnings = [text for array in described for text in _concerns(array)] + fields.warnings
    manifest = _manifest(path, warnings)
    if manifest is not None:
        warnings += _contradictions(manifest, described, flat=fields.records is not None)
    return FileReport(path, suffix[1:], size, fields, described, manifest, warnings)


def suffix_of(path: Path) -> str:
    """Return the suffix that tells the format: that of the contents for a compressed file."""
    name = path.name.lower()
    packed = next((end for end in PACKED if name.endswith(end)), "")
    suffix = Path(name.removesuffix(packed)).suffix
    return suffix if not packed or SOURCES.get(suffix) in (jsonl, csv) else packed


def _concerns(array: Mapping[str, Any]) -> Iterator[str]:
    name = f"{array['name']}: " if array["name"] else ""
    for kind, label in (("nan", "NaN"), ("inf", "infinite")):
        if array[kind]:
            yield f"{name}{array[kind]:,} of {array['numbers']:,} numbers are {label}"
    if array["norm"] and array["norm"]["min"] == 0:
        yield f"{name}some vectors have length 0"


def _manifest(path: Path, warnings: list[str]) -> dict[str, Any] | None:
    """Read the manifest beside a file; a broken one is a warning."""
    try:
        return dict(read_object(manifest_beside(path), InputError)) or None
    except InputError as broken:
        warnings.append(str(broken))
        return None


def _contradictions(
    manifest: Mapping[str, Any], described: list[dict[str, Any]], *, flat: bool
) -> Iterator[str]:
    """Compare with the manifest; in ``flat`` arrays the vectors of a record are rows."""
    from bertcli.vectors.reading import ARRAY

    vectors = [array for array in described if len(described) == 1 or array["name"] == ARRAY]
    if len(vectors) != 1:
        return
    shape, dtype = vectors[0]["shape"], vectors[0]["dtype"]
    declared = in_rows = manifest.get("shape")
    if flat and isinstance(declared, list) and len(declared) > 2:
        in_rows = [prod(declared[:-1]), declared[-1]]  # [n, layers, D] -> [n * layers, D]
    if declared is not None and shape not in (declared, in_rows):
        yield f"the manifest says shape {declared}, the file has {shape}"
    declared = manifest.get("dtype")
    if declared is not None and dtype != "JSON" and declared != NUMPY_NAMES.get(dtype, dtype):
        yield f"the manifest says dtype {declared}, the file has {dtype}"
