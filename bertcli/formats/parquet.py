"""Parquet: read and write rows as JSON values, and arrays as lists of numbers.

    with open_parquet("reviews.parquet", "reviews.parquet") as table:
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
from contextlib import ExitStack, closing, contextmanager
from itertools import accumulate, islice
from shutil import copyfileobj
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, TYPE_CHECKING, Any

import numpy

from bertcli.errors import BertcliError, InputError, OutputError
from bertcli.formats.safetensors import GET_AGAIN
from bertcli.formats.tables import (
    ARROW_TYPES,
    FlatLists,
    Row,
    RowBlocks,
    Spool,
    Table,
    column_order,
    table_of,
    to_compact_json,
)
from bertcli.io.streams import LARGEST_RECORD, on_disk, raise_error, too_large, unreadable
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
ROW_GROUP_BYTES = 16 << 20  # before compression
DECODED_BYTES = 16 << 20  # decoded together, as estimated from column sizes
CONVERTED_BYTES = 1 << 18  # converted to Python objects together

# Names of Arrow types.
LISTS_OF_NUMBERS = re.compile(r"((fixed_size_|large_)?list<\w+: )+(u?int|halffloat|float|double)")
INTEGER_TYPE = re.compile(r"u?int\d+")
STRING_TYPES = (types.is_string, types.is_large_string, types.is_string_view)


# --- Arrow values to JSON values ---


def json_values(column: Any, errors: str = "strict") -> list[Any]:
    """Return the values of an Arrow column as JSON values.

    ``errors`` is the error handler of UTF-8. Strings that "strict" rejects are returned as bytes.
    """
    arrow_type = column.type
    if any(check(arrow_type) for check in STRING_TYPES):
        stored = column.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
        return [None if raw is None else _text_or_bytes(raw, errors) for raw in stored]
    if types.is_timestamp(arrow_type):
        from pyarrow import compute

        zone = "%Ez" if arrow_type.tz else ""
        column = compute.strftime(column, format=f"%Y-%m-%dT%H:%M:%S{zone}")
    elif types.is_temporal(arrow_type):
        column = column.cast("string")
    return [_json_value(value) for value in column.to_pylist()]


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _text_or_bytes(raw: bytes, errors: str) -> str | bytes:
    try:
        return raw.decode(errors=errors)
    except UnicodeDecodeError:
        return raw


# --- lists of numbers to NumPy arrays, and back ---


def to_numpy(column: Any, name: str) -> Array:
    """Return a column of numbers, or of (nested) lists of equal length, as one array [n, D...].

    Raises ValueError for lists of different lengths.
    """
    shape = [len(column)]
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        nulls = column.null_count
        outer_count = len(column)
        size = getattr(column.type, "list_size", 0)
        column = column.flatten()
        if nulls or (outer_count and len(column) % outer_count):
            raise ValueError(f"column {name!r} has rows of several lengths, or empty ones")
        shape.append(len(column) // outer_count if outer_count else size)
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def type_of_array(shape: Sequence[int], dtype: Any) -> Any:
    """Return the Arrow type of a cell that holds an array of this shape."""
    arrow_type = pyarrow.from_numpy_dtype(dtype)
    for size in reversed(shape):
        arrow_type = pyarrow.list_(arrow_type, size)
    return arrow_type


# --- column types, and columns ---


def type_of(name: str) -> Any:
    """Return the Arrow type of this name, such as list<int32>."""
    if name.startswith("list<"):
        return pyarrow.list_(type_of(name[5:-1]))
    return getattr(pyarrow, name)()


def arrow_array(values: Any, arrow_type: Any = None) -> Any:
    """Return values as an Arrow array; numeric NumPy arrays are not copied.

    `pyarrow.array` would import pandas to check for pandas data, which takes 1/3 s.
    """
    if not (isinstance(values, numpy.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf"):
        return pyarrow.array(values, arrow_type)
    natural_type = pyarrow.from_numpy_dtype(values.dtype)
    buffer = pyarrow.py_buffer(values.ravel())
    numbers = pyarrow.Array.from_buffers(natural_type, len(values), [None, buffer])
    return numbers.cast(arrow_type) if arrow_type else numbers


def common_type(known_type: Any, values: Sequence[Any]) -> Any:
    """Return an Arrow type that holds ``values`` and all values of the known type.

    None is the type of no values. Text holds values that have no other type in common, as JSON.
    """
    try:
        natural_type = arrow_array(values).type
        if types.is_null(natural_type):
            return known_type
        if known_type in (None, natural_type):
            return natural_type
        schemas = [pyarrow.schema([("", member)]) for member in (known_type, natural_type)]
        known_type = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()
    if "struct" in str(known_type):  # objects may have different keys
        return pyarrow.string()
    return known_type


def fits(values: Any, arrow_type: Any) -> bool:
    """Return True if an Arrow type holds these lists unchanged.

    Integers may be narrowed if they fit. Text is not a list of characters.
    """
    if isinstance(values, FlatLists):
        return True
    natural_type = INTEGER_TYPE.sub("int", str(common_type(None, values)))
    given_type = INTEGER_TYPE.sub("int", str(arrow_type))
    try:
        pyarrow.array(values, arrow_type)
    except (pyarrow.ArrowException, OverflowError):
        return False
    return natural_type == given_type or "null" in natural_type  # null: all lists are empty


def arrow_column(values: Any, arrow_type: Any) -> Any:
    """Return values as a column of an Arrow type.

    Lists of fixed size are given as one array [n, D...], or, if there are several per row, as
    arrays [k, D...]. For `FlatLists`, such as list<int32>, numbers of the type's width are not
    copied; unsigned numbers are reinterpreted as signed, which is safe for token ids.
    """
    if types.is_fixed_size_list(arrow_type):
        cells = arrow_array(values.reshape(-1))
        for size in reversed(values.shape[1:]):
            cells = pyarrow.FixedSizeListArray.from_arrays(cells, size)
        return cells
    if isinstance(values, FlatLists):
        numbers = values.values.view(f"i{values.values.itemsize}")
        numbers = numbers.astype(arrow_type.value_type.to_pandas_dtype(), copy=False)
        offsets = arrow_array(values.offsets.astype("int32"))
        return pyarrow.ListArray.from_arrays(offsets, arrow_array(numbers), type=arrow_type)
    if types.is_list(arrow_type) and isinstance(next(iter(values), None), numpy.ndarray):
        ends = pyarrow.array([0, *accumulate(map(len, values))], "int32")
        inner = arrow_column(numpy.concatenate([*values]), arrow_type.value_type)
        return pyarrow.ListArray.from_arrays(ends, inner)
    if arrow_type == pyarrow.string():  # values other than text are written as JSON
        values = [
            value if value is None or isinstance(value, str) else to_compact_json(value)
            for value in values
        ]
    elif arrow_type == pyarrow.float64():  # Arrow converts no integer above 2**53
        values = [value if value is None else float(value) for value in values]
    return arrow_array(values, arrow_type)


def file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, with fsspec's methods, and the path within it."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    system, path = FileSystem.from_uri(uri)
    return ArrowFSWrapper(system), path


# --- reading ---


@contextmanager
def open_parquet(path_or_file: str | IO[bytes], name: str) -> Iterator[ParquetTable]:
    """Open a file; ``name`` is the file in messages. Raises InputError if it cannot be read."""
    try:
        with ParquetFile(path_or_file) as file:
            yield ParquetTable(file, name)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as broken:
        if isinstance(broken, OSError) and broken.errno:
            raise unreadable(name, broken) from None
        raise InputError(f"{name}: not a readable Parquet file: {broken}", GET_AGAIN) from None


def nested_names(fields: Any) -> Iterator[str]:
    """Yield the field names of a schema or struct, each followed by the names nested in it."""
    for field in fields:
        yield field.name
        if types.is_struct(field.type):
            yield from (f"{field.name}.{name}" for name in nested_names(field.type))


class ParquetTable:
    """The columns of a file. Invalid UTF-8 is returned as bytes, unless ``errors`` is "replace"."""

    def __init__(self, file: Any, name: str) -> None:
        self.file = file
        self.name = name
        self.schema = file.schema_arrow
        self.metadata = file.metadata
        self.names: list[str] = self.schema.names

    def columns(
        self,
        names: Sequence[str],
        max_bytes: int = LARGEST_RECORD,
        skip: Callable[[InputError], None] = raise_error,
        errors: str = "strict",
    ) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """Yield columns of some rows at a time, as JSON values, with the number of the first row.

        Rows are counted from 1. ``skip`` is called with the error for a row of more than
        ``max_bytes``, which is left out if it returns.
        """
        number = 1
        for batch in self.batches(names, ROWS):
            for rows in _slices(batch, min(CONVERTED_BYTES, max_bytes)):
                if rows.nbytes > max_bytes:
                    skip(too_large(f"{self.name}:{number}", max_bytes))
                else:
                    yield number, {name: json_values(rows.column(name), errors) for name in names}
                number += len(rows)

    def arrays(self, name: str, max_rows: int) -> Iterator[Array]:
        """Yield a column of numbers, or of lists of equal length, as arrays [<= max_rows, D...].

        Raises InputError for a column of lists of different lengths.
        """
        arrow_type = self.schema.field(name).type
        if not self.metadata.num_rows and hasattr(arrow_type, "list_size"):  # D is known
            yield to_numpy(pyarrow.array([], arrow_type), name)
        for batch in self.batches([name], max_rows):
            try:
                yield to_numpy(batch.column(0), name)
            except ValueError as uneven:
                raise InputError(f"{self.name}: {uneven}") from None

    def vectors(
        self, excluded: Sequence[str], max_rows: int
    ) -> Iterator[tuple[str, str, list[Array]]]:
        """Yield lists of numbers: column, dtype, and the vectors of at most ``max_rows`` rows.

        They are the innermost lists, without nulls, of all columns except the excluded ones.
        """
        names = [
            field.name
            for field in self.schema
            if LISTS_OF_NUMBERS.match(str(field.type)) and field.name not in excluded
        ]
        for batch in self.batches(names, max_rows) if names else ():
            for name in names:
                lists = batch.column(name)
                while hasattr(lists.type.value_type, "value_type"):
                    lists = lists.flatten()
                rows = [row.values.to_numpy(zero_copy_only=False) for row in lists if row.is_valid]
                yield name, str(lists.type.value_type), rows

    def batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        """Yield columns in batches of at most ``max_rows``, fewer if lists or texts are long."""
        for group in range(self.metadata.num_row_groups):
            row_group = self.metadata.row_group(group)
            size = row_group.total_byte_size // max(1, row_group.num_rows)
            for first in islice(self.file.iter_batches(8, [group], list(names)), 1):
                size = max(size, first.nbytes // len(first))  # repeated texts are stored once
            step = max(1, min(max_rows, DECODED_BYTES // max(1, size)))
            yield from self.file.iter_batches(step, row_groups=[group], columns=list(names))


def _slices(batch: Any, max_bytes: int) -> Iterator[Any]:
    """Yield slices of a batch with at most ``max_bytes``, or one row."""
    if len(batch) == 1 or batch.nbytes <= max_bytes:
        yield batch
        return
    half = len(batch) // 2
    yield from _slices(batch.slice(0, half), max_bytes)
    yield from _slices(batch.slice(half), max_bytes)


# --- writing ---


@contextmanager
def rows_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | Table], None]]:
    """Yield a function that writes rows or columns; any row may have additional columns.

    Rows are spooled, so that the type of a column can hold the values of all rows. While there are
    only list columns of known types, they are encoded immediately instead (`EncodedLists`). The
    bytes depend on the rows alone, not on the number of rows per call.
    """
    column_types: dict[str, Any] = {}
    first_row: list[str] = []
    headers: list[Table] = []
    blocks = RowBlocks(ROWS_PER_BLOCK)
    encoded_lists: EncodedLists | None = None  # all blocks so far; None if any is spooled
    is_spooled = False
    with ExitStack() as stack:
        spool = stack.enter_context(closing(Spool()))

        def write(rows: Sequence[Row] | Table) -> None:
            if not rows:
                return
            table = table_of(rows)
            if not first_row:
                first_row.extend(table.columns if isinstance(rows, Table) else rows[0])
            if not len(table):
                headers.append(table)
            for block in blocks.add(table):
                add_block(block)

        def add_block(block: Table) -> None:
            nonlocal encoded_lists
            can_encode = EncodedLists.can_encode(block)
            if encoded_lists is None and not is_spooled and can_encode:
                encoded_lists = stack.enter_context(EncodedLists.opened([*block.columns]))
            if encoded_lists is None:
                spool_block(block)
            elif can_encode and [*block.columns] == encoded_lists.names:
                encoded_lists.write(block.columns)
            else:
                spool_encoded()
                spool_block(block)

        def spool_encoded() -> None:
            nonlocal encoded_lists
            if encoded_lists:
                for block in encoded_lists.blocks():
                    spool_block(block)
            encoded_lists = None

        def spool_block(block: Table) -> None:
            nonlocal is_spooled
            is_spooled = True
            _merge_types(column_types, block)
            spool.add(block)

        yield write
        for block in blocks.remaining():
            add_block(block)
        if encoded_lists and not headers:
            encoded_lists.copy_to(file)
            return
        spool_encoded()
        for table in headers:  # their values show the types of columns without rows
            new = {name: table.columns[name] for name in table.columns if name not in column_types}
            _merge_types(column_types, Table(new, 0))
        if not column_types:
            return
        names = column_order(column_types, first_row)
        columns = {name: column_types[name] or pyarrow.string() for name in names}
        with columns_writer(file, columns, dictionary_columns=True) as write_columns:
            for block in spool:
                nulls = [None] * len(block)
                write_columns({name: block.columns.get(name, nulls) for name in columns})


class EncodedLists:
    """Blocks of list columns with the types of `ARROW_TYPES`, in a temporary Parquet file.

    They are encoded while the next texts are tokenized, which is faster than to spool them.
    """

    def __init__(self, names: Sequence[str], file: IO[bytes], stack: ExitStack) -> None:
        self.names = names
        self._file = file
        self._stack = stack  # closing it finishes the file
        column_types = {name: type_of(ARROW_TYPES[name]) for name in names}
        self.write = stack.enter_context(
            columns_writer(file, column_types, dictionary_columns=True)
        )

    @classmethod
    @contextmanager
    def opened(cls, names: Sequence[str]) -> Iterator[EncodedLists]:
        """Yield an empty file for blocks with these columns."""
        with TemporaryFile() as file, ExitStack() as stack:
            yield cls(names, file, stack)

    @staticmethod
    def can_encode(block: Table) -> bool:
        """Return True if a block has columns, and each is a `FlatLists` named in `ARROW_TYPES`."""
        return bool(block.columns) and all(
            isinstance(values, FlatLists) and name in ARROW_TYPES
            for name, values in block.columns.items()
        )

    def copy_to(self, file: IO[bytes]) -> None:
        """Finish the file, and copy it."""
        self._stack.close()
        self._file.seek(0)
        copyfileobj(self._file, file)

    def blocks(self) -> Iterator[Table]:
        """Finish the file, and yield its blocks."""
        self._stack.close()
        for batch in ParquetFile(self._file).iter_batches(ROWS_PER_BLOCK):
            columns = {}
            for name in self.names:
                offsets = batch.column(name).offsets.to_numpy().astype("int64")
                values = batch.column(name).flatten().to_numpy()
                columns[name] = FlatLists(values, offsets - offsets[0])
            yield Table(columns, len(batch))


def _merge_types(column_types: dict[str, Any], table: Table) -> None:
    """Widen the column types to include the values of a table."""
    for name, values in table.columns.items():
        column_type = column_types.get(name)
        default_type = type_of(ARROW_TYPES[name]) if name in ARROW_TYPES else None
        if default_type and column_type in (None, default_type) and fits(values, default_type):
            column_types[name] = default_type
        else:
            column_types[name] = common_type(column_type, values)


def common_schema(paths: Sequence[str]) -> Any:
    """Return the schema of all columns of some files, with the metadata of the first one.

    Raises OutputError for columns of the same name with incompatible types.
    """
    schemas = []
    for path in paths:
        with on_disk(path) as source, open_parquet(source, path) as table:
            schemas.append(table.schema)
    try:
        schema = pyarrow.unify_schemas(schemas, promote_options="default")
    except pyarrow.ArrowException as different:
        raise OutputError(
            f"the columns of the inputs have different types: {different}",
            "give one file at a time, or write JSONL",
        ) from None
    return schema.with_metadata(schemas[0].metadata)


def copy_rows(paths: Sequence[str], masks: Sequence[Array], schema: Any, file: IO[bytes]) -> None:
    """Write the chosen rows of some files as one file with this schema.

    Each file has a mask, bool [n], of the rows to write; rows beyond the mask are left out. A
    column that a file does not have is null in its rows.
    """
    pending = [schema.empty_table()]
    size = 0
    with ParquetWriter(file, schema) as writer:
        for path, file_mask in zip(paths, masks, strict=True):
            start = 0
            with on_disk(path) as source, open_parquet(source, path) as table:
                for batch in table.batches(table.names, ROWS):
                    mask = numpy.zeros(len(batch), bool)
                    known = file_mask[start : start + len(batch)]
                    mask[: len(known)] = known
                    start += len(batch)
                    chosen = pyarrow.Table.from_batches([batch.filter(pyarrow.array(mask))])
                    pending.append(chosen)
                    size += chosen.nbytes
                    if size >= ROW_GROUP_BYTES:
                        writer.write_table(_joined(pending, schema))
                        pending = [schema.empty_table()]
                        size = 0
        writer.write_table(_joined(pending, schema))


def _joined(tables: Sequence[Any], schema: Any) -> Any:
    return pyarrow.concat_tables(tables, promote_options="default").cast(schema)


@contextmanager
def columns_writer(
    file: IO[bytes],
    column_types: Mapping[str, Any],
    *,
    dictionary_columns: Sequence[str] | bool,
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes columns of these Arrow types (see `arrow_column`).

    A row group is written in another thread when it has `ROW_GROUP_BYTES`. ``dictionary_columns``
    (True: all) store repeated values once.
    """
    from concurrent.futures import Future, ThreadPoolExecutor

    schema = pyarrow.schema([*column_types.items()])
    pending_tables = []
    pending_bytes = 0
    previous_write: Future[None] | None = None
    writer = ParquetWriter(file, schema, use_dictionary=dictionary_columns)
    writer_lock = Lock()  # the writer must not be closed while the thread writes

    def write(columns: Mapping[str, Any]) -> None:
        nonlocal pending_bytes
        arrow_columns = [
            arrow_column(columns[name], arrow_type) for name, arrow_type in column_types.items()
        ]
        pending_tables.append(pyarrow.table(arrow_columns, schema=schema))
        pending_bytes += pending_tables[-1].nbytes
        if pending_bytes >= ROW_GROUP_BYTES:
            flush()

    def flush() -> None:
        nonlocal pending_bytes, previous_write
        if previous_write:
            previous_write.result()  # or its error
        previous_write = executor.submit(write_row_group, pyarrow.concat_tables(pending_tables))
        pending_tables.clear()
        pending_bytes = 0

    def write_row_group(table: Any) -> None:
        with writer_lock:
            if writer.is_open:
                writer.write_table(table)

    executor = ThreadPoolExecutor(1)
    try:
        yield write
        if pending_tables:
            flush()
        if previous_write:
            previous_write.result()
    finally:
        # An interrupt may end `submit` or `result` while the thread writes.
        executor.shutdown(wait=False, cancel_futures=True)
        try:
            with writer_lock:
                writer.close()
        except KeyboardInterrupt:  # a second one; the thread may still write
            writer.is_open = False  # otherwise its destructor would close it
            raise


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
