"""Read all arrays and fields of numbers in a file, in any format that can hold vectors.

    contents = NumberFields(Path("out.jsonl"), FORMATS["jsonl"])
    for block in contents.blocks():    # of one of them
        ...
    contents.records, contents.fields

Memory is limited to one block. `vector_files` reads only the vectors, from one array or field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import InputError
from bertcli.formats.arrays import NUMBERS_PER_BLOCK, open_arrays
from bertcli.formats.delimited import open_csv
from bertcli.formats.jsonl import located_objects
from bertcli.formats.registry import FileFormat, Holds
from bertcli.formats.safetensors import GET_AGAIN
from bertcli.io.streams import on_disk
from bertcli.io.typed_json import BadJsonError, parse

ROWS_PER_BLOCK = 256  # for Parquet files
POSITION_FIELDS = ("offsets", "offset_mapping")  # pairs of positions in a text, not vectors
NESTING = 3  # maximum depth of lists that contain vectors


class NumberBlock(NamedTuple):
    """Some rows of an array or field of numbers."""

    name: str
    dtype: str
    shape: list[Any] | None  # of the whole array; None for fields, where it is known at the end
    numbers: Any  # array [rows, width]; None for an array that is not numeric or is empty
    has_vectors: bool = True  # rows are vectors, not single numbers


class NumberFields:
    """The arrays or fields of numbers in a file.

    After all blocks are read, ``records`` is the number of records and ``fields`` has their types.
    Array files have neither.
    """

    def __init__(self, path: Path, entry: FileFormat) -> None:
        self.path = str(path)
        self.entry = entry
        self.records: int | None = None
        self.fields: dict[str, str] = {}

    def blocks(self) -> Iterator[NumberBlock]:
        """Yield all arrays or fields, in blocks. Raises InputError for a damaged file."""
        if self.entry.can_hold(Holds.ARRAYS):
            return self._blocks_of_arrays()
        if self.entry.is_columnar:
            return self._blocks_of_columns()
        return self._blocks_of_rows()

    def _blocks_of_arrays(self) -> Iterator[NumberBlock]:
        """Yield arrays. Each number of a one-dimensional array is a row."""
        with open_arrays(self.path, self.path, self.entry.name) as arrays:
            for name, open_array in arrays.items():
                array = open_array()
                if getattr(array.dtype, "hasobject", False):
                    where = f"{self.path}: {name}" if name else self.path
                    reason = "holds Python objects, which are not read: they may run code"
                    raise InputError(f"{where}: {reason}")
                is_bfloat16 = array.dtype_name == "BF16"
                is_numeric = is_bfloat16 or getattr(array.dtype, "kind", "") in (*"fiub",)
                has_vectors = len(array.shape) > 1
                width = array.shape[-1] if has_vectors else 1
                rows = prod(array.shape) // width if width and is_numeric else 0
                for numbers in chain([None], array.read_rows(rows, width, NUMBERS_PER_BLOCK)):
                    yield NumberBlock(name, array.dtype_name, [*array.shape], numbers, has_vectors)

    def _blocks_of_columns(self) -> Iterator[NumberBlock]:
        """Yield columns of lists of numbers."""
        from bertcli.formats.parquet import open_parquet

        with on_disk(self.path) as path_or_file, open_parquet(path_or_file, self.path) as table:
            self.records = table.metadata.num_rows
            self.fields = {field.name: str(field.type) for field in table.schema}
            for name, dtype, vectors in table.vectors(POSITION_FIELDS, ROWS_PER_BLOCK):
                yield from _blocks_of_vectors(name, dtype, vectors)

    def _blocks_of_rows(self) -> Iterator[NumberBlock]:
        """Yield lists of numbers in the fields of rows."""
        import numpy

        self.records = 0
        rows = located_objects(self.path) if self.entry.is_json else _csv_rows(self.path)
        for block in rows:
            self.records += len(block)
            vectors_of: dict[str, list[Any]] = {}
            for where, row in block:
                for name, value in row.items():
                    vectors = [] if name in POSITION_FIELDS else _vectors_in(value)
                    try:
                        arrays = [numpy.array(vector, numpy.float64) for vector in vectors]
                    except OverflowError:
                        problem = f"{where}: field {name!r} holds too large numbers"
                        raise InputError(problem) from None
                    vectors_of.setdefault(name, []).extend(arrays)
                    self._add_type(name, "numbers" if vectors else _type_of(value))
            for name, arrays in vectors_of.items():
                yield from _blocks_of_vectors(name, "JSON", arrays)

    def _add_type(self, name: str, value_type: str) -> None:
        """Widen the type of a field to include this type."""
        known_type = self.fields.get(name, value_type)
        is_alike = known_type in (value_type, "null") or value_type == "null"
        self.fields[name] = value_type if is_alike else "mixed"


def _type_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _csv_rows(path: str) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield lists of (location, cells by column name) for the rows of a CSV file."""
    with open_csv(path) as table:
        columns = table.columns
        if not columns:
            raise InputError(f"{path}: the file has no header", GET_AGAIN)
        if len({*columns}) < len(columns):
            raise InputError(f"{path}: two columns have the same name")
        for rows in table.blocks():
            yield [
                (f"{path}:{number}", dict(zip(columns, map(_value_of_cell, cells), strict=True)))
                for number, cells in rows
            ]


def _value_of_cell(text: str) -> Any:
    """Return the JSON number, list or object in a cell, otherwise its text.

    An empty cell is None.
    """
    if not text:
        return None
    if text[0] not in "[{-0123456789":
        return text
    try:
        return parse(text)
    except BadJsonError:
        return text


def _vectors_in(value: Any, depth: int = NESTING) -> list[list[float]]:
    """Return the vectors in a value: a list of numbers, or nested lists up to ``depth`` levels.

    null represents NaN, which JSON does not support.
    """
    if not isinstance(value, list) or not value:
        return []
    if {*map(type, value)} <= {int, float, type(None)}:
        return [value]
    if depth == 1:
        return []
    inner = [_vectors_in(row, depth - 1) for row in value]
    return [*chain(*inner)] if all(inner) else []


def _blocks_of_vectors(name: str, dtype: str, vectors: Sequence[Any]) -> Iterator[NumberBlock]:
    """Yield vectors in blocks; vectors of a block have equal length."""
    import numpy

    for _, same_length in groupby(vectors, len):
        yield NumberBlock(name, dtype, None, numpy.stack([*same_length]))
