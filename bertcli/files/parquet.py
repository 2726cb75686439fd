"""Parquet: rows in and out, as values that JSON holds; arrays in and out, as lists of numbers.

    with opened("reviews.parquet", "reviews.parquet") as table:
        for first, columns in table.columns(["text", "when"], 32 << 20, print): ...
    with rows_writer(file) as write:
        write([{"id": "a", "input_ids": [101, 102]}])

What is read is in the memory of a few rows. `arrow` says how values of other types are written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import BertcliError, InputError, OutputError
from bertcli.files.npy import rows_at_once
from bertcli.files.streams import unreadable
from bertcli.files.tables import (
    TYPES,
    ColumnTable,
    FlatLists,
    Made,
    Row,
    fields_of,
    lines_of,
    refuse_new,
)
from bertcli.files.versions import install_command

try:
    from bertcli.files import arrow
except ImportError as failed:  # to import this module is the check, which commands make at once
    raise BertcliError(f"Parquet needs pyarrow: {failed}", install_command("parquet")) from None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

ROWS = 1024  # decoded together, at most
GROUP = 1 << 15  # rows of a group that is made of columns
DECODED = 16 << 20  # bytes decoded together, as far as the sizes of columns tell
AT_ONCE = 1 << 18  # bytes that become Python's objects together
REPEATED = 1 << 18  # bytes of a column from which its dictionary is not written out

UNFIT = (OverflowError, TypeError, ValueError, arrow.pyarrow.ArrowException)  # for a column

Large = Callable[[int], None]  # is told the number of a row that is larger than the limit


# --- reading ---


@contextmanager
def opened(place: str, path: str, hint: str = "") -> Iterator[Table]:
    """Open a file that messages call ``path``. Raises InputError when it cannot be read."""
    try:
        with arrow.ParquetFile(place) as file:
            yield Table(file, place, path)
    except (arrow.pyarrow.ArrowException, OSError, ValueError, OverflowError) as broken:
        if isinstance(broken, OSError) and broken.errno:
            raise unreadable(path, broken) from None
        raise InputError(f"{path}: not a readable Parquet file: {broken}", hint) from None


class Table:
    """The columns of a file. A value that is no UTF-8 is bytes, unless ``errors`` is "replace"."""

    def __init__(self, file: Any, place: str, path: str) -> None:
        self.file, self.place, self.path = file, place, path
        self.schema, self.metadata = file.schema_arrow, file.metadata
        self.names: list[str] = self.schema.names

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.metadata.num_rows)

    @property
    def kinds(self) -> dict[str, str]:
        """The name of the type of each column."""
        return {field.name: str(field.type) for field in self.schema}

    def check_text(self, name: str) -> None:
        """Raise InputError for a column of a type that is no text, list or number."""
        kind = self.schema.field(name).type
        if not arrow.is_plain(kind):
            raise InputError(
                f"{self.path}: column {name!r} is of type {kind}, not text",
                "name another with --text-field, or cast it to string",
            )

    def columns(
        self, names: Sequence[str], limit: int, large: Large, errors: str = "strict"
    ) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """Yield the number of a row and the values of columns from there, any number of rows.

        Rows that are too large are left out.
        """
        number = 1
        repeated = self._repeated(names)
        with arrow.ParquetFile(
            self.place, read_dictionary=repeated, metadata=self.metadata
        ) as file:
            for group in range(file.num_row_groups):
                step = self._rows_at_once(group, names)
                for batch in file.iter_batches(step, row_groups=[group], columns=list(names)):
                    columns = {name: batch.column(name) for name in names}
                    for start, stop in _slices(
                        arrow.sizes_of(columns, len(batch)), limit, number, large
                    ):
                        rows = {name: column[start:stop] for name, column in columns.items()}
                        values = {
                            name: arrow.values(column, errors) for name, column in rows.items()
                        }
                        yield number + start, values
                    number += len(batch)

    def arrays(self, name: str, most: int) -> Iterator[Array]:
        """Yield a column of numbers, or of lists of one length, as arrays [<= most, D...].

        Raises InputError for a column of lists of several lengths, or longer ones than are read.
        """
        if not self.metadata.num_rows:
            yield from arrow.no_rows(self.schema.field(name).type)
        for batch in self._batches([name], most):
            try:
                yield arrow.array(batch.column(0), name)
            except ValueError as uneven:
                raise InputError(f"{self.path}: {uneven}") from None

    @property
    def vector_columns(self) -> list[str]:
        """The columns of lists of numbers, or of lists of them, of any length."""
        return [field.name for field in self.schema if arrow.is_vector(field.type)]

    def vectors(self, names: Sequence[str], most: int) -> Iterator[tuple[str, str, list[Array]]]:
        """Yield lists of numbers, of so many rows at a time: column, type and vectors of each.

        Raises InputError for longer lists than are read.
        """
        for batch in self._batches(names, most) if names else ():
            for name in names:
                yield (name, *arrow.vectors(batch.column(name)))

    def _batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        """Yield columns in batches of at most so many rows, and fewer of long lists."""
        for group in range(self.metadata.num_row_groups):
            rows = self.metadata.row_group(group).num_rows
            values = max((chunk.num_values for chunk in self._chunks(group, names)), default=0)
            width = values // max(1, rows)  # whatever room equal values take in the file
            step = rows_at_once(self.path, width, most)
            yield from self.file.iter_batches(step, row_groups=[group], columns=list(names))

    def _chunks(self, group: int, names: Sequence[str]) -> Iterator[Any]:
        row_group = self.metadata.row_group(group)
        for chunk in map(row_group.column, range(row_group.num_columns)):
            path = chunk.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in names):
                yield chunk

    def _rows_at_once(self, group: int, names: Sequence[str]) -> int:
        size = sum(chunk.total_uncompressed_size for chunk in self._chunks(group, names))
        row_size = size // max(1, self.metadata.row_group(group).num_rows)
        return max(1, min(ROWS, DECODED // max(1, int(row_size))))

    def _repeated(self, names: Sequence[str]) -> list[str]:
        """Return the columns of long texts of which the file holds equal ones once."""
        texts = {
            name for name in names if str(self.schema.field(name).type) in ("string", "binary")
        }
        return sorted(
            {
                chunk.path_in_schema
                for group in range(self.metadata.num_row_groups)
                for chunk in self._chunks(group, names)
                if chunk.path_in_schema in texts
                and chunk.has_dictionary_page
                and chunk.total_uncompressed_size > REPEATED
            }
        )


def _slices(
    sizes: NDArray[Any], limit: int, number: int, large: Large
) -> Iterator[tuple[int, int]]:
    """Cut rows where they become many bytes; leave out those that are too large."""
    start, total = 0, 0
    if len(sizes) and sizes.sum() <= min(AT_ONCE, limit):
        yield 0, len(sizes)
        return
    for at, size in enumerate(sizes.tolist()):
        if start < at and (size > limit or total + size > AT_ONCE):
            yield start, at
            start, total = at, 0
        if size > limit:
            large(number + at)
            start = at + 1
        else:
            total += size
    if start < len(sizes):
        yield start, len(sizes)


# --- writing ---


@contextmanager
def rows_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
    """Yield a function that writes rows or columns; the first ones say which columns there are."""
    rows_file = RowsFile(file)
    try:
        yield rows_file.write
        rows_file.flush()
    finally:
        if rows_file.writer:
            rows_file.writer.close()


class RowsFile:
    """A file of rows whose columns become wider where later rows need it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.writer: Any = None
        self.measured: bool | list[str] = False  # columns with statistics
        self.waiting: list[Any] = []  # columns, until they make a row group

    def flush(self) -> None:
        """Write what waits."""
        if self.waiting:
            self.writer.write_table(arrow.pyarrow.concat_tables(self.waiting))
            self.waiting.clear()

    def write(self, rows: Sequence[Row] | ColumnTable) -> None:
        """Add rows. Raises OutputError for a new column, or a value that fits none."""
        if not rows:
            return
        try:
            if self.writer is None:
                self.measured = _measured(rows)
                self._begin(_schema(rows))
            refuse_new(_named(rows), self.writer.schema.names)
            self.waiting.append(self._fitting(rows))
            if not isinstance(rows, ColumnTable) or sum(map(len, self.waiting)) >= GROUP:
                self.flush()
        except UNFIT as bad:
            raise OutputError(
                f"a value does not fit its Parquet column: {bad}", "write JSONL, or fix the field"
            ) from None

    def _begin(self, schema: Any) -> None:
        self.writer = arrow.ParquetWriter(self.file, schema, write_statistics=self.measured)

    def _fitting(self, rows: Sequence[Row] | ColumnTable) -> Any:
        """Return rows as a table of the file's columns, which are made wider where they must be."""
        schema = self.writer.schema
        try:
            return _table(rows, schema)
        except UNFIT:
            wider = _widened(schema, rows)
            if wider == schema or not _is_file(self.file):
                raise
        self.flush()
        self.writer.close()
        self._write_again(wider)
        return _table(rows, wider)

    def _write_again(self, schema: Any) -> None:
        """Write the rows of the finished file in wider types, in its place, and leave it open."""
        with tempfile.TemporaryFile() as before:
            self.file.flush()
            with open(self.file.name, "rb") as narrow:
                shutil.copyfileobj(narrow, before)
            self.file.seek(0)
            self.file.truncate()
            self._begin(schema)
            old = arrow.ParquetFile(before)
            for table in map(old.read_row_group, range(old.num_row_groups)):
                columns = [
                    column if column.type == kind else arrow.column(column.to_pylist(), kind)
                    for column, kind in zip(table.columns, schema.types, strict=True)
                ]
                self.writer.write_table(arrow.pyarrow.table(columns, schema=schema))


