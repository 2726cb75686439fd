"""CSV (quoted if needed) and TSV (never quoted), with a header: read and write rows."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import islice
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import IO, Any

from bertcli.errors import SKIP, InputError, OutputError, counted
from bertcli.formats.file_types import refuse_not_text
from bertcli.formats.tables import (
    Row,
    cell,
    column_order,
    fields_of,
    refuse_new_columns,
    without_headers,
)
from bertcli.io.streams import (
    CHUNK,
    LARGEST_RECORD,
    LineDecoder,
    blocks,
    open_bytes,
    raise_error,
    read_chunk,
    too_large,
)

QUOTES = "check for an unclosed quotation mark, or lines that end with a carriage return alone"
ROWS_PER_BLOCK = 1024


# --- reading ---


class DelimitedRows:
    """The rows of a table, CSV (quoted) or TSV (never quoted: quotation marks are text).

    Yields each row with the number of its first line. No row of more than ``max_bytes`` is held in
    memory as a whole. An invalid row raises InputError, unless another ``skip`` is set: a line
    that cannot be read invalidates its whole row, because the lines after an open quotation mark
    are not separate rows.

    Blank lines are skipped, as in csv, pandas and DuckDB. In a TSV with one column, where nothing
    is quoted, a blank line is an empty text.
    """

    def __init__(
        self,
        stream: IO[bytes],
        decode: LineDecoder,
        max_bytes: int = LARGEST_RECORD,
        *,
        tabs: bool,
        delimiter: str = ",",
    ) -> None:
        csv.field_size_limit(2**31 - 1)
        self.decode = decode
        self.max_bytes = max_bytes
        self.quoted = not tabs
        self.skip: Callable[[InputError], None] = raise_error
        self.blocks = blocks(stream, decode.name, decode.separator, max_bytes, self._skip_row, True)
        self.is_skipped = False  # the current row is skipped
        self.first_line = 0  # of the current row
        self.size = 0  # of the current row in bytes
        self.columns = 0  # of the header, once known
        quoting: Any = {"quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
        self.table = csv.reader(self._lines(), delimiter="\t" if tabs else delimiter, **quoting)

    def __iter__(self) -> DelimitedRows:
        return self

    def __next__(self) -> tuple[int, list[str]]:
        while True:
            self.first_line = 0
            self.size = 0
            self.is_skipped = False
            try:
                row = next(self.table)
            except csv.Error as bad:
                if not self.is_skipped:
                    error = InputError(
                        f"{self.decode.name}:{self.first_line}: not valid CSV: {bad}", QUOTES
                    )
                    self._skip_row(error)
            else:
                if self.is_skipped:
                    continue
                if self.columns == 1 and not self.quoted:
                    return self.first_line, row or [""]
                if not self._is_blank(row):
                    return self.first_line, row

    def _is_blank(self, row: list[str]) -> bool:
        if self.columns == 1:
            return not row
        return len(row) <= 1 and not "".join(row).strip()

    def _lines(self) -> Iterator[str]:
        """Yield decoded lines; a skipped line is reduced to its unpaired quotation mark, if any."""
        for block in self.blocks:
            for index, line in enumerate(block.lines):
                self.first_line = self.first_line or block.number + index
                self.size += len(line) + 1
                try:
                    if not self.is_skipped and self.size - 1 > self.max_bytes:
                        raise too_large(f"{self.decode.name}:{self.first_line}", self.max_bytes)
                    text = "" if self.is_skipped else self.decode(block, index)
                except InputError as error:
                    self._skip_row(error)
                if self.is_skipped:
                    text = '"' * (line.count(b'"') % 2 if self.quoted else 0)
                # csv.reader keeps the line ends within quotation marks, and drops those of rows.
                ends_with_cr = self.quoted and not self.is_skipped and line.endswith(b"\r")
                yield text + ("\r\n" if ends_with_cr else "\n")

    def _skip_row(self, error: InputError) -> None:
        """Skip the current row, or raise its error."""
        self.skip(error)
        self.is_skipped = True


def refuse_other_columns(where: str, row: Sequence[str], header: Sequence[str]) -> None:
    """Raise InputError for a row with more or fewer columns than the header."""
    if len(row) != len(header):
        columns = counted(len(row), "column")
        raise InputError(f"{where}: {columns}, but the header has {len(header):,}", SKIP)


def cells_in(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line of CSV or TSV; an empty list if the line is not valid."""
    if delimiter == "\t":
        return line.split("\t")
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a carriage return in the line
        return []


