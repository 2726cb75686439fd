"""Parquet: read and write rows as JSON values, and arrays as lists of numbers.

    with opened("reviews.parquet", "reviews.parquet") as table:
        for first, columns in table.columns(["text", "when"]): ...
    with rows_writer(file) as write:
        write([{"id": "a", "input_ids": [101, 102]}])

Reading needs the memory of a few rows. No other module imports pyarrow.

Values without a JSON type become text: timestamps are ISO 8601 with all digits of their unit and
the offset of their time zone (``2024-05-01T12:00:00.000000001+02:00``), durations are counts of
their unit, decimals are digits (``"1.20"``), binary values are base64. NaN becomes null, its
meaning in data frames.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate, islice
from typing import IO, TYPE_CHECKING, Any

import numpy

from bertcli.errors import BertcliError, InputError, OutputError
from bertcli.formats.safetensors import AGAIN
from bertcli.formats.tables import (
    TYPES,
    FlatLists,
    Row,
    RowBlocks,
    Spool,
    Table,
    column_order,
    compact,
    table_of,
)
from bertcli.io.streams import LARGEST_RECORD, on_disk, stop, too_large, unreadable
from bertcli.versions import install_command

try:
    import pyarrow as pyarrow
    from pyarrow import types
    from pyarrow.parquet import ParquetFile, ParquetWriter
except ImportError as failed:  # importing this module is the check, which commands run first
    raise BertcliError(f"Parquet needs pyarrow: {failed}", install_command("parquet")) from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

ROWS = 1024  # maximum rows decoded together
ROWS_PER_BLOCK = 4096  # rows converted to columns together
GROUP = 16 << 20  # bytes of a row group, before compression
DECODED = 16 << 20  # bytes decoded together, as estimated from column sizes
AT_ONCE = 1 << 18  # bytes converted to Python objects together

VECTOR = re.compile(r"((fixed_size_|large_)?list<\w+: )+(u?int|halffloat|float|double)")  # a type
WHOLE = re.compile(r"u?int\d+")  # a type name of integers
STRINGS = (types.is_string, types.is_large_string, types.is_string_view)


# --- Arrow values to JSON values ---


def values(array: Any, errors: str = "strict") -> list[Any]:
    """Return the values of an Arrow array as JSON values."""
    kind = array.type
    if any(check(kind) for check in STRINGS):
        stored = array.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
        return [None if raw is None else _decoded(raw, errors) for raw in stored]
    if types.is_timestamp(kind):
        from pyarrow import compute

        zone = "%Ez" if kind.tz else ""
        array = compute.strftime(array, format=f"%Y-%m-%dT%H:%M:%S{zone}")
    elif types.is_temporal(kind):
        array = array.cast("string")
    return [_plain(value) for value in array.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _decoded(raw: bytes, errors: str) -> str | bytes:
    try:
        return raw.decode(errors=errors)
    except UnicodeDecodeError:
        return raw


# --- lists of numbers to NumPy arrays, and back ---


def array(column: Any, name: str) -> Array:
    """Return a column of numbers, or of (nested) lists of equal length, as one array [n, D...].

    Raises ValueError for lists of different lengths.
    """
    shape = [len(column)]
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        nulls = column.null_count
        before = len(column)
        size = getattr(column.type, "list_size", 0)
        column = column.flatten()
        if nulls or (before and len(column) % before):
            raise ValueError(f"column {name!r} has rows of several lengths, or empty ones")
        shape.append(len(column) // before if before else size)
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def type_of_array(shape: Sequence[int], dtype: Any) -> Any:
    """Return the Arrow type of a cell that holds an array of this shape."""
    kind = pyarrow.from_numpy_dtype(dtype)
    for size in reversed(shape):
        kind = pyarrow.list_(kind, size)
    return kind


# --- column types, and columns ---


def type_of(name: str) -> Any:
    """Return the Arrow type of this name, such as list<int32>."""
    if name.startswith("list<"):
        return pyarrow.list_(type_of(name[5:-1]))
    return getattr(pyarrow, name)()


def array_of(values: Any, kind: Any = None) -> Any:
    """Return values as an Arrow array; numeric NumPy arrays are not copied.

    `pyarrow.array` would import pandas to check for pandas data, which takes 1/3 s.
    """
    if not (isinstance(values, numpy.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf"):
        return pyarrow.array(values, kind)
    own = pyarrow.from_numpy_dtype(values.dtype)
    buffer = pyarrow.py_buffer(values.ravel())
    numbers = pyarrow.Array.from_buffers(own, len(values), [None, buffer])
    return numbers.cast(kind) if kind else numbers


def common_type(kind: Any, values: Sequence[Any]) -> Any:
    """Return an Arrow type that holds values of type ``kind`` and ``values``; text holds anything.

    None is the type of no values.
    """
    try:
        own = array_of(values).type
        if types.is_null(own):
            return kind
        if kind in (None, own):
            return own
        schemas = [pyarrow.schema([("", member)]) for member in (kind, own)]
        kind = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()
    return pyarrow.string() if "struct" in str(kind) else kind  # objects may have different keys


def fits(values: Any, kind: Any) -> bool:
    """Return True if the Arrow type ``kind`` holds these lists unchanged.

    Integers may be narrowed if they fit. Text is not a list of characters.
    """
    if isinstance(values, FlatLists):
        return True
    kinds = common_type(None, values), kind
    natural, ours = (WHOLE.sub("int", str(name)) for name in kinds)
    try:
        pyarrow.array(values, kind)
    except (pyarrow.ArrowException, OverflowError):
        return False
    return natural == ours or "null" in natural  # all lists are empty


def column(values: Any, kind: Any) -> Any:
    """Return values as a column of an Arrow type.

    Lists of fixed size are given as one array [n, D...], or, if there are several per row, as
    arrays [k, D...]. For `FlatLists`, such as list<int32>, numbers of the type's width are not
    copied; unsigned numbers are reinterpreted as signed, which is safe for token ids.
    """
    if types.is_fixed_size_list(kind):
        cells = array_of(values.reshape(-1))
        for size in reversed(values.shape[1:]):
            cells = pyarrow.FixedSizeListArray.from_arrays(cells, size)
        return cells
    if isinstance(values, FlatLists):
        numbers = values.values.view(f"i{values.values.itemsize}")
        numbers = numbers.astype(kind.value_type.to_pandas_dtype(), copy=False)
        offsets = array_of(values.offsets.astype("int32"))
        return pyarrow.ListArray.from_arrays(offsets, array_of(numbers), type=kind)
    if types.is_list(kind) and isinstance(next(iter(values), None), numpy.ndarray):
        ends = pyarrow.array([0, *accumulate(map(len, values))], "int32")
        inner = column(numpy.concatenate([*values]), kind.value_type)
        return pyarrow.ListArray.from_arrays(ends, inner)
    if kind == pyarrow.string():  # values other than text are written as JSON
        values = [
            value if value is None or isinstance(value, str) else compact(value) for value in values
        ]
    elif kind == pyarrow.float64():  # Arrow converts no integer above 2**53
        values = [value if value is None else float(value) for value in values]
    return array_of(values, kind)


def file_system(place: str) -> tuple[Any, str]:
    """Return the file system of a URI, with fsspec's methods, and the path within it."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    system, path = FileSystem.from_uri(place)
    return ArrowFSWrapper(system), path


