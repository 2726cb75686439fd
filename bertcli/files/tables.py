"""Writers of tables: CSV, TSV and Parquet, whose rows all have the same fields."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, TypeAlias

from bertcli.errors import OutputError

Row: TypeAlias = dict[str, Any]

# Arrow types of lists that we made; those of all else are taken from the first rows.
TYPES = {
    "input_ids": "list<int32>",
    "token_type_ids": "list<int8>",
    "attention_mask": "list<int8>",
    "special_tokens_mask": "list<int8>",
    "tokens": "list<string>",
    "offset_mapping": "list<list<int32>>",
    "word_ids": "list<int32>",
    "sequence_ids": "list<int8>",
}


class Made(list[Any]):
    """A list that we made, whose Arrow type is that of its name. A user's value never is one."""


class TableHeader(Row):
    """A row that begins a table, with its columns, and is not written itself."""


def lines_of(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are to be written."""
    return [row for row in rows if not isinstance(row, TableHeader)]


def fields_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of all fields of these rows, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def refuse_new(rows: Sequence[Row], known: Sequence[str]) -> None:
    """Raise OutputError when a row has a field that the table began without."""
    for name in fields_of(rows):
        if name not in known:
            raise OutputError(
                f"field {name!r} appears after the table was begun with {', '.join(known)}",
                "write JSONL, where each line may have its own fields",
            )


@contextmanager
def delimited(file: IO[bytes], *, tabs: bool) -> Iterator[Any]:
    """CSV, quoted where needed, or TSV, never quoted; lists are JSON in their cell."""
    known: list[str] = []
    line = _tsv if tabs else _csv()

    def write(rows: Sequence[Row]) -> None:
        found = []
        if rows and not known:
            known.extend(fields_of(rows))
            found.append(line(known))
        refuse_new(rows, known)
        found += [line([_cell(row.get(name)) for name in known]) for row in lines_of(rows)]
        file.write("".join(found).encode())
        file.flush()

    yield write


def _csv() -> Callable[[Sequence[Any]], str]:
    """Return what makes a line of cells. Only its end is changed: a cell may hold CR and LF."""
    text = io.StringIO()
    table = csv.writer(text)

    def line(cells: Sequence[Any]) -> str:
        text.seek(0)
        text.truncate()
        table.writerow(cells)
        return text.getvalue().removesuffix("\r\n") + "\n"

    return line


def _tsv(cells: Sequence[Any]) -> str:
    texts = ["" if cell is None else str(cell) for cell in cells]
    if any(end in text for text in texts for end in "\t\r\n"):
        raise OutputError(
            "a value holds a tab or a line end, which TSV cannot hold", "write CSV or JSONL"
        )
    return "\t".join(texts) + "\n"


@contextmanager
def parquet(file: IO[bytes]) -> Iterator[Any]:
    """Parquet with list columns; the schema is that of the first rows."""
    try:
        import pyarrow as arrow
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise OutputError(
            "writing Parquet needs pyarrow", 'pip install "bertcli[parquet]"'
        ) from None
    writer: Any = None

    def write(rows: Sequence[Row]) -> None:
        nonlocal writer
        if not rows:
            return
        try:
            writer = writer or ParquetWriter(file, _schema(arrow, rows))
            refuse_new(rows, writer.schema.names)
            writer.write_table(arrow.Table.from_pylist(lines_of(rows), schema=writer.schema))
        except (arrow.ArrowException, OverflowError, TypeError, ValueError) as bad:
            raise OutputError(
                f"a value does not fit its Parquet column: {bad}", "write JSONL, or fix the field"
            ) from None

    try:
        yield write
    finally:
        if writer:
            writer.close()


def _schema(arrow: Any, rows: Sequence[Row]) -> Any:
    fields = []
    for name in fields_of(rows):
        values = [row.get(name) for row in rows]
        if name in TYPES and any(isinstance(value, Made) for value in values):
            kind = type_of(arrow, TYPES[name])
        else:
            kind = arrow.array(values).type
            kind = arrow.string() if arrow.types.is_null(kind) else kind
        fields.append((name, kind))
    return arrow.schema(fields)


def type_of(arrow: Any, name: str) -> Any:
    """Return the Arrow type of this name, as list<int32>."""
    if name.startswith("list<"):
        return arrow.list_(type_of(arrow, name[5:-1]))
    return getattr(arrow, name)()


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value
