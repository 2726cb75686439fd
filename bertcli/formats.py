"""The file formats of records: lines, JSONL, CSV, TSV and Parquet, one function each.

Each takes a path and the Reader that asks, and yields lists of records.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, Any

from bertcli.errors import SKIP, InputError
from bertcli.lines import Lines
from bertcli.records import ARRAYS, Reader, Record, Source, checked, fields_of
from bertcli.streams import (
    CHUNK,
    Block,
    Decoder,
    blocks,
    ends_lines_with_one_byte,
    on_disk,
    open_bytes,
    recoded,
)

Parse = Callable[[int, list[str]], Record]

ROWS = 1024  # records a list, where the format does not set it


def read(path: str, reader: Reader) -> Iterator[Sequence[Record]]:
    """Yield the records of one file in the format that the source names or the suffix tells."""
    form = reader.source.format_of(path)
    name = "stdin" if path == "-" else path
    if form in (*ARRAYS, "parquet"):
        with on_disk(path, reader.count) as place:
            yield from _of_file(place, form, name, reader)
        return
    source = reader.source
    separator = b"\0" if source.null and form == "txt" else b"\n"
    with open_bytes(path, reader.count) as stream:
        decode = Decoder(name, source.encoding, source.encoding_errors, separator=separator)
        if not ends_lines_with_one_byte(source.encoding):
            stream = recoded(stream, name, source.encoding, source.encoding_errors)
            decode = Decoder(name, "utf-8", "strict", separator=separator)
        yield from FORMS[form](stream, decode, reader)
        reader.replaced += decode.replaced


def _of_file(place: str, form: str, name: str, reader: Reader) -> Iterator[list[Record]]:
    """Yield the records of a file that is read here and there, not from its start to its end."""
    if form == "parquet":
        return parquet(place, name, reader)
    from bertcli.arrays import read_rows

    return read_rows(place, form, name, reader)


def lines(stream: IO[bytes], decode: Decoder, reader: Reader) -> Iterator[Sequence[Record]]:
    """One text a line (or up to a NUL); an empty line is an empty text."""
    source, name = reader.source, decode.name
    plain = not (source.pre_split or source.ids)

    def parse(block: Block, number: int, index: int) -> Record:
        text = decode(block, index)
        if source.ids and text.startswith("{"):  # what `bertcli tokenize` pipes on
            return _object_in(text, source, name, number)
        record = Record(text, file=name, line=number)
        return record if plain else checked(record, source)

    for block in blocks(stream, name, decode.separator):
        texts = decode.lines(block) if plain else None
        if texts is None:
            yield reader.collect(_numbered(block), partial(parse, block))
        else:
            yield Lines(texts, name, block.number)


def jsonl(stream: IO[bytes], decode: Decoder, reader: Reader) -> Iterator[list[Record]]:
    """One JSON object a line; blank lines are passed over."""

    def parse(block: Block, number: int, index: int) -> Record:
        return _object_in(decode(block, index), reader.source, decode.name, number)

    for block in blocks(stream, decode.name):
        filled = ((number, i) for number, i in _numbered(block) if block.lines[i].strip())
        yield reader.collect(filled, partial(parse, block))


def delimited(
    stream: IO[bytes], decode: Decoder, reader: Reader, *, tabs: bool
) -> Iterator[list[Record]]:
    """CSV (quoted) or TSV (never quoted: a lone quotation mark is text), with a header."""
    csv.field_size_limit(2**31 - 1)
    texts = _Texts(stream, decode, reader)
    table = (
        csv.reader(texts, delimiter="\t", quoting=csv.QUOTE_NONE)
        if tabs
        else csv.reader(texts, strict=True)
    )
    rows = _rows(table, texts, decode.name)
    if reader.source.are_pairs:
        parse: Parse = partial(_pair_row, reader.source, decode.name)
        header = None if tabs else next(rows, None)
        if header and header[1] != _pair_names(reader.source):
            yield reader.collect(iter([header]), parse)
    else:
        header = next(rows, None)
        if header is None:
            return
        parse = _row_parser(reader.source, decode.name, header[1])
    for some in _handfuls(rows):
        yield reader.collect(some, parse)


def parquet(place: str, path: str, reader: Reader) -> Iterator[list[Record]]:
    """Parquet, read in batches of rows and only the columns that are needed."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow", 'pip install "bertcli[parquet]"'
        ) from None
    source = reader.source
    try:
        with ParquetFile(place) as file:
            there = file.schema_arrow.names
            if source.are_pairs and len(there) > 2 and not source.pair_field:
                raise _too_many(path, len(there))
            fields = fields_of(source, there, path)
            needed = [name for name in (*fields[:3], *fields.rest) if name]
            number = 1
            for batch in file.iter_batches(ROWS, columns=needed):

                def parse(line: int, row: dict[str, Any]) -> Record:
                    return fields.record(row, source, path, line)

                for start in range(0, len(batch), step := _rows_at_once(batch)):
                    rows = batch.slice(start, step).to_pylist()
                    yield reader.collect(enumerate(rows, number + start), parse)
                number += len(batch)
    except (ArrowException, OSError) as broken:
        raise InputError(f"{path}: not a readable Parquet file: {broken}") from None


