"""Rows and columns to write, as shared by CSV, TSV, Parquet and array files."""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from bertcli.errors import OutputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row: TypeAlias = dict[str, Any]

ID_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")

# Arrow types of our list columns, also used for a user's columns of these names if they fit;
# otherwise the values determine the type.
ARROW_TYPES = {
    "input_ids": "list<int32>",
    "token_type_ids": "list<int8>",
    "attention_mask": "list<int8>",
    "special_tokens_mask": "list<int8>",
    "tokens": "list<string>",
    "offset_mapping": "list<list<int32>>",
    "word_ids": "list<int32>",
    "sequence_ids": "list<int8>",
}


class NumbersText(str):
    """Lists of numbers already encoded as JSON. Never a user's value."""


class FlatLists(NamedTuple):
    """A column of lists as a flat array of values, with row offsets [B + 1]."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Named columns with ``rows`` rows each: `FlatLists`, arrays, or lists of values."""

    columns: Mapping[str, Any]
    rows: int

    def __len__(self) -> int:
        return self.rows


class TableHeader(Row):
    """A row that only defines the columns of a table. JSON and plain lines omit it."""


def rounded(value: Any) -> Any:
    """Return a JSON value with floats rounded to 9 significant digits, enough for a float32."""
    match value:
        case float():
            return float(f"{value:.9g}")
        case list():
            return [rounded(item) for item in value]
        case Mapping():
            return {name: rounded(item) for name, item in value.items()}
    return value


def without_headers(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are not headers."""
    return [row for row in rows if not isinstance(row, TableHeader)]


def table_of(rows: Sequence[Row] | Table) -> Table:
    """Return rows as columns. A header contributes its columns and values, but no row."""
    if isinstance(rows, Table):
        return rows
    columns = {name: [row.get(name) for row in rows] for name in fields_of(rows)}
    return Table(columns, len(without_headers(rows)))


class RowBlocks:
    """Collects tables, and returns their rows in blocks of ``rows`` rows.

    A block has all columns of its tables; a row without a value has None.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.waiting: list[Table] = []
        self.missing = rows

    def add(self, table: Table) -> Iterator[Table]:
        """Yield the blocks that a table completes."""
        start = 0
        while len(table) - start >= self.missing:
            self.waiting.append(_slice(table, start, start + self.missing))
            start += self.missing
            yield from self.remaining()
        if start < len(table):
            self.waiting.append(_slice(table, start, len(table)))
            self.missing -= len(table) - start

    def remaining(self) -> Iterator[Table]:
        """Yield the remaining rows as a block, if there are any."""
        if self.waiting:
            yield _joined(self.waiting)
        self.waiting = []
        self.missing = self.rows


def _slice(table: Table, start: int, stop: int) -> Table:
    columns: dict[str, Any] = {}
    for name, values in table.columns.items():
        if isinstance(values, FlatLists):
            offsets = values.offsets[start : stop + 1]
            columns[name] = FlatLists(values.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        else:
            columns[name] = values[start:stop]
    return Table(columns, stop - start)


def _joined(tables: Sequence[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(name for table in tables for name in table.columns)
    columns = {
        name: _joined_column([table.columns.get(name, [None] * len(table)) for table in tables])
        for name in names
    }
    return Table(columns, sum(map(len, tables)))


def _joined_column(columns: Sequence[Any]) -> Any:
    import numpy as np

    from bertcli.formats.row_offsets import offsets_of

    if all(isinstance(column, FlatLists) for column in columns):
        lengths = np.concatenate([np.diff(column.offsets) for column in columns])
        values = np.concatenate([column.values for column in columns])
        return FlatLists(values, offsets_of(lengths))
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    return [value for column in columns for value in _as_list(column)]


def _as_list(values: Any) -> list[Any]:
    """Return a column as a list of Python values."""
    if isinstance(values, FlatLists):
        flat = values.values.tolist()
        ends = values.offsets.tolist()
        return [flat[start:stop] for start, stop in pairwise(ends)]
    return values if isinstance(values, list) else list(values.tolist())


class Spool:
    """A temporary store of blocks of rows, pickled, which can be read several times.

    It is an unnamed file, so a kill leaves nothing behind. Must be closed.
    """

    def __init__(self) -> None:
        self.file = TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.close = self.file.close

    def add(self, block: Any) -> None:
        """Append a block."""
        pickle.dump(block, self.file, 5)

    def __iter__(self) -> Iterator[Any]:
        end = self.file.seek(0, 2)
        self.file.seek(0)
        while self.file.tell() < end:
            yield pickle.load(self.file)


to_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def cell(value: Any) -> Any:
    """Return a value as a cell of a text table: lists, objects and booleans become JSON."""
    if isinstance(value, bool | list | tuple | dict):
        return to_compact_json(value)
    return value


def fields_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all fields of these rows, in the order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def column_order(names: Iterable[str], first_row: Collection[str]) -> list[str]:
    """Return the column names in order; an id that the first row lacks comes first."""
    if "id" in first_row:
        return list(names)
    return sorted(names, key=lambda name: name != "id")


def refuse_new_columns(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Raise OutputError if a row has a field that is not a column of the table."""
    for name in fields_of(rows):
        if name not in columns:
            raise OutputError(
                f"field {name!r} appears after the table was begun with {', '.join(columns)}",
                "write JSONL, where each line may have its own fields",
            )