def _measured(rows: Sequence[Row] | ColumnTable) -> bool | list[str]:
    """Return the columns that have statistics: what is least in flat lists tells nobody a thing."""
    if not isinstance(rows, ColumnTable):
        return True
    return [
        name for name, column in rows.columns.items() if not isinstance(column, FlatLists)
    ] or False


def _is_file(file: IO[bytes]) -> bool:
    """Tell whether what was written can be read and written again: no pipe, nothing packed."""
    name = getattr(file, "name", None)
    return isinstance(name, (str, Path)) and Path(name).is_file() and file.seekable()


def _widened(schema: Any, rows: Sequence[Row] | ColumnTable) -> Any:
    """Return the schema of which columns hold these rows too: text holds whatever there is."""
    columns = rows.columns if isinstance(rows, ColumnTable) else _columns(rows, schema)
    kinds = [
        column.type
        if column.name in TYPES
        else arrow.common_type(column.type, columns.get(column.name) or [])
        for column in schema
    ]
    return arrow.pyarrow.schema(list(zip(schema.names, kinds, strict=True)))


def _named(rows: Sequence[Row] | ColumnTable) -> Sequence[Row]:
    return [dict(rows.columns)] if isinstance(rows, ColumnTable) else rows


def _columns(rows: Sequence[Row], schema: Any) -> dict[str, list[Any]]:
    lines = lines_of(rows)
    return {name: [row.get(name) for row in lines] for name in schema.names}


