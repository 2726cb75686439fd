"""CSV (quoted) and TSV (never quoted): tables with a header, or sentence pairs without one."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

from bertcli.errors import SKIP, InputError
from bertcli.files.streams import CHUNK, Block, LineDecoder, blocks, too_large
from bertcli.records.reader import ReadProgress
from bertcli.records.records import Record, RecordFields, checked, too_many_columns
from bertcli.records.source import Source

Parse = Callable[[int, list[str]], Record]
ROWS = 1024  # records a list, where the format does not set it


def delimited(
    stream: IO[bytes], decode: LineDecoder, reader: ReadProgress, *, tabs: bool
) -> Iterator[list[Record]]:
    """CSV (quoted) or TSV (never quoted: a lone quotation mark is text), with a header."""
    csv.field_size_limit(2**31 - 1)
    texts = _CsvLines(stream, decode, reader, quoted=not tabs)
    table = (
        csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE)
        if tabs
        else csv.reader(texts, strict=True)
    )
    rows = _rows(table, texts)
    if reader.source.are_pairs:
        parse: Parse = partial(_pair_row, reader.source, decode.name)
        header = None if tabs else next(rows, None)
        texts.begun = True
        if header and header[1] != _pair_names(reader.source):
            yield reader.collect(iter([header]), parse)
    else:
        header = next(rows, None)
        if header is None:
            return
        texts.begun = True
        fields = reader.table_fields(header[1], decode.name)
        parse = partial(_row, fields, reader, decode.name, header[1])
    for some in _handfuls(rows):
        yield reader.collect(some, parse)


class _Dropped(Exception):
    """The row that is being read is passed over: this was said already."""


class _CsvLines:
    """Decoded lines with their ends, one by one, for the csv module.

    A line that cannot be read takes its whole row with it: what follows an open quotation mark is
    no row of its own.
    """

    def __init__(
        self, stream: IO[bytes], decode: LineDecoder, reader: ReadProgress, *, quoted: bool
    ) -> None:
        self.decode, self.reader, self.quoted = decode, reader, quoted
        self.limit = reader.source.max_record_bytes
        self.blocks = blocks(
            stream, decode.name, decode.separator, self.limit, self.drop, self._count
        )
        self.block, self.index = Block(1, 0, []), 0
        self.begun = False  # a table without its header is none, so until then nothing is skipped
        self.start()

    def start(self) -> None:
        """Begin a row."""
        self.fed = self.lost = False  # lines of the row were read, or are passed over
        self.first = self.size = self.quotes = 0  # its line, its bytes and quotation marks so far

    def __iter__(self) -> _CsvLines:
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
        self.reader.skip(error)

    def _count(self, piece: bytes) -> None:
        self.quotes += piece.count(b'"') if self.quoted else 0

    @property
    def number(self) -> int:
        return self.block.number + self.index - 1


def _rows(table: Any, texts: _CsvLines) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the line that each begins on."""
    while True:
        texts.start()
        try:
            row = next(table)
        except StopIteration:
            return
        except _Dropped:
            continue
        except csv.Error as bad:
            mac = "new-line character" in str(bad)
            texts.skip(
                InputError(
                    f"{texts.decode.name}:{texts.first}: not valid CSV: {bad}",
                    "lines must end with a line feed, not with a carriage return alone"
                    if mac
                    else "check for an unclosed quotation mark",
                )
            )
        else:
            yield texts.first, row


def _handfuls(rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    """Gather rows, as many as a block of lines would hold."""
    some, size = [], 0
    for number, row in rows:
        some.append((number, row))
        size += sum(map(len, row))
        if len(some) == ROWS or size > CHUNK:
            yield some
            some, size = [], 0
    if some:
        yield some


def _row(
    fields: RecordFields,
    reader: ReadProgress,
    name: str,
    header: list[str],
    number: int,
    row: list[str],
) -> Record:
    if len(row) != len(header):
        raise InputError(
            f"{name}:{number}: {len(row)} columns, but the header has {len(header)}", SKIP
        )
    found: dict[str, Any] = dict(zip(header, row, strict=True))
    for field in (fields.pair, fields.id):
        if field is not None and not found[field]:  # an empty cell is all that CSV has for "none"
            found[field] = None
    return reader.record(fields, found, name, number)


def _pair_names(source: Source) -> list[str]:
    return [source.text_field or "text", source.pair_field or "pair"]


def _pair_row(source: Source, name: str, number: int, row: list[str]) -> Record:
    if len(row) > 2:
        raise too_many_columns(f"{name}:{number}", len(row))
    if len(row) < 2:
        raise InputError(
            f"{name}:{number}: {len(row)} column, but a pair has two",
            "separate the two texts by a tab",
        )
    return checked(Record(row[0], row[1], file=name, line=number), source)
