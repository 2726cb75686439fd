"""CSV (quoted where needed) and TSV (never quoted): rows in and rows out, behind a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from bertcli.errors import SKIP, InputError, OutputError, counted
from bertcli.files.streams import CHUNK, Block, LineDecoder, blocks, too_large
from bertcli.files.tables import NumbersText, Row, fields_of, lines_of, refuse_new

Skip = Callable[[InputError], None]
ROWS = 1024  # records a list, where the format does not set it


# --- reading ---


class _Dropped(Exception):
    """The row that is being read is passed over: this was said already."""


class _TableLines:
    """Decoded lines with their ends, one by one, for the csv module.

    A line that cannot be read takes its whole row with it: what follows an open quotation mark is
    no row of its own.
    """

    def __init__(
        self, stream: IO[bytes], decode: LineDecoder, limit: int, skip: Skip, *, quoted: bool
    ) -> None:
        self.decode, self.limit, self.told, self.quoted = decode, limit, skip, quoted
        self.blocks = blocks(
            stream, decode.name, decode.separator, self.limit, self.drop, self._count
        )
        self.block, self.index = Block(0, 0, b""), 1
        self.begun = False  # a table without its header is none, so until then nothing is skipped
        self.start()

    def start(self) -> None:
        """Begin a row."""
        self.fed = self.lost = False  # lines of the row were read, or are passed over
        self.first = self.size = self.quotes = 0  # its line, its bytes and quotation marks so far

    def __iter__(self) -> _TableLines:
        return self

    def __next__(self) -> str:
        while True:
            more = self._more()
            if self.lost and not (more and self.quotes % 2):  # that row ends here
                if self.fed:
                    raise _Dropped
                self.start()
            if not more:
                raise StopIteration
            self.index += 1
            line = self.block.lines[self.index - 1]
            self.first = self.first or self.number
            self.size += len(line) + 1
            self._count(line)
            if self.lost:
                continue
            try:
                if self.size - 1 > self.limit:
                    raise too_large(f"{self.decode.name}:{self.first}", self.limit)
                text = self.decode(self.block, self.index - 1) + "\n"
            except InputError as error:
                self.drop(error)
            else:
                self.fed = True
                return text

    def _more(self) -> bool:
        while self.index == len(self.block.lines):
            block = next(self.blocks, None)
            if block is None:
                return False
            self.block, self.index = block, 0
        return True

    def drop(self, error: InputError) -> None:
        """Pass over the row that is being read, or stop."""
        self.skip(error)
        self.lost = True

    def skip(self, error: InputError) -> None:
        """Report a row that is left out, or stop."""
        if not self.begun:
            raise error
        self.told(error)

    def _count(self, piece: bytes) -> None:
        self.quotes += piece.count(b'"') if self.quoted else 0

    @property
    def number(self) -> int:
        return self.block.number + self.index - 1


class DelimitedRows:
    """The rows of a table, CSV (quoted) or TSV (never quoted: a lone quotation mark is text).

    Each comes with the line that it begins on. No row of more than ``limit`` bytes is ever held
    whole. What cannot be read is an InputError, or, after `begin`, something to ``skip``.
    """

    def __init__(
        self,
        stream: IO[bytes],
        decode: LineDecoder,
        limit: int,
        skip: Skip,
        *,
        tabs: bool,
        delimiter: str = ",",
    ) -> None:
        csv.field_size_limit(2**31 - 1)
        self.lines = _TableLines(stream, decode, limit, skip, quoted=not tabs)
        quoting: Any = {"quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
        self.table = csv.reader(self.lines, delimiter="\t" if tabs else delimiter, **quoting)

    def begin(self) -> None:
        """Say that the header was read, without which a table is none."""
        self.lines.begun = True

    def __iter__(self) -> DelimitedRows:
        return self

    def __next__(self) -> tuple[int, list[str]]:
        while True:
            self.lines.start()
            try:
                row = next(self.table)
            except _Dropped:
                continue
            except csv.Error as bad:
                self.lines.skip(self._invalid(bad))
            else:
                return self.lines.first, row

    def _invalid(self, bad: csv.Error) -> InputError:
        mac = "new-line character" in str(bad)
        return InputError(
            f"{self.lines.decode.name}:{self.lines.first}: not valid CSV: {bad}",
            "lines must end with a line feed, not with a carriage return alone"
            if mac
            else "check for an unclosed quotation mark",
        )


def refuse_other_columns(where: str, row: Sequence[str], header: Sequence[str]) -> None:
    """Raise InputError for a row that has more columns than the header, or fewer."""
    if len(row) != len(header):
        columns = counted(len(row), "column")
        raise InputError(f"{where}: {columns}, but the header has {len(header):,}", SKIP)


def handfuls(rows: Iterable[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Gather rows, as many as a block of lines would hold."""
    gathered, size = [], 0
    for number, row in rows:
        gathered.append((number, row))
        size += sum(map(len, row))
        if len(gathered) == ROWS or size > CHUNK:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


# --- writing ---


@contextmanager
def delimited_writer(file: IO[bytes], *, tabs: bool) -> Iterator[Any]:
    """CSV, quoted where needed, or TSV, never quoted; lists are JSON in their cell."""
    names: list[str] = []
    line = _tsv if tabs else _csv()

    def write(rows: Sequence[Row]) -> None:
        lines = []
        if rows and not names:
            names.extend(fields_of(rows))
            lines.append(line(names))
        refuse_new(rows, names)
        lines += [line([_cell(row.get(name)) for name in names]) for row in lines_of(rows)]
        file.write("".join(lines).encode())
        file.flush()

    yield write


def _csv() -> Callable[[Sequence[Any]], str]:
    """Return what makes a line of cells. Only its end is changed: a cell may hold CR and LF."""
    text = io.StringIO()
    table = csv.writer(text)

    def line(cells: Sequence[Any]) -> str:
        last: str = ""
        if len(cells) > 1 and isinstance(cells[-1], NumbersText):  # what the module is slow at
            *cells, last = cells
            cells, last = [*cells, ""], f'"{last}"' if "," in last else last
        text.seek(0)
        text.truncate()
        table.writerow(cells)
        return text.getvalue().removesuffix("\r\n") + last + "\n"

    return line


def _tsv(cells: Sequence[Any]) -> str:
    texts = ["" if cell is None else str(cell) for cell in cells]
    if any(end in text for text in texts for end in "\t\r\n"):
        raise OutputError(
            "a value holds a tab or a line end, which TSV cannot hold", "write CSV or JSONL"
        )
    return "\t".join(texts) + "\n"


def _cell(value: Any) -> Any:
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value
