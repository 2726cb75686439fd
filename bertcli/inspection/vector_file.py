"""A file of vectors as one report: shapes, types, norms, NaN and infinity, and its manifest.

    inspect_file(Path("out.npy")).arrays[0]["norm"]   # {"min": 1.0, "mean": 1.0, "max": 1.0}

A file is read once, in blocks, so one of any size needs the memory of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite, prod
from pathlib import Path
from typing import Any

from bertcli.errors import InputError
from bertcli.files.safetensors import AGAIN
from bertcli.files.side_files import manifest_beside
from bertcli.files.streams import PACKED
from bertcli.files.typed_json import read_object
from bertcli.files.zips import UNREADABLE
from bertcli.inspection.array_sources import ArrayPart, FileFields, arrays, csv, jsonl, parquet

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
UNTYPED = ("JSON",)  # numbers in text have no type
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
    described = [_described(part, tally) for part, tally in tallies.values()]
    warnings = [text for found in described for text in _concerns(found)] + fields.warnings
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


def _described(part: ArrayPart, tally: NumberStatistics) -> dict[str, Any]:
    shape = part.shape if part.shape is not None else tally.shape()
    return {"name": part.name, "dtype": part.dtype, "shape": shape} | tally.summary()


def _concerns(found: Mapping[str, Any]) -> Iterator[str]:
    name = f"{found['name']}: " if found["name"] else ""
    for kind, label in (("nan", "NaN"), ("inf", "infinite")):
        if found[kind]:
            yield f"{name}{found[kind]:,} of {found['numbers']:,} numbers are {label}"
    if found["norm"] and found["norm"]["min"] == 0:
        yield f"{name}some vectors have length 0"


def _manifest(path: Path, warnings: list[str]) -> dict[str, Any] | None:
    """Read the manifest beside a file; a broken one is a warning."""
    place = manifest_beside(path)
    try:
        found = read_object(place, InputError)
    except InputError as broken:
        warnings.append(str(broken))
        return None
    return dict(found) or None


def _contradictions(
    manifest: Mapping[str, Any], arrays: list[dict[str, Any]], *, flat: bool
) -> Iterator[str]:
    """Compare with the manifest; in ``flat`` arrays the vectors of a record are rows."""
    from bertcli.vectors.reading import ARRAY

    vectors = [one for one in arrays if len(arrays) == 1 or one["name"] == ARRAY]
    if len(vectors) != 1:
        return
    arrays = vectors
    said, found = manifest.get("shape"), arrays[0]["shape"]
    if said is not None and found not in (said, _rows(said) if flat else said):
        yield f"the manifest says shape {said}, the file has {found}"
    said, found = manifest.get("dtype"), arrays[0]["dtype"]
    if said is not None and found not in UNTYPED and said != NUMPY_NAMES.get(found, found):
        yield f"the manifest says dtype {said}, the file has {found}"


def _rows(shape: Any) -> Any:
    """Return the shape of the same vectors, one a row: [n, layers, D] -> [n * layers, D]."""
    if not isinstance(shape, list) or len(shape) < 3:
        return shape
    return [prod(shape[:-1]), shape[-1]]
