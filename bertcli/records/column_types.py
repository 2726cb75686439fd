"""Numeric columns of CSV files, and their values.

A column is numeric if each of its cells, in all rows of all files, is a number or empty. That takes
a pass over the files before the first row is read, so inputs that can be read only once, such as
stdin, have no numeric columns. Numbers must be written as in JSON, so that nothing is lost: 007,
+49 and 1,5 are text, and so is an integer that does not fit a 64-bit integer, or (in a column with
decimals) is not exact as a float.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, Literal

from bertcli.errors import InputError
from bertcli.formats.delimited import DelimitedRows, row_blocks
from bertcli.formats.registry import FORMATS
from bertcli.io.streams import (
    LineDecoder,
    can_be_reread,
    open_bytes,
    recoded,
    stream_of,
)
from bertcli.records.input import Input

NumberType = Literal["int", "float"]

INTEGER = re.compile("0|-?[1-9][0-9]*")
DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
MAX_INTEGER = 2**63 - 1
MAX_EXACT_FLOAT = 2**53  # larger integers may not be exact as floats


def number_columns(source: Input) -> dict[str, NumberType]:
    """Return the numeric columns of the CSV and TSV files of a source, with their number types.

    Returns an empty dict if one of these files can be read only once.
    """
    paths = [path for path in source.paths if FORMATS[source.format_of(path)].delimiter]
    if not all(map(can_be_reread, paths)):
        return {}
    columns: dict[str, NumberColumn] = {}
    for path in paths:
        with delimited_rows(path, source) as rows:
            _, names = next(rows, (1, []))
            rows.columns = len(names)
            file_columns = {name: columns.setdefault(name, NumberColumn()) for name in names}
            for batch in row_blocks(rows):
                undecided = [
                    (names.index(name), column)
                    for name, column in file_columns.items()
                    if not column.has_text
                ]
                if not undecided:
                    break
                cells = [row for _, row in batch if len(row) == len(names)]
                for index, column in undecided:
                    column.add([row[index] for row in cells])
    return {name: column.type for name, column in columns.items() if column.type}


class NumberColumn:
    """The type of a column, from the cells seen so far."""

    def __init__(self) -> None:
        self.has_text = False
        self.has_integers = False
        self.has_decimals = False
        self.largest = 0  # largest absolute value of the integers

    @property
    def type(self) -> NumberType | None:
        """The number type; None for a column with text, or without values."""
        if self.has_text or not (self.has_integers or self.has_decimals):
            return None
        if not self.has_decimals:
            return "int" if self.largest <= MAX_INTEGER else None
        return "float" if self.largest <= MAX_EXACT_FLOAT else None

    def add(self, cells: Sequence[str]) -> None:
        """Update the type with more cells."""
        for cell in filter(None, cells):
            if INTEGER.fullmatch(cell) and len(cell) < 20:
                self.has_integers = True
                self.largest = max(self.largest, abs(int(cell)))
            elif DECIMAL.fullmatch(cell) and not INTEGER.fullmatch(cell) and isfinite(float(cell)):
                self.has_decimals = True
            else:
                self.has_text = True
                return


def to_numbers(
    cells: Sequence[str], number_type: NumberType, path: str
) -> list[int | float | None]:
    """Return cells as numbers, empty ones as None. Raises InputError if a cell is not a number."""
    convert: Any = int if number_type == "int" else float
    try:
        return [convert(cell) if cell else None for cell in cells]
    except ValueError:
        raise InputError(
            f"{path}: was changed while it was read", "run the command again"
        ) from None


@contextmanager
def delimited_rows(path: str, source: Input) -> Iterator[DelimitedRows]:
    """Yield a reader of a file's rows that ignores unreadable rows: `Reader` reports them."""
    is_tsv = FORMATS[source.format_of(path)].delimiter == "\t"
    encoding = source.format_options.encoding
    with open_bytes(path) as stream:
        if "a\n".encode(encoding) != b"a\n":  # not divisible at newline bytes, such as UTF-16
            stream = stream_of(recoded(stream, path, encoding, "replace"), stream)
            encoding = "utf-8"
        decode = LineDecoder(path, encoding, "replace")
        rows = DelimitedRows(
            stream,
            decode,
            source.format_options.max_record_bytes,
            tabs=is_tsv,
            delimiter=source.format_options.delimiter,
        )
        rows.skip = ignore_error
        yield rows


def ignore_error(error: InputError) -> None:
    """Ignore the error of an unreadable row."""
