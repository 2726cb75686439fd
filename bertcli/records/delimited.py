"""CSV (quoted) and TSV (never quoted): tables with a header, or sentence pairs without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any

from bertcli.errors import SKIP, InputError
from bertcli.files.delimited import DelimitedRows, handfuls
from bertcli.files.streams import LineDecoder
from bertcli.records.reader import ReadProgress
from bertcli.records.records import Record, RecordFields, checked, too_many_columns
from bertcli.records.source import Source

Parse = Callable[[int, list[str]], Record]


def delimited(
    stream: IO[bytes], decode: LineDecoder, reader: ReadProgress, *, tabs: bool
) -> Iterator[list[Record]]:
    """CSV (quoted) or TSV (never quoted: a lone quotation mark is text), with a header."""
    rows = DelimitedRows(stream, decode, reader.source.max_record_bytes, reader.skip, tabs=tabs)
    if reader.source.are_pairs:
        parse: Parse = partial(_pair_row, reader.source, decode.name)
        header = None if tabs else next(rows, None)
        rows.begin()
        if header and header[1] != _pair_names(reader.source):
            yield reader.collect(iter([header]), parse)
    else:
        header = next(rows, None)
        if header is None:
            return
        rows.begin()
        fields = reader.table_fields(header[1], decode.name)
        parse = partial(_row, fields, reader, decode.name, header[1])
    for some in handfuls(rows):
        yield reader.collect(some, parse)


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
