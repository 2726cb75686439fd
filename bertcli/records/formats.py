"""The file formats of records: lines, JSONL, CSV, TSV and Parquet, one function each.

Each takes an open file and its reader, and yields lists of records. No record larger
than `--max-record-bytes` is held in memory, however it is compressed.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import IO, Any

from bertcli.errors import SKIP, InputError
from bertcli.files.delimited import DelimitedRows, handfuls, refuse_other_columns
from bertcli.files.jsonl import object_in, value_of
from bertcli.files.paths import input_name
from bertcli.files.streams import (
    Block,
    LineDecoder,
    blocks,
    on_disk,
    open_bytes,
    read_chunk,
    recoded,
    stream_of,
    too_large,
)
from bertcli.files.typed_json import BadJsonError, parse, parse_lines
from bertcli.files.writers import TENSORS
from bertcli.records.read_progress import ReadProgress
from bertcli.records.records import (
    Record,
    RecordFields,
    TextBlock,
    checked,
    fields_of,
    no_pair,
)

OBJECTS = 'each line is an object like {"text": "..."}; plain texts need --input-format txt'
FEW = 16  # lines that are not worth a look at all of them together
READ_AS_JSONL = "stdin begins with a JSON object: read as JSONL (--input-format txt: as text)"
Blocks = Iterator[Sequence[Record]]  # as many records as a read brought


def read(path: str, reader: ReadProgress) -> Blocks:
    """Yield the records of one file, in the source's format or that of the suffix."""
    form = reader.source.format_of(path)
    name = input_name(path)
    if form in (*TENSORS, "parquet"):
        with on_disk(path, reader.count) as place:  # it needs random access
            if form == "parquet":
                yield from parquet(place, name, reader)
            else:
                yield from arrays(place, form, name, reader)
        return
    source = reader.source
    ended = form == "txt" or (path == "-" and form == "jsonl")
    separator = b"\0" if source.null and ended else b"\n"
    with open_bytes(path, reader.count) as stream:
        decode = LineDecoder(name, source.encoding, source.encoding_errors, separator=separator)
        if "a\n".encode(source.encoding) != b"a\n":  # it cannot be cut at newline bytes, as UTF-16
            stream = recoded(stream, name, source.encoding, source.encoding_errors)
            decode = LineDecoder(name, "utf-8", "strict", separator=separator)
        if path == "-" and source.format == "auto" and not source.ids:
            objects, stream = begins_with_object(stream, decode, source.max_record_bytes)
            if objects and form != "jsonl":
                form = "jsonl"
                reader.note(READ_AS_JSONL)
            reader.stdin_format = form
            source.refuse_fields(map(reader.format_of, source.paths))
        yield from FORMS[form](stream, decode, reader)
        reader.replaced += decode.replaced


def arrays(place: str, form: str, path: str, reader: ReadProgress) -> Blocks:
    """NPY, NPZ and safetensors: a row is a record of token ids."""
    from bertcli.files.arrays import read_ids

    limit = reader.source.max_record_bytes

    def parse(line: int, ids: list[int]) -> Record:
        if 8 * len(ids) > limit:
            raise too_large(f"{path}:{line}", limit)
        return Record("", file=path, line=line, ids=ids)

    for number, rows in read_ids(place, path, form):
        yield reader.collect(enumerate(rows, number), parse)


def lines(stream: IO[bytes], decode: LineDecoder, reader: ReadProgress) -> Blocks:
    """One text per line (or up to a NUL); an empty line is an empty text."""
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
            yield TextBlock.of_lines(texts, name, block.number)


def whole(stream: IO[bytes], decode: LineDecoder, reader: ReadProgress) -> Blocks:
    """One text, the whole file; its id is the name of the file."""
    source, name = reader.source, decode.name

    def parse(number: int, block: Block) -> Record:
        return checked(Record(decode(block, 0), id=name, file=name, line=number), source)

    yield reader.collect(enumerate(_all_of(stream, reader, name), 1), parse)


def _all_of(stream: IO[bytes], reader: ReadProgress, name: str) -> Iterator[Block]:
    """Yield what is left of a file as one line; one larger than a record may be is skipped."""
    limit = reader.source.max_record_bytes
    parts, size = [], 0
    while size <= limit and (chunk := read_chunk(stream, name)):
        parts.append(chunk)
        size += len(chunk)
    if size > limit:
        reader.skip(too_large(name, limit))
        return
    block = Block(1, 0, b"".join(parts))
    block.lines = [block.raw]
    yield block