def _table(rows: Sequence[Row] | ColumnTable, schema: Any) -> Any:
    """Return rows or columns as a table; flat lists are not copied."""
    if isinstance(rows, ColumnTable):
        cells = [rows.columns.get(column.name) for column in schema]
    else:
        cells = [*_columns(rows, schema).values()]
    columns = [
        arrow.column_of_flat(values, column.type)
        if isinstance(values, FlatLists)
        else _column([None] * len(rows) if values is None else values, column)
        for values, column in zip(cells, schema, strict=True)
    ]
    return arrow.pyarrow.table(columns, schema=schema)


def _schema(rows: Sequence[Row] | ColumnTable) -> Any:
    fields: list[tuple[str, Any]] = []
    if isinstance(rows, ColumnTable):
        for name, values in rows.columns.items():
            flat = isinstance(values, FlatLists)
            kind = arrow.type_of(TYPES[name]) if flat else arrow.type_of_values(values)
            fields.append((name, kind))
        return arrow.pyarrow.schema(fields)
    for name in fields_of(rows):
        values = [row.get(name) for row in rows]
        is_made = name in TYPES and any(isinstance(value, Made) for value in values)
        fields.append(
            (name, arrow.type_of(TYPES[name]) if is_made else arrow.type_of_values(values))
        )
    return arrow.pyarrow.schema(fields)


def _column(values: Sequence[Any], field: Any) -> Any:
    """Return values as a column. Raises one of `UNFIT` where they would become others."""
    kind = field.type
    if kind != arrow.pyarrow.string() and field.name not in TYPES:
        own = arrow.array_of(values)
        if own.type == kind:
            return own
        if arrow.common_type(kind, values) != kind:  # or 0.5 would be written as 0
            raise TypeError(f"{own.type} is no {kind}")
    return arrow.column(values, kind)


class ColumnTypes:
    """The types of columns, found from all their values: text where they are of several kinds."""

    def __init__(self, kinds: Mapping[str, str | None]) -> None:
        """Begin with columns of known types, as list<int32>, and others whose values tell."""
        self.found = {name: arrow.type_of(kind or "null") for name, kind in kinds.items()}

    def set(self, name: str, kind: str) -> None:
        """Say the type of a column."""
        self.found[name] = arrow.type_of(kind)

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Take in values of a column."""
        null = arrow.pyarrow.null()
        self.found[name] = arrow.common_type(self.found.get(name, null), values)

    def settled(self) -> dict[str, Any]:
        """Return the type of each column; one without values is text."""
        null, text = arrow.pyarrow.null(), arrow.pyarrow.string()
        return {name: text if kind == null else kind for name, kind in self.found.items()}


@contextmanager
def vectors_writer(
    file: IO[bytes], types: Mapping[str, Any], cells: Mapping[str, Any]
) -> Iterator[Callable[[Mapping[str, Sequence[Any]], Mapping[str, Any]], None]]:
    """Yield a function that writes a row group: values of columns of these types, and vectors.

    The vectors, of the types ``cells`` (see `arrow.type_of_array`), stand in the last columns:
    an array [n, D...] where a row has one, arrays [k, D...] where it has several.
    """
    schema = arrow.pyarrow.schema([*types.items(), *cells.items()])

    def write(columns: Mapping[str, Sequence[Any]], vectors: Mapping[str, Any]) -> None:
        cells_of_rows = [arrow.column(columns[key], kind) for key, kind in types.items()]
        for name, kind in cells.items():
            many = arrow.pyarrow.types.is_list(kind)
            cells_of_rows.append((arrow.column_of_many if many else arrow.column_of)(vectors[name]))
        writer.write_table(arrow.pyarrow.table(cells_of_rows, schema=schema))

    with arrow.ParquetWriter(file, schema, use_dictionary=list(types)) as writer:
        yield write