def row_blocks(rows: Iterable[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield rows with their line numbers in lists, as many as a block of lines would contain."""
    block = []
    size = 0
    for number, row in rows:
        block.append((number, row))
        size += sum(map(len, row))
        if len(block) == ROWS_PER_BLOCK or size > CHUNK:
            yield block
            block = []
            size = 0
    if block:
        yield block


class CsvTable:
    """An open CSV file: the ``columns`` of its header (empty without one), and its rows."""

    def __init__(self, name: str, rows: DelimitedRows) -> None:
        self.name = name
        self.rows = rows
        _, self.columns = next(rows, (1, list[str]()))

    def blocks(self) -> Iterator[list[tuple[int, list[str]]]]:
        """Yield lists of line numbers and cells.

        Raises InputError for a row whose number of cells differs from the header's.
        """
        for rows in row_blocks(self.rows):
            for number, cells in rows:
                refuse_other_columns(f"{self.name}:{number}", cells, self.columns)
            yield rows


@contextmanager
def open_csv(path: str) -> Iterator[CsvTable]:
    """Open a UTF-8 CSV file."""
    with open_bytes(path) as stream:
        refuse_not_text(read_chunk(stream, path, peek=True), path, "utf-8")
        yield CsvTable(
            path, DelimitedRows(stream, LineDecoder(path, "utf-8", "strict"), tabs=False)
        )


# --- writing ---


def encoder(*, tabs: bool) -> Callable[[Sequence[Row]], bytes]:
    """Return a function that encodes rows as CSV (quoted if needed) or TSV (never quoted).

    The first rows determine the columns of the header. Lists are JSON in a cell.
    """
    names: list[str] = []

    def encode(rows: Sequence[Row]) -> bytes:
        table = []
        if rows and not names:
            names.extend(column_order(fields_of(rows), rows[0]))
            table.append(names)
        refuse_new_columns(rows, names)
        return _lines([*table, *_cells(rows, names)], tabs=tabs)

    return encode


@contextmanager
def file_writer(file: IO[bytes], *, tabs: bool) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Yield a function that writes rows to a file; any row may have additional columns.

    The lines are spooled to a temporary file, because the header is known only at the end. The
    bytes depend on the rows alone, not on the number of rows per call.
    """
    columns_seen: list[str] = []
    first_row: Row = {}
    counts: set[int] = set()  # numbers of columns of the lines
    with TemporaryFile() as body:

        def write(rows: Sequence[Row]) -> None:
            if rows and not columns_seen:
                first_row.update(rows[0])
            columns_seen.extend(name for name in fields_of(rows) if name not in columns_seen)
            cells = [*_cells(rows, columns_seen)]
            counts.update(map(len, cells))
            body.write(_lines(cells, tabs=tabs))

        yield write
        if not columns_seen:
            return
        body.seek(0)
        columns = column_order(columns_seen, first_row)
        file.write(_lines([columns], tabs=tabs))
        if columns == columns_seen and counts <= {len(columns_seen)}:
            shutil.copyfileobj(body, file)
            return
        csv.field_size_limit(2**31 - 1)
        order = [columns_seen.index(name) for name in columns]
        dialect: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
        table = csv.reader(TextIOWrapper(body, "utf-8", newline=""), **dialect)
        while block := [*islice(table, ROWS_PER_BLOCK)]:
            padded = [cells + [""] * (len(columns_seen) - len(cells)) for cells in block]
            file.write(_lines([[cells[i] for i in order] for cells in padded], tabs=tabs))


csv_encoder = partial(encoder, tabs=False)
tsv_encoder = partial(encoder, tabs=True)
csv_writer = partial(file_writer, tabs=False)
tsv_writer = partial(file_writer, tabs=True)


def _cells(rows: Sequence[Row], names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield the cells of each row, without headers."""
    return ([cell(row.get(name)) for name in names] for row in without_headers(rows))


def _lines(table: Sequence[Sequence[Any]], *, tabs: bool) -> bytes:
    return "".join((_tsv if tabs else _csv)(table)).encode()


def _csv(table: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield lines of cells. Only the line ends are converted: a cell may contain CR and LF."""
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append)).writerows(table)
    return (line.removesuffix("\r\n") + "\n" for line in lines)


def _tsv(table: Sequence[Sequence[Any]]) -> Iterator[str]:
    for cells in table:
        texts = ["" if cell is None else str(cell) for cell in cells]
        if any(end in text for text in texts for end in "\t\r\n"):
            raise OutputError(
                "a value holds a tab or a line end, which TSV cannot hold", "write CSV or JSONL"
            )
        yield "\t".join(texts) + "\n"