def json_values(stream: IO[bytes], decode: LineDecoder, reader: ReadProgress) -> Blocks:
    """One JSON array of objects or strings, each a record; what begins otherwise is JSONL."""
    name = decode.name
    head = read_chunk(stream, name, peek=True)
    if not head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from jsonl(stream, decode, reader)
        return
    objects = _Objects(reader, name, strings=True)
    for block in _all_of(stream, reader, name):
        yield reader.collect(enumerate(objects.value(decode(block, 0), name), 1), objects.record)


def jsonl(stream: IO[bytes], decode: LineDecoder, reader: ReadProgress) -> Blocks:
    """One JSON object per line; blank lines are skipped."""
    objects = _Objects(reader, decode.name)

    def parse(block: Block, number: int, index: int) -> Record:
        return objects(decode(block, index), number)

    for block in _blocks(stream, decode, reader):
        filled = [(number, i) for number, i in _numbered(block) if block.lines[i].strip()]
        texts = decode.lines(block) if len(filled) >= FEW else None
        together = texts and objects.together(texts, filled)
        yield together or reader.collect(iter(filled), partial(parse, block))


def delimited(
    stream: IO[bytes], decode: LineDecoder, reader: ReadProgress, *, tabs: bool
) -> Blocks:
    """CSV (quoted) or TSV (never quoted: a lone quotation mark is text), with a header."""
    source = reader.source
    limit, delimiter = source.max_record_bytes, source.delimiter
    rows = DelimitedRows(stream, decode, limit, tabs=tabs, delimiter=delimiter)
    first = None if tabs and source.are_pairs else next(rows, None)
    rows.skip = reader.skip
    names = first[1] if first else []
    ahead: list[tuple[int, list[str]]] = []  # a row that is no header
    if source.are_pairs:
        names = [source.text_field or "text", source.pair_field or "pair"]
        ahead = [first] if first and first[1] != names else []
    elif first is None:
        return
    fields = reader.table_fields(names, decode.name)

    def fitting(number: int, row: list[str]) -> tuple[int, list[str]]:
        if source.are_pairs and len(row) != 2:
            raise no_pair(f"{decode.name}:{number}", len(row))
        refuse_other_columns(f"{decode.name}:{number}", row, names)
        return number, row

    for batch in handfuls(chain(ahead, rows)):
        if any(len(row) != len(names) for _, row in batch):
            batch = reader.collect(iter(batch), fitting)
        cells = zip(*(row for _, row in batch), strict=True) if batch else [()] * len(names)
        columns: dict[str, list[Any]] = {
            name: [*column] for name, column in zip(names, cells, strict=True)
        }
        for field in () if source.are_pairs else filter(None, (fields.pair, fields.id)):
            columns[field] = [cell or None for cell in columns[field]]  # all that CSV has for none
        yield reader.rows(fields, columns, decode.name, [number for number, _ in batch])


def parquet(place: str, path: str, reader: ReadProgress) -> Blocks:
    """Parquet, read in batches of rows and only the columns needed."""
    from bertcli.files.parquet import opened

    source = reader.source
    with opened(place, path) as table:
        if source.are_pairs and len(table.names) > 2 and not source.pair_field:
            raise no_pair(path, len(table.names))
        fields = reader.table_fields(table.names, path)

        def large(line: int) -> None:
            reader.skip(too_large(f"{path}:{line}", source.max_record_bytes))

        errors = source.encoding_errors
        for first, columns in table.columns(fields.needed, source.max_record_bytes, large, errors):
            lines = range(first, first + len(columns[fields.text]))
            yield reader.rows(fields, columns, path, lines)


def conll(stream: IO[bytes], decode: LineDecoder, reader: ReadProgress) -> Blocks:
    """Sentences as in CoNLL 2003: a word a line, its tag last, and a blank line after each."""
    lines: list[list[str]] = []
    start = 1

    def sentence() -> list[Record]:
        words, tags = ([cells[at] for cells in lines] for at in (0, -1))
        lines.clear()
        extra = {"words": words, "tags": tags}
        return [Record(words, extra=extra, file=decode.name, line=start)] if words else []

    for block in _blocks(stream, decode, reader):
        for number, index in _numbered(block):
            cells = decode(block, index).split()
            if not cells or cells[0] == "-DOCSTART-":
                yield sentence()
            elif len(cells) < 2:
                problem = f"{decode.name}:{number}: a word without a tag"
                reader.skip(InputError(problem, "a line is a word, its tag last"))
            else:
                start = start if lines else number
                lines.append(cells)
    yield sentence()