# --- reading ---


@contextmanager
def opened(place: str | IO[bytes], path: str) -> Iterator[ParquetTable]:
    """Open a file; ``path`` is its name in messages. Raises InputError if it cannot be read."""
    try:
        with ParquetFile(place) as file:
            yield ParquetTable(file, path)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as broken:
        if isinstance(broken, OSError) and broken.errno:
            raise unreadable(path, broken) from None
        raise InputError(f"{path}: not a readable Parquet file: {broken}", AGAIN) from None


def nested_names(fields: Any) -> Iterator[str]:
    """Yield the field names of a schema or struct, each followed by the names nested in it."""
    for field in fields:
        yield field.name
        if types.is_struct(field.type):
            yield from (f"{field.name}.{name}" for name in nested_names(field.type))


class ParquetTable:
    """The columns of a file. Invalid UTF-8 is returned as bytes, unless ``errors`` is "replace"."""

    def __init__(self, file: Any, path: str) -> None:
        self.file = file
        self.path = path
        self.schema = file.schema_arrow
        self.metadata = file.metadata
        self.names: list[str] = self.schema.names

    def columns(
        self,
        names: Sequence[str],
        limit: int = LARGEST_RECORD,
        skip: Callable[[InputError], None] = stop,
        errors: str = "strict",
    ) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """Yield row numbers and column values, in parts of any number of rows.

        Each part has the number of its first row. A row of more bytes than ``limit`` raises
        InputError, or is passed to ``skip`` and left out.
        """
        number = 1
        for batch in self.batches(names, ROWS):
            for part in _parts(batch, min(AT_ONCE, limit)):
                if part.nbytes > limit:
                    skip(too_large(f"{self.path}:{number}", limit))
                else:
                    yield number, {name: values(part.column(name), errors) for name in names}
                number += len(part)

    def arrays(self, name: str, most: int) -> Iterator[Array]:
        """Yield a column of numbers, or of lists of equal length, as arrays [<= most, D...].

        Raises InputError for a column of lists of different lengths.
        """
        kind = self.schema.field(name).type
        if not self.metadata.num_rows and hasattr(kind, "list_size"):
            yield array(pyarrow.array([], kind), name)
        for batch in self.batches([name], most):
            try:
                yield array(batch.column(0), name)
            except ValueError as uneven:
                raise InputError(f"{self.path}: {uneven}") from None

    def vectors(self, other: Sequence[str], most: int) -> Iterator[tuple[str, str, list[Array]]]:
        """Yield lists of numbers: column, dtype, and the vectors of at most ``most`` rows.

        They are the innermost lists, without nulls, of all columns except the ``other`` ones.
        """
        lists_of_numbers = (field.name for field in self.schema if VECTOR.match(str(field.type)))
        names = [name for name in lists_of_numbers if name not in other]
        for batch in self.batches(names, most) if names else ():
            for name in names:
                lists = batch.column(name)
                while hasattr(lists.type.value_type, "value_type"):
                    lists = lists.flatten()
                rows = [row.values.to_numpy(zero_copy_only=False) for row in lists if row.is_valid]
                yield name, str(lists.type.value_type), rows

    def batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        """Yield columns in batches of at most ``most`` rows, fewer if lists or texts are long."""
        for group in range(self.metadata.num_row_groups):
            row_group = self.metadata.row_group(group)
            size = row_group.total_byte_size // max(1, row_group.num_rows)
            for first in islice(self.file.iter_batches(8, [group], list(names)), 1):
                size = max(size, first.nbytes // len(first))  # repeated texts are stored once
            step = max(1, min(most, DECODED // max(1, size)))
            yield from self.file.iter_batches(step, row_groups=[group], columns=list(names))


def _parts(batch: Any, most: int) -> Iterator[Any]:
    """Yield slices of a batch with at most ``most`` bytes, or one row."""
    if len(batch) == 1 or batch.nbytes <= most:
        yield batch
        return
    half = len(batch) // 2
    yield from _parts(batch.slice(0, half), most)
    yield from _parts(batch.slice(half), most)


# --- writing ---


@contextmanager
def rows_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | Table], None]]:
    """Yield a function that writes rows or columns; any row may have additional columns.

    Rows are spooled, so that the type of a column can hold the values of all rows. The bytes depend
    on the rows alone, not on the number of rows per call.
    """
    column_types: dict[str, Any] = {}
    first_row: list[str] = []
    headers: list[Table] = []
    blocks = RowBlocks(ROWS_PER_BLOCK)
    with closing(Spool()) as spool:

        def write(rows: Sequence[Row] | Table) -> None:
            if not rows:
                return
            table = table_of(rows)
            if not first_row:
                first_row.extend(table.columns if isinstance(rows, Table) else rows[0])
            if not len(table):
                headers.append(table)
            for block in blocks.add(table):
                keep(block)

        def keep(block: Table) -> None:
            _merge_types(column_types, block)
            spool.add(block)

        yield write
        for block in blocks.rest():
            keep(block)
        for table in headers:  # their values show the types of columns without rows
            new = {name: table.columns[name] for name in table.columns if name not in column_types}
            _merge_types(column_types, Table(new, 0))
        if not column_types:
            return
        names = column_order(column_types, first_row)
        columns = {name: column_types[name] or pyarrow.string() for name in names}
        with columns_writer(file, columns, True) as put:
            for block in spool:
                put({name: block.columns.get(name, [None] * len(block)) for name in columns})


