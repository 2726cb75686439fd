"""The file formats of records: lines, JSONL, CSV, TSV and Parquet, one function each.

Each takes a path and the Reader that asks, and yields lists of records. No record of more than
`--max-record-bytes` is held in memory, whatever it is packed in.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, Any

from bertcli.errors import SKIP, InputError
from bertcli.files.streams import (
    CHUNK,
    Block,
    LineDecoder,
    blocks,
    ends_lines_with_one_byte,
    on_disk,
    open_bytes,
    recoded,
    too_large,
)
from bertcli.files.typed_json import BadJsonError
from bertcli.files.typed_json import parse as parse_json
from bertcli.records.records import ARRAYS, Reader, Record, RecordFields, Source, checked, fields_of
from bertcli.records.text_block import TextBlock

Parse = Callable[[int, list[str]], Record]

ROWS = 1024  # records a list, where the format does not set it
SHAPES = 1024  # sets of keys that lines of JSON may have before they are looked up anew


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
        decode = LineDecoder(name, source.encoding, source.encoding_errors, separator=separator)
        if not ends_lines_with_one_byte(source.encoding):
            stream = recoded(stream, name, source.encoding, source.encoding_errors)
            decode = LineDecoder(name, "utf-8", "strict", separator=separator)
        yield from FORMS[form](stream, decode, reader)
        reader.replaced += decode.replaced


def _of_file(place: str, form: str, name: str, reader: Reader) -> Iterator[list[Record]]:
    """Yield the records of a file that is read here and there, not from its start to its end."""
    if form == "parquet":
        return parquet(place, name, reader)
    from bertcli.files.id_arrays import read_rows

    return read_rows(place, form, name, reader)


def lines(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Iterator[Sequence[Record]]:
    """One text a line (or up to a NUL); an empty line is an empty text."""
    source, name = reader.source, decode.name
    plain = not (source.pre_split or source.ids)
    objects = _Objects(reader, name)

    def parse(block: Block, number: int, index: int) -> Record:
        text = decode(block, index)
        if source.ids and text.startswith("{"):  # what `bertcli tokenize` pipes on
            return objects(text, number)
        record = Record(text, file=name, line=number)
        return record if plain else checked(record, source)

    for block in _blocks(stream, decode, reader):
        texts = decode.lines(block) if plain else None
        if texts is None:
            yield reader.collect(_numbered(block), partial(parse, block))
        else:
            yield TextBlock(texts, name, block.number)


def jsonl(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Iterator[list[Record]]:
    """One JSON object a line; blank lines are passed over."""
    objects = _Objects(reader, decode.name)

    def parse(block: Block, number: int, index: int) -> Record:
        return objects(decode(block, index), number)

    for block in _blocks(stream, decode, reader):
        filled = ((number, i) for number, i in _numbered(block) if block.lines[i].strip())
        yield reader.collect(filled, partial(parse, block))


def delimited(
    stream: IO[bytes], decode: LineDecoder, reader: Reader, *, tabs: bool
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
        fields = _fields(reader, header[1], decode.name)
        parse = partial(_row, fields, reader, decode.name, header[1])
    for some in _handfuls(rows):
        yield reader.collect(some, parse)


def parquet(place: str, path: str, reader: Reader) -> Iterator[list[Record]]:
    """Parquet, read in batches of rows and only the columns that are needed."""
    from bertcli.files.parquet import opened

    source = reader.source
    with opened(place, path) as table:
        if source.are_pairs and len(table.names) > 2 and not source.pair_field:
            raise _too_many(path, len(table.names))
        fields = _fields(reader, table.names, path)
        for name in filter(None, fields[:2]):
            table.check_text(name)

        def parse(line: int, row: dict[str, Any]) -> Record:
            for name, value in row.items():
                if isinstance(value, bytes):
                    raise InputError(
                        f"{path}:{line}: field {name!r} is not valid UTF-8",
                        "use --encoding-errors replace",
                    )
            return fields.record(row, reader, path, line)

        def large(line: int) -> None:
            reader.skip(too_large(f"{path}:{line}", source.max_record_bytes))

        errors = source.encoding_errors
        for rows in table.rows(fields.needed, source.max_record_bytes, large, errors):
            yield reader.collect(rows, parse)


def _blocks(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Iterator[Block]:
    limit = reader.source.max_record_bytes
    return blocks(stream, decode.name, decode.separator, limit, reader.skip)


def _fields(reader: Reader, there: Sequence[str], where: str) -> RecordFields:
    """Return the fields of a table, which the reader keeps for the header of the output."""
    fields = fields_of(reader.source, there, where)
    for name in fields.needed:
        if there.count(name) > 1:
            raise InputError(
                f"{where}: {there.count(name)} columns are named {name!r}",
                "give each a name of its own, or leave it out of --keep-fields",
            )
    reader.fields = fields
    return fields


def _numbered(block: Block) -> Iterator[tuple[int, int]]:
    return ((block.number + index, index) for index in range(len(block.lines)))


class _Dropped(Exception):
    """The row that is being read is passed over: this was said already."""


class _CsvLines:
    """Decoded lines with their ends, one by one, for the csv module.

    A line that cannot be read takes its whole row with it: what follows an open quotation mark is
    no row of its own.
    """

    def __init__(
        self, stream: IO[bytes], decode: LineDecoder, reader: Reader, *, quoted: bool
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
                    "lines end with a line feed here, not with a carriage return alone"
                    if mac
                    else "an unclosed quotation mark?",
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
    fields: RecordFields, reader: Reader, name: str, header: list[str], number: int, row: list[str]
) -> Record:
    if len(row) != len(header):
        raise InputError(
            f"{name}:{number}: {len(row)} columns, but the header has {len(header)}", SKIP
        )
    found: dict[str, Any] = dict(zip(header, row, strict=True))
    for field in (fields.pair, fields.id):
        if field is not None and not found[field]:  # an empty cell is all that CSV has for "none"
            found[field] = None
    return fields.record(found, reader, name, number)


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


class _Objects:
    """Records in lines of JSON: each object may have other fields than the last."""

    def __init__(self, reader: Reader, name: str) -> None:
        source = self.source = reader.source
        self.reader, self.name = reader, name
        self.single = replace(source, pair_field=None)  # that field may be missing
        self.known: dict[tuple[str, ...], RecordFields] = {}  # by the keys of an object

    def __call__(self, text: str, number: int) -> Record:
        source, name = self.source, self.name
        try:
            value = parse_json(text)
        except BadJsonError as bad:
            raise InputError(f"{name}:{number}: not valid JSON: {bad}", SKIP) from None
        if source.ids and isinstance(value, list):
            return checked(Record("", file=name, line=number)._replace(text=value), source)
        if not isinstance(value, dict):
            raise InputError(
                f"{name}:{number}: expected a JSON object, found {type(value).__name__}",
                'each line is an object like {"text": "..."}; plain texts need --input-format txt',
            )
        record = self._fields(tuple(value), number).record(value, self.reader, name, number)
        if "\\" not in text or "\\ud" not in text.lower():
            return record
        key, extra = _whole([record.id, record.extra], f"{name}:{number}", source)
        return record._replace(id=key, extra=extra)

    def _fields(self, keys: tuple[str, ...], number: int) -> RecordFields:
        found = self.known.get(keys)
        if found is None:
            source = self.source if self.source.pair_field in keys else self.single
            found = fields_of(source, keys, f"{self.name}:{number}")
            if len(self.known) < SHAPES:
                self.known[keys] = found
        return found


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
        return parse_json(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value


FORMS: dict[str, Callable[[IO[bytes], LineDecoder, Reader], Iterator[Sequence[Record]]]] = {
    "txt": lines,
    "jsonl": jsonl,
    "csv": partial(delimited, tabs=False),
    "tsv": partial(delimited, tabs=True),
}