def _numbered(block: Block) -> Iterator[tuple[int, int]]:
    return ((block.number + index, index) for index in range(len(block.lines)))


class _Texts:
    """Decoded lines with their ends, one by one, for the csv module."""

    def __init__(self, stream: IO[bytes], decode: Decoder, reader: Reader) -> None:
        self.blocks = blocks(stream, decode.name)
        self.decode, self.reader = decode, reader
        self.block, self.index = Block(1, 0, []), 0

    def __iter__(self) -> _Texts:
        return self

    def __next__(self) -> str:
        while True:
            while self.index == len(self.block.lines):
                self.block, self.index = next(self.blocks), 0
            self.index += 1
            try:
                return self.decode(self.block, self.index - 1) + "\n"
            except InputError as error:
                self.reader.skip(error)

    @property
    def number(self) -> int:
        return self.block.number + self.index - 1


def _rows(table: Any, texts: _Texts, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the line that each begins on."""
    number = 1
    while True:
        try:
            row = next(table)
        except StopIteration:
            return
        except csv.Error as bad:
            raise InputError(
                f"{name}:{number}: not valid CSV: {bad}", "an unclosed quotation mark?"
            ) from None
        yield number, row
        number = texts.number + 1


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


def _rows_at_once(batch: Any) -> int:
    return int(max(1, len(batch) * CHUNK // max(CHUNK, batch.nbytes)))


def _row_parser(source: Source, name: str, header: list[str]) -> Parse:
    fields = fields_of(source, header, name)

    def parse(number: int, row: list[str]) -> Record:
        if len(row) != len(header):
            raise InputError(
                f"{name}:{number}: {len(row)} columns, but the header has {len(header)}", SKIP
            )
        found: dict[str, Any] = dict(zip(header, row, strict=True))
        for field in (fields.pair, fields.id):
            if field and not found[field]:  # an empty cell is all that CSV has for "none"
                found[field] = None
        return fields.record(found, source, name, number)

    return parse


def _pair_names(source: Source) -> list[str]:
    return [source.text_field or "text", source.pair_field or "pair"]


def _pair_row(source: Source, name: str, number: int, row: list[str]) -> Record:
    if len(row) > 2:
        raise _too_many(f"{name}:{number}", len(row))
    if len(row) < 2:
        raise InputError(
            f"{name}:{number}: {len(row)} column where a pair has two", "separate the two by a tab"
        )
    return checked(Record(row[0], row[1], file=name, line=number), source)


def _too_many(where: str, count: int) -> InputError:
    return InputError(
        f"{where}: {count} columns, but BERT takes at most two sentences",
        "keep two columns, or read the file with --input and name --text-field and --pair-field",
    )


def _object_in(text: str, source: Source, name: str, number: int) -> Record:
    """Return the record in a line of JSON: each object may have other fields than the last."""
    where = f"{name}:{number}"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as bad:
        raise InputError(f"{where}: not valid JSON: {bad.msg}, column {bad.colno}", SKIP) from None
    except ValueError as bad:
        raise InputError(f"{where}: not valid JSON: {bad}", SKIP) from None
    except RecursionError:
        raise InputError(f"{where}: JSON nested too deeply", SKIP) from None
    if source.ids and isinstance(value, list):
        return checked(Record("", file=name, line=number)._replace(text=value), source)
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: expected a JSON object, found {type(value).__name__}",
            'each line is an object like {"text": "..."}; plain texts need --input-format txt',
        )
    optional = source if source.pair_field in value else replace(source, pair_field=None)
    record = fields_of(optional, list(value), where).record(value, source, name, number)
    if "\\ud" not in text.lower():
        return record
    key, extra = _whole([record.id, record.extra], where, source)
    return record._replace(id=key, extra=extra)


def _whole(value: Any, where: str, source: Source) -> Any:
    """Return a JSON value whose strings are text: an escape may write half of a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        if source.encoding_errors == "strict":
            raise InputError(
                f"{where}: a field holds half of a surrogate pair, which is not text",
                "use --encoding-errors replace",
            ) from None
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value


FORMS: dict[str, Callable[[IO[bytes], Decoder, Reader], Iterator[Sequence[Record]]]] = {
    "txt": lines,
    "jsonl": jsonl,
    "csv": partial(delimited, tabs=False),
    "tsv": partial(delimited, tabs=True),
}