def _merge_types(column_types: dict[str, Any], table: Table) -> None:
    """Widen the column types to include the values of a table."""
    for name, values in table.columns.items():
        known = column_types.get(name)
        ours = type_of(TYPES[name]) if name in TYPES else None
        if ours and known in (None, ours) and fits(values, ours):
            column_types[name] = ours
        else:
            column_types[name] = common_type(known, values)


def common_schema(paths: Sequence[str]) -> Any:
    """Return the schema of all columns of some files, with the metadata of the first one.

    Raises OutputError for columns of the same name with incompatible types.
    """
    schemas = []
    for path in paths:
        with on_disk(path) as source, opened(source, path) as table:
            schemas.append(table.schema)
    try:
        schema = pyarrow.unify_schemas(schemas, promote_options="default")
    except pyarrow.ArrowException as different:
        raise OutputError(
            f"the columns of the inputs have different types: {different}",
            "give one file at a time, or write JSONL",
        ) from None
    return schema.with_metadata(schemas[0].metadata)


def copy_rows(paths: Sequence[str], chosen: Sequence[Array], schema: Any, file: IO[bytes]) -> None:
    """Write the chosen rows of some files as one file with this schema.

    ``chosen`` has a mask, bool [n], for each file; rows beyond the mask are left out. A column that
    a file does not have is null in its rows.
    """
    waiting = [schema.empty_table()]
    size = 0
    with ParquetWriter(file, schema) as writer:
        for path, rows in zip(paths, chosen, strict=True):
            start = 0
            with on_disk(path) as source, opened(source, path) as table:
                for batch in table.batches(table.names, ROWS):
                    mask = numpy.zeros(len(batch), bool)
                    known = rows[start : start + len(batch)]
                    mask[: len(known)] = known
                    start += len(batch)
                    kept = pyarrow.Table.from_batches([batch.filter(pyarrow.array(mask))])
                    waiting.append(kept)
                    size += kept.nbytes
                    if size >= GROUP:
                        writer.write_table(_joined(waiting, schema))
                        waiting = [schema.empty_table()]
                        size = 0
        writer.write_table(_joined(waiting, schema))