def _blocks(stream: IO[bytes], decode: LineDecoder, reader: ReadProgress) -> Iterator[Block]:
    limit = reader.source.max_record_bytes
    return blocks(stream, decode.name, decode.separator, limit, reader.skip)


def _numbered(block: Block) -> Iterator[tuple[int, int]]:
    return ((block.number + index, index) for index in range(len(block.lines)))


class _Objects:
    """Records from lines of JSON; the fields may change from line to line."""

    def __init__(self, reader: ReadProgress, name: str, *, strings: bool = False) -> None:
        source = self.source = reader.source
        self.values = (list,) if source.ids else (str,) if strings else ()  # records of their own
        self.reader, self.name = reader, name
        self.single = replace(source, pair_field=None)  # that field may be missing
        self.known: dict[tuple[str, ...], RecordFields] = {}  # by the keys of an object

    def __call__(self, text: str, number: int) -> Record:
        return self.record(number, self.value(text, f"{self.name}:{number}"))

    def value(self, text: str, where: str) -> Any:
        """Return the value of a text; none of its strings is half of a surrogate pair."""
        value = value_of(text, where, SKIP)
        if "\\ud" not in text.lower():
            return value
        escaped = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        try:
            return parse(escaped.decode("utf-16", self.source.encoding_errors))
        except UnicodeDecodeError:
            raise InputError(
                f"{where}: a field holds half of a surrogate pair, which is not text",
                "use --encoding-errors replace",
            ) from None

    def record(self, number: int, value: Any) -> Record:
        """Return the record of a value."""
        source, name = self.source, self.name
        if isinstance(value, self.values):
            return checked(Record("", file=name, line=number)._replace(text=value), source)
        value = object_in(value, f"{name}:{number}", OBJECTS)
        return self.reader.record(self._fields(tuple(value), number), value, name, number)

    def together(
        self, texts: list[str], filled: Sequence[tuple[int, int]]
    ) -> Sequence[Record] | None:
        """Return the records of a block of lines; None where one of them needs a closer look."""
        values = parse_lines([texts[index] for _, index in filled])
        if values is None or {*map(type, values)} != {dict}:
            return None
        try:
            shapes = [self._fields(keys, 0) for keys in dict.fromkeys(map(tuple, values))]
        except InputError:  # a closer look says of which line
            return None
        fields = shapes[0]
        if any(other != fields for other in shapes):
            return None
        columns = {name: [value[name] for value in values] for name in fields.needed}
        return self.reader.rows(fields, columns, self.name, [number for number, _ in filled])

    def _fields(self, keys: tuple[str, ...], number: int) -> RecordFields:
        fields = self.known.get(keys)
        if fields is None:
            source = self.source if self.source.pair_field in keys else self.single
            fields = self.known[keys] = fields_of(source, keys, f"{self.name}:{number}")
        return fields


def begins_with_object(
    stream: IO[bytes], decode: LineDecoder, limit: int
) -> tuple[bool, IO[bytes]]:
    """Return whether the first line that is not blank is a JSON object, and the whole stream.

    No more is read than up to the end of that line: typed lines are texts as soon as they are
    there.
    """
    head = line = b""
    while len(head) <= limit and (chunk := read_chunk(stream, decode.name)):
        head += chunk
        filled = head.removeprefix(codecs.BOM_UTF8).lstrip(b"\0 \t\r\n")
        line, end, _ = filled.partition(decode.separator)
        if end or line[:1] not in (b"", b"{"):
            break
    try:
        is_object = isinstance(parse(line.decode(decode.encoding, decode.errors)), dict)
    except (BadJsonError, UnicodeDecodeError):
        is_object = False
    chunks = iter(partial(read_chunk, stream, decode.name), b"")
    return is_object, stream_of(chain(filter(None, [head]), chunks), stream)


FORMS: dict[str, Callable[[IO[bytes], LineDecoder, ReadProgress], Blocks]] = {
    "txt": lines,
    "whole": whole,
    "jsonl": jsonl,
    "json": json_values,
    "conll": conll,
    "csv": partial(delimited, tabs=False),
    "tsv": partial(delimited, tabs=True),
}
