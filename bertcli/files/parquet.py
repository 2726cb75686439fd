"""Parquet: rows in and out, as values that JSON holds; arrays in and out, as lists of numbers.

    with opened("reviews.parquet", "reviews.parquet") as table:
        for first, columns in table.columns(["text", "when"], 32 << 20, print): ...
    with rows_writer(file) as write:
        write([{"id": "a", "input_ids": [101, 102]}])

What is read is in the memory of a few rows. `arrow` says how values of other types are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import BertcliError, InputError
from bertcli.files.streams import unreadable
from bertcli.files.tables import (
    TYPES,
    ColumnTable,
    FlatLists,
    Made,
    Row,
    Spool,
    refuse_new,
    table_of,
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
GROUP = 16 << 20  # bytes of a row group, before they are packed
DECODED = 16 << 20  # bytes decoded together, as far as the sizes of columns tell
AT_ONCE = 1 << 18  # bytes that become Python's objects together

Large = Callable[[int], None]  # is told the number of a row that is larger than the limit


# --- reading ---


@contextmanager
def opened(place: str, path: str, hint: str = "") -> Iterator[Table]:
    """Open a file that messages call ``path``. Raises InputError when it cannot be read."""
    try:
        with arrow.ParquetFile(place) as file:
            yield Table(file, path)
    except (arrow.pyarrow.ArrowException, OSError, ValueError, OverflowError) as broken:
        if isinstance(broken, OSError) and broken.errno:
            raise unreadable(path, broken) from None
        raise InputError(f"{path}: not a readable Parquet file: {broken}", hint) from None


class Table:
    """The columns of a file. A value that is no UTF-8 is bytes, unless ``errors`` is "replace"."""

    def __init__(self, file: Any, path: str) -> None:
        self.file, self.path = file, path
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

    def columns(
        self, names: Sequence[str], limit: int, large: Large, errors: str = "strict"
    ) -> Iterator[tuple[int, dict[str, list[Any]]]]:
        """Yield the number of a row and the values of columns from there, any number of rows.

        Rows that are too large are left out.
        """
        number = 1
        for batch in self._batches(names, ROWS):
            for part in _parts(batch, min(AT_ONCE, limit)):
                if part.nbytes > limit:
                    large(number)
                else:
                    yield number, {name: arrow.values(part.column(name), errors) for name in names}
                number += len(part)

    def arrays(self, name: str, most: int) -> Iterator[Array]:
        """Yield a column of numbers, or of lists of one length, as arrays [<= most, D...].

        Raises InputError for a column of lists of several lengths, or longer ones than are read.
        """
        kind = self.schema.field(name).type
        if not self.metadata.num_rows and hasattr(kind, "list_size"):
            yield arrow.array(arrow.pyarrow.array([], kind), name)
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
        """Yield columns in batches of at most so many rows, and fewer of long lists and texts."""
        for group in range(self.metadata.num_row_groups):
            row_group = self.metadata.row_group(group)
            size = row_group.total_byte_size // max(1, row_group.num_rows)
            for first in islice(self.file.iter_batches(8, [group], list(names)), 1):
                size = max(size, first.nbytes // len(first))  # equal texts are there once
            step = max(1, min(most, DECODED // max(1, size)))
            yield from self.file.iter_batches(step, row_groups=[group], columns=list(names))


def _parts(batch: Any, most: int) -> Iterator[Any]:
    """Cut rows where they are many bytes."""
    if len(batch) == 1 or batch.nbytes <= most:
        yield batch
        return
    half = len(batch) // 2
    yield from _parts(batch.slice(0, half), most)
    yield from _parts(batch.slice(half), most)


# --- writing ---


@contextmanager
def rows_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
    """Yield a function that writes rows or columns; the first ones say which columns there are.

    They are spooled, so that a column has a type that holds the values of all rows.
    """
    kinds: dict[str, Any] = {}  # name of a column -> its type
    with closing(Spool()) as spool:

        def write(rows: Sequence[Row] | ColumnTable) -> None:
            if not rows:
                return
            table = table_of(rows)
            refuse_new([dict(table.columns)], [*(kinds or table.columns)])
            for name, values in table.columns.items():
                own = name in TYPES and (
                    isinstance(values, FlatLists) or any(isinstance(v, Made) for v in values)
                )
                kinds[name] = (
                    arrow.type_of(TYPES[name])
                    if own
                    else arrow.common_type(kinds.get(name), values)
                )
            if len(table):
                spool.add(table)

        yield write
        types = {name: kind or arrow.pyarrow.string() for name, kind in kinds.items()}
        if not types:
            return
        with columns_writer(file, types, True, GROUP) as put:
            for table in spool:
                put({name: table.columns.get(name, [None] * len(table)) for name in types})


@contextmanager
def columns_writer(
    file: IO[bytes], types: Mapping[str, Any], repeated: Sequence[str] | bool, group: int = 0
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes columns of these types (see `arrow.column`).

    They make a row group, once they have as many bytes as one is to have. Values of the
    ``repeated`` columns are stored once.
    """
    schema = arrow.pyarrow.schema([*types.items()])
    waiting: list[Any] = []

    def write(columns: Mapping[str, Any]) -> None:
        cells = [arrow.column(columns[name], kind) for name, kind in types.items()]
        waiting.append(arrow.pyarrow.table(cells, schema=schema))
        if sum(table.nbytes for table in waiting) >= group:
            flush()

    def flush() -> None:
        if waiting:
            writer.write_table(arrow.pyarrow.concat_tables(waiting))
            waiting.clear()

    with arrow.ParquetWriter(file, schema, use_dictionary=repeated) as writer:
        yield write
        flush()