def _joined(tables: Sequence[Any], schema: Any) -> Any:
    return pyarrow.concat_tables(tables, promote_options="default").cast(schema)


@contextmanager
def columns_writer(
    file: IO[bytes], kinds: Mapping[str, Any], repeated: Sequence[str] | bool
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes columns of these Arrow types (see `column`).

    A row group is written when it has `GROUP` bytes. ``repeated`` columns are dictionary-encoded.
    """
    schema = pyarrow.schema([*kinds.items()])
    waiting, size = [], 0  # tables, and their size in bytes

    def write(columns: Mapping[str, Any]) -> None:
        nonlocal size
        cells = [column(columns[name], kind) for name, kind in kinds.items()]
        waiting.append(pyarrow.table(cells, schema=schema))
        size += waiting[-1].nbytes
        if size >= GROUP:
            flush()

    def flush() -> None:
        nonlocal size
        if waiting:
            writer.write_table(pyarrow.concat_tables(waiting))
        waiting.clear()
        size = 0

    with ParquetWriter(file, schema, use_dictionary=repeated) as writer:
        yield write
        flush()


def rows_of_frame(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a pandas, polars or Arrow data frame.

    Source: the PyCapsule interface of Arrow, and the data frame interchange protocol.
    """
    if hasattr(frame, "__arrow_c_stream__"):
        table = pyarrow.table(frame)
    else:
        from pyarrow.interchange import from_dataframe

        table = from_dataframe(frame)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
