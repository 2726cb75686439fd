"""Files of vectors as blocks of rows: NPY, NPZ, safetensors, JSON lines, CSV and Parquet.

A block is a numpy array [rows, width] of at most a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import InputError
from bertcli.files.delimited import DelimitedRows, refuse_other_columns
from bertcli.files.jsonl import objects_of
from bertcli.files.npy import BLOCK
from bertcli.files.safetensors import AGAIN
from bertcli.files.stored_arrays import StoredArray, open_arrays
from bertcli.files.streams import LARGEST_RECORD, LineDecoder, open_bytes
from bertcli.files.typed_json import BadJsonError, parse

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
        for name, open_one in opened.items():
            found = open_one()
            if getattr(found.dtype, "hasobject", False):
                where = f"{path}: {name}" if name else str(path)
                why = "holds Python objects, which are not read: they may run code"
                raise InputError(f"{where}: {why}")
            known = found.label == "BF16" or getattr(found.dtype, "kind", "") in (*"fiub",)
            blocks = _rows(found, path, form) if known else ()
            vectors = len(found.shape) > 1 and not found.by_columns
            yield ArrayPart(name, found.label, list(found.shape), blocks, vectors)
            if found.behind and form == "npy":
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


def _rows(found: StoredArray, path: Path, form: str) -> Iterator[Any]:
    """Yield an array's numbers, [rows, width]: a row is the last axis, or one number of a list."""
    width = found.shape[-1] if len(found.shape) > 1 else 1
    rows = prod(found.shape) // width if width else 0
    try:
        yield from found.read(rows, width, max(1, BLOCK // max(1, width)))
    except (ValueError, EOFError) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}", AGAIN) from None


def _vectors(value: Any, deep: int = 3) -> list[list[float]]:
    """Return the vectors in a value: a list of numbers, or lists of them, so deep; else none."""
    if not (deep > 1 and isinstance(value, list) and value and isinstance(value[0], list)):
        return [value] if _is_numbers(value) else []
    found = [_vectors(row, deep - 1) for row in value]
    return [vector for vectors in found for vector in vectors] if all(found) else []


def _overflows(row: list[float]) -> bool:
    return any(type(number) is int and abs(number) > LARGEST for number in row)


def _is_numbers(row: Any) -> bool:
    """Allow null, which stands for NaN: JSON has none."""
    return isinstance(row, list) and bool(row) and {*map(type, row)} <= {int, float, type(None)}


def _note_kind(fields: FileFields, name: str, value: Any, *, numeric: bool) -> None:
    kind = "numbers" if numeric else type(value).__name__.replace("NoneType", "null")
    known = fields.kinds.get(name, kind)
    fields.kinds[name] = kind if known in (kind, "null") or kind == "null" else "mixed"


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
