"""Read records from any source, in order, and count those that cannot be read.

    for record in Reader(Input(paths=("reviews.jsonl.gz",))):
        print(record.text)

Memory is limited to one block, for a file of any size. A record that cannot be read raises
InputError with its file and line, or is reported, counted and skipped (`on_error="skip"`). There is
one function per file format (lines, JSONL, CSV, TSV, Parquet and others), which takes an open file
and its reader, and yields lists of records. No record larger than `--max-record-bytes` is held in
memory, even if it is compressed.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import IO, Any, TypeVar

from bertcli.errors import LOG, SKIP, InputError, Messages, UsageError, counted, option
from bertcli.formats.delimited import DelimitedRows, refuse_other_columns, row_blocks
from bertcli.formats.file_types import BYTE_ORDER_MARKS, refuse_not_text
from bertcli.formats.jsonl import object_in, value_of
from bertcli.formats.registry import (
    CSV,
    FORMATS,
    JSON,
    JSONL,
    TSV,
    TXT,
    WHOLE_FILE,
    Holds,
    load,
)
from bertcli.formats.tables import TableHeader
from bertcli.io.paths import input_name
from bertcli.io.streams import (
    Block,
    LineDecoder,
    blocks,
    can_be_reread,
    on_disk,
    open_bytes,
    read_chunk,
    recoded,
    stream_of,
    too_large,
)
from bertcli.io.typed_json import parse, parse_lines, shown, strict
from bertcli.records.batch import RecordBatch
from bertcli.records.column_types import NumberType, number_columns, to_numbers
from bertcli.records.extra_ids import extra_ids
from bertcli.records.headers import note_header, note_table
from bertcli.records.input import Input, input_files, is_one_file
from bertcli.records.record import Record, checked, is_empty
from bertcli.records.record_fields import (
    RecordFields,
    field_path,
    hits_of,
    not_two_columns,
    record_fields,
)

T = TypeVar("T")
TEXTS_PER_BLOCK = 1024  # texts taken from an iterable at once
ROWS_PER_BLOCK = 1024  # rows of a format converted together
# Splits records, such as into chunks: called with the reader, a block of records, and the index of
# the first one in the run.
Divide = Callable[["Reader", RecordBatch, int], Iterable[RecordBatch]]
PAIR_TYPES = frozenset({str, type(None)})
ID_TYPES = frozenset({str, int, type(None)})
OBJECTS_HINT = (
    'each line is an object like {"text": "..."}; plain texts need '
    f"{option('input_format', 'txt')}"
)
BLANK_BYTES = b"\0 \t\r\n"
FEW_LINES = 16  # fewer lines are parsed one by one
AS_TEXT = f"{option('input_format', 'txt')}: as text"
FORMAT_NOTES = {  # detected format of stdin -> note
    JSONL: f"stdin begins with a JSON object: read as JSONL ({AS_TEXT})",
    JSON: f"stdin begins with JSON: read as JSON ({AS_TEXT})",
}
ONE_PER_LINE_HINT = (
    f"write one object per line, as jq -c does; plain texts need {option('input_format', 'txt')}"
)
Blocks = Iterator[Sequence[Record]]  # each has the records of one read


def finite(value: Any, where: str, name: str) -> Any:
    """Return a value without NaN and infinity. Raises InputError if it contains any."""
    if strict(value) == value:
        return value
    raise InputError(
        f"{where}: field {name!r} holds NaN or infinity, which JSON cannot hold",
        "write null there, or leave the field out",
    )


class Reader:
    """Iterates over the records of a source; expands its folders and globs to files.

    Raises InputError for a path without a file, UsageError for fields of inputs that have none.
    """

    def __init__(
        self,
        source: Input,
        *,
        divide: Divide | None = None,
        warn: Callable[[str], None] = LOG.warn,
    ) -> None:
        paths = input_files(source.paths, source)
        if source.fields.with_location is None:
            is_file_given = len(paths) <= 1 and all(map(is_one_file, source.paths, paths))
            source = source.changed(with_location=not is_file_given)
        self.source = replace(source, paths=paths)
        self.divide = divide  # splits each record
        self.unit = "chunks" if divide else "texts"  # name of the items it yields
        self.warn = warn  # reports skipped records
        self.given: Iterable[Any] = source.texts
        self.stdin_format: str | None = None  # set once stdin is open
        self.fields: RecordFields | None = None  # of the last table; JSONL has them per line
        self.skipped = 0  # records that could not be read
        self.replaced = 0  # characters in place of invalid bytes
        self.bytes_read = 0
        self.records = 0
        self.yielded = 0  # records after splitting
        self.empty = 0  # texts left out because they are empty
        self.exhausted = False  # True once all records were read
        for file_format in {source.format_of(path) for path in paths}:
            FORMATS[file_format].require()
        if "-" not in paths or source.format_options.format != "auto":  # otherwise stdin decides
            source.fields.refuse_without_fields(map(source.format_of, paths))

    def __iter__(self) -> Iterator[Record]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[RecordBatch]:
        """Yield records as they become available, in blocks of varying length."""
        for records in self._blocks():
            block = RecordBatch.of(records)
            if self.source.skip_empty:
                rows = [row for row, record in enumerate(block) if not is_empty(record)]
                self.empty += len(block) - len(rows)
                block = block if len(rows) == len(block) else block.take(rows)
            if self.source.fields.with_location or self.source.kept_text:
                block = self._with_carried(block)
            first_index = self.records
            self.records += len(block)
            batches = self.divide(self, block, first_index) if self.divide else [block]
            for batch in batches:
                self.yielded += len(batch)
                yield batch
        self.exhausted = True

    def again(self, **options: Any) -> Reader:
        """Return a new reader of the same records, optionally with other options."""
        reader = Reader(self.source.changed(**options), divide=self.divide, warn=self.warn)
        reader.given = self.given
        reader.unit = self.unit
        return reader

    def _with_carried(self, block: RecordBatch) -> RecordBatch:
        """Return records that carry their file and line, and their text, as requested."""
        extras: list[dict[str, Any]] = []
        for record in block:
            extra = record.extra or {}
            if text := self.source.kept_text:
                extra = {text: record.text} | extra
            if self.source.fields.with_location:
                extra = {"file": record.file, "line": record.line} | extra
            extras.append(extra)
        return replace(block, extras=extras)

    def _blocks(self) -> Iterator[Sequence[Record]]:
        numbers = count(1)
        texts = iter(self.given)
        while block := list(islice(texts, TEXTS_PER_BLOCK)):
            yield self.collect(self._record_of, block, numbers)
        for path in self.source.paths:
            yield from read_file(path, self)

    def _record_of(self, text: Any, line: int) -> Record:
        """Return the record of a text that does not come from a file."""
        if isinstance(text, Record):
            record = text if text.file or text.line else text._replace(line=line)
            return checked(record, self.source)
        is_words = self.source.pre_split and text and isinstance(text[0], str)
        pair = self.source.pair
        if isinstance(text, tuple | list) and len(text) == 2 and not is_words:
            text, pair = text
        return checked(Record(text, pair, line=line), self.source)

    def format_of(self, path: str) -> str:
        """Return the format of a file; for stdin, the detected one."""
        return (self.stdin_format if path == "-" else None) or self.source.format_of(path)

    def reserve(self, names: frozenset[str]) -> None:
        """Reserve the names of output fields, so that no input field of these names is kept."""
        self.source = self.source.changed(reserved=names)

    def read_extra_ids(self, sizes: Mapping[str, int]) -> None:
        """Read these id fields of extra embeddings, each with its number of possible ids."""
        self.source = self.source.changed(extra_ids=sizes)

    def divide_by(self, divide: Divide, unit: str = "chunks") -> None:
        """Split each record read from now on; ``unit`` is the name of the resulting items."""
        self.divide = divide
        self.unit = unit

    def count_skipped(self, records: int) -> None:
        """Add records that an earlier part of a resumed run skipped."""
        self.skipped += records

    def collect(self, parse: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
        """Return parsed items as `map` does; an invalid item stops the run or is skipped."""
        parsed = []
        for values in zip(*columns, strict=False):
            try:
                parsed.append(parse(*values))
            except InputError as error:
                self.skip(error)
        return parsed

    def summarize(self, log: Messages) -> None:
        """Log notes about all records read: empty input, empty texts, undecodable characters."""
        if not self.records and not self.skipped:
            log.note("no records: the input is empty")
        if self.empty:
            log.note(f"{counted(self.empty, 'empty text')} left out")
        if self.replaced:
            characters = counted(self.replaced, "character")
            log.warn(f"{characters} could not be decoded: read as U+FFFD")

    def skip(self, error: InputError) -> None:
        """Report and count a skipped record; with ``on_error="fail"``, raise its error."""
        if self.source.on_error != "skip":
            raise error
        self.skipped += 1
        self.warn(f"skipped: {error.marked}")

    def count(self, size: int) -> None:
        """Count bytes read from disk."""
        self.bytes_read += size

    def record(self, fields: RecordFields, file: str, line: int, row: Mapping[str, Any]) -> Record:
        """Return the record of a row.

        A list, an object, true or false is not an id. Raises InputError if such a value is in the
        field that --id-field requested, and for values that JSON cannot represent: NaN and
        infinity.
        """
        where = f"{file}:{line}"
        if fields.paths:
            row = fields.with_paths(row, where)
        record_id = row.get(fields.id) if fields.id else None
        if isinstance(record_id, bool | list | dict):
            if self.source.fields.id_field is not None:
                raise InputError(
                    f"{where}: the id is {shown(record_id)}, not a string or a number",
                    f"name another field with {option('id_field')}",
                )
            record_id = None
        record = Record(
            row[fields.text],
            row.get(fields.pair) if fields.pair else None,
            finite(record_id, where, fields.id or ""),
            {name: finite(row.get(name), where, name) for name in fields.carried} or None,
            file,
            line,
        )
        for name, value in row.items():
            if isinstance(value, bytes):  # from Parquet
                raise InputError(
                    f"{record.where}: field {name!r} is not valid UTF-8",
                    f"use {option('encoding_errors', 'replace')}",
                )
        record = checked(record, self.source)
        for name, size in self.source.fields.extra_ids.items():
            extra_ids(record, name, size)
        return record

    @cached_property
    def number_types(self) -> Mapping[str, NumberType]:
        """The numeric CSV fields (in all rows of all files) and their number types."""
        options = self.source.format_options
        fields = self.source.fields
        if not options.infer_types or options.are_pairs or fields.keep is None:
            return {}
        excluded = (fields.text_field, fields.pair_field, fields.id_field, "id", *fields.extra_ids)
        types = number_columns(self.source)
        return {name: number_type for name, number_type in types.items() if name not in excluded}

    def rows(
        self,
        fields: RecordFields,
        columns: Mapping[str, list[Any]],
        file: str,
        lines: Sequence[int],
    ) -> Sequence[Record]:
        """Return the records of columns.

        They are created together, or one by one if any needs the checks of `record`, which may
        reject or convert it. No text may contain a lone surrogate.
        """
        texts, pairs, ids = (columns.get(name) if name else None for name in fields[:3])
        carried = [columns[name] for name in fields.carried if name in columns]
        needs_checks = (
            self.source.ids
            or self.source.pre_split
            or self.source.fields.extra_ids
            or fields.paths
            or {*map(type, texts or ())} != {str}
            or not PAIR_TYPES.issuperset(map(type, pairs or ()))
            or not ID_TYPES.issuperset(map(type, ids or ()))
            or any(bytes in map(type, column) for column in carried)
            or strict(carried) != carried
        )
        if needs_checks or not texts:
            rows = (
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            )
            return self.collect(partial(self.record, fields, file), lines, rows)
        extras: Any = [
            dict(zip(fields.carried, row, strict=True)) for row in zip(*carried, strict=True)
        ]
        pairs = None if pairs is None or pairs.count(None) == len(pairs) else pairs
        ids = None if ids is None or ids.count(None) == len(ids) else ids
        return RecordBatch(texts, pairs, ids, extras or None, [file] * len(texts), lines)

    def header(self, columns: Mapping[str, Any]) -> TableHeader:
        """Return the header row of a table without rows: these columns, ids and kept fields."""
        id_column = {"id": None} if self.fields and self.fields.id is not None else {}
        return TableHeader(
            {**id_column, **columns, **dict.fromkeys(self.fields.carried if self.fields else ())}
        )

    def table_fields(self, names: Sequence[str], where: str) -> RecordFields:
        """Return the fields of a table, and store them for the header of the output.

        Raises InputError for a missing field, or for a name that two columns have.
        """
        fields = record_fields(self.source, names, where)
        columns = Counter(names)
        for name in fields.needed:
            if columns[name] > 1:
                raise InputError(
                    f"{where}: {columns[name]} columns are named {name!r}",
                    f"give each a name of its own, or leave it out of {option('keep_fields')}",
                )
        self.fields = fields
        return fields


class GivenTexts(Reader):
    """A reader of texts from Python: an iterable of strings, pairs, records or lists of words.

    ``alone`` is True for a single text. A value of another type raises InputError when it is read.
    """

    def __init__(self, texts: Any, source: Input) -> None:
        super().__init__(source)
        refuse_frame(texts)
        several = isinstance(texts, Iterable) and not isinstance(texts, Mapping)
        self.alone = isinstance(texts, str | bytes | Record) or not several
        self.given = [texts] if self.alone else texts


def is_frame(value: Any) -> bool:
    """Return True for a pandas, polars or Arrow data frame."""
    can_be_exported = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")
    return can_be_exported and hasattr(value, "columns")


def refuse_frame(texts: Any) -> None:
    """Raise UsageError for a data frame, because iterating over it yields column names."""
    if is_frame(texts):
        raise UsageError("a data frame is not a text", "give one of its columns: frame['text']")


def refuse_pipes(reader: Reader) -> None:
    """Raise UsageError for texts that cannot be read twice."""
    for path in reader.source.paths:
        if not can_be_reread(path):
            name = "stdin" if path == "-" else path
            raise UsageError(f"{name}: cannot be read twice, as is needed here", "give a file")


def read_file(path: str, reader: Reader) -> Blocks:
    """Yield the records of one file, in the source's format or that of the suffix."""
    file_format = reader.source.format_of(path)
    entry = FORMATS[file_format]
    name = input_name(path)
    if entry.needs_seek:
        with on_disk(path, reader.count) as path_or_file:
            if entry.can_hold(Holds.ARRAYS):
                yield from read_array(path_or_file, file_format, name, reader)
            else:
                yield from read_parquet(path_or_file, name, reader)
        return
    source = reader.source
    options = source.format_options
    may_end_with_nul = file_format == TXT or (path == "-" and file_format == JSONL)
    separator = b"\0" if options.null and may_end_with_nul else b"\n"
    with open_bytes(path, reader.count) as stream:
        encoding = options.encoding
        errors: str = options.encoding_errors
        if path != "-":  # its first line may still be typed
            head = read_chunk(stream, name, peek=True)
            try:
                refuse_not_text(head, name, encoding)
            except InputError as refused:
                reader.skip(refused)
                return
        if "a\n".encode(encoding) != b"a\n":  # not divisible at newline bytes, such as UTF-16
            stream = stream_of(recoded(stream, name, encoding, errors), stream)
            encoding = "utf-8"
            errors = "strict"
        decode = LineDecoder(name, encoding, errors, separator=separator)
        if path == "-" and options.format == "auto" and not source.ids:
            detected, stream = detect_json(stream, decode, source)
            if detected and file_format != JSONL:
                file_format = detected
                LOG.note(FORMAT_NOTES[detected])
            reader.stdin_format = file_format
            source.fields.refuse_without_fields(map(reader.format_of, source.paths))
        if FORMATS[file_format].reader:
            records = read_rows(file_format, stream, decode, reader)
        else:
            records = READERS[file_format](stream, decode, reader)
        is_guess = path == "-" and file_format == TXT and options.format == "auto"
        if is_guess and not (source.ids or source.pre_split or options.null):
            records = with_table_note(records)
        yield from records
        reader.replaced += decode.replaced


def read_array(
    path_or_file: str | IO[bytes], file_format: str, name: str, reader: Reader
) -> Blocks:
    """Yield the rows of an NPY, NPZ or safetensors file as records of token ids."""
    from bertcli.formats.arrays import read_ids

    limit = reader.source.format_options.max_record_bytes

    def parse(line: int, ids: list[int]) -> Record:
        if 8 * len(ids) > limit:
            raise too_large(f"{name}:{line}", limit)
        return Record("", file=name, line=line, ids=ids)

    for number, rows in read_ids(path_or_file, name, file_format):
        yield reader.collect(parse, count(number), rows)


def read_lines(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Blocks:
    """Yield one text per line (or up to a NUL); an empty line is an empty text."""
    source = reader.source
    name = decode.name
    is_plain = not (source.pre_split or source.ids)
    objects = _JsonRecords(reader, name)

    def parse(block: Block, index: int) -> Record:
        text = decode(block, index)
        number = block.number + index
        if source.ids and text.startswith("{"):  # output of `bertcli tokenize`
            return objects(text, number)
        record = Record(text, file=name, line=number)
        return record if is_plain else checked(record, source)

    for block in _blocks(stream, decode, reader):
        texts = decode.lines(block) if is_plain else None
        if texts is None:
            yield reader.collect(partial(parse, block), range(len(block.lines)))
        else:
            numbers = range(block.number, block.number + len(texts))
            yield RecordBatch(texts, None, None, None, [name] * len(texts), numbers)


def with_table_note(blocks: Blocks) -> Blocks:
    """Yield the texts of stdin, with a note if the first two lines look like a table."""
    first_texts: list[Any] = []
    for block in blocks:
        if len(first_texts) < 2:
            first_texts += [record.text for record in block[: 2 - len(first_texts)]]
            if len(first_texts) == 2:
                note_table(*first_texts)
        yield block


def read_whole_file(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Blocks:
    """Yield the whole file as one text; its id is the file name."""
    source = reader.source
    name = decode.name

    def parse(block: Block) -> Record:
        return checked(Record(decode(block, 0), id=name, file=name, line=1), source)

    yield reader.collect(parse, _whole_input(stream, reader, name))


def _whole_input(stream: IO[bytes], reader: Reader, name: str) -> Iterator[Block]:
    """Yield the rest of a file as a block with one line, or skip it if it is too large."""
    limit = reader.source.format_options.max_record_bytes
    chunks = []
    size = 0
    while size <= limit and (chunk := read_chunk(stream, name)):
        chunks.append(chunk)
        size += len(chunk)
    if size > limit:
        reader.skip(too_large(name, limit))
        return
    block = Block(1, 0, b"".join(chunks))
    block.lines = [block.raw]
    yield block


def read_json(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Blocks:
    """Yield the records of a JSON list of objects or strings, or of multi-line objects.

    If each line is an object, the input is read as JSONL, with the memory of one block.
    """
    name = decode.name
    detected, stream = detect_json(stream, decode, reader.source)
    if detected == JSONL:
        yield from read_jsonl(stream, decode, reader)
        return
    objects = _JsonRecords(reader, name, strings=True)
    for block in _whole_input(stream, reader, name):
        text = decode(block, 0).strip("\0")  # a NUL may end it, with --null
        if text.lstrip().startswith("["):
            records = reader.collect(objects.records, objects.value(text, name), count(1))
        else:
            texts = _valid_texts(_separate_values(text, name), reader)
            records = reader.collect(objects.read, *zip(*texts, strict=True))
        yield [*chain.from_iterable(records)]


def _valid_texts(texts: Iterator[tuple[str, int]], reader: Reader) -> list[tuple[str, int]]:
    """Return JSON texts up to the first invalid one, which is reported or stops the run."""
    valid: list[tuple[str, int]] = []
    try:
        valid.extend(texts)
    except InputError as error:
        reader.skip(error)
    return valid


def read_jsonl(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Blocks:
    """Yield the records of one JSON object per line; blank lines are skipped."""
    objects = _JsonRecords(reader, decode.name)

    def parse(block: Block, index: int) -> list[Record]:
        return objects.read(decode(block, index), block.number + index)

    for block in _blocks(stream, decode, reader):
        filled = [index for index, line in enumerate(block.lines) if line.strip()]
        texts = decode.lines(block) if len(filled) >= FEW_LINES else None
        numbers = [block.number + index for index in filled]
        records = texts and objects.parse_block([texts[index] for index in filled], numbers)
        yield records or [*chain.from_iterable(reader.collect(partial(parse, block), filled))]


def read_delimited(stream: IO[bytes], decode: LineDecoder, reader: Reader, *, tabs: bool) -> Blocks:
    """Yield the rows of CSV (quoted) or TSV (never quoted), which have a header.

    In TSV a quotation mark is text.
    """
    source = reader.source
    limit = source.format_options.max_record_bytes
    are_pairs = source.format_options.are_pairs
    rows = DelimitedRows(
        stream, decode, limit, tabs=tabs, delimiter=source.format_options.delimiter
    )
    if are_pairs:
        rows.skip = reader.skip
        rows.columns = 2
    first_row = next(rows, None)
    rows.skip = reader.skip
    names = first_row[1] if first_row else []
    rows_ahead: list[tuple[int, list[str]]] = []  # the first row, if it is not a header
    if has_pair_columns(source, names):
        are_pairs = False
    if are_pairs:
        names = pair_columns(source)
        if first_row and (tabs or first_row[1] != names):
            rows_ahead = [first_row]
            note_header(f"{decode.name}:{first_row[0]}", first_row[1], "tsv" if tabs else "csv")
    elif first_row is None:
        return
    rows.columns = len(names)
    field_names = [name for name in names if name.strip()]  # pandas leaves the index name blank
    fields = reader.table_fields(field_names, decode.name)
    number_types = reader.number_types if fields.carried else {}

    def checked_row(number: int, row: list[str]) -> tuple[int, list[str]]:
        if are_pairs and len(row) != 2:
            raise not_two_columns(f"{decode.name}:{number}", len(row))
        refuse_other_columns(f"{decode.name}:{number}", row, names)
        return number, row

    for batch in row_blocks(chain(rows_ahead, rows)):
        if any(len(row) != len(names) for _, row in batch):
            batch = reader.collect(checked_row, *zip(*batch, strict=True))
        columns: dict[str, list[Any]] = {
            name: [row[index] for _, row in batch] for index, name in enumerate(names)
        }
        for field in () if are_pairs else filter(None, (fields.pair, fields.id)):
            if field in columns:
                columns[field] = [cell or None for cell in columns[field]]  # CSV's null
        for field in number_types.keys() & fields.carried:
            columns[field] = to_numbers(columns[field], number_types[field], decode.name)
        yield reader.rows(fields, columns, decode.name, [number for number, _ in batch])


def pair_columns(source: Input) -> list[str]:
    """Return the names of the columns of a text and its pair."""
    return [source.fields.text_field or "text", source.fields.pair_field or "pair"]


def has_pair_columns(source: Input, names: Sequence[str]) -> bool:
    """Return True for a header of more than two columns, a text and its pair among them."""
    return len(names) > 2 and {*pair_columns(source)}.issubset(names)


def read_parquet(path_or_file: str | IO[bytes], name: str, reader: Reader) -> Blocks:
    """Yield the rows of Parquet, in batches and with only the columns needed."""
    from bertcli.formats.parquet import open_parquet

    options = reader.source.format_options
    limit = options.max_record_bytes
    errors = options.encoding_errors
    with open_parquet(path_or_file, name) as table:
        has_pair_field = reader.source.fields.pair_field is not None
        is_named = has_pair_field or has_pair_columns(reader.source, table.names)
        if options.are_pairs and len(table.names) > 2 and not is_named:
            raise not_two_columns(name, len(table.names))
        fields = reader.table_fields(table.names, name)
        for number, columns in table.columns(fields.needed, limit, reader.skip, errors):
            lines = range(number, number + len(columns[fields.needed[0]]))
            yield reader.rows(fields, columns, name, lines)


def read_conll(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Blocks:
    """Yield sentences in CoNLL 2003 format: a word per line, its tag last, then a blank line."""
    lines: list[list[str]] = []  # cells of the lines of the current sentence
    start = 1  # number of its first line

    def sentence() -> list[Record]:
        words = [cells[0] for cells in lines]
        tags = [cells[-1] for cells in lines]
        lines.clear()
        extra = {"words": words, "tags": tags}
        return [Record(words, extra=extra, file=decode.name, line=start)] if words else []

    for block in _blocks(stream, decode, reader):
        for index in range(len(block.lines)):
            cells = decode(block, index).split()
            number = block.number + index
            if not cells or cells[0] == "-DOCSTART-":
                yield sentence()
            elif len(cells) < 2:
                problem = f"{decode.name}:{number}: a word without a tag"
                reader.skip(InputError(problem, "a line is a word, its tag last"))
            else:
                start = start if lines else number
                lines.append(cells)
    yield sentence()


def _blocks(stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Iterator[Block]:
    limit = reader.source.format_options.max_record_bytes
    return blocks(stream, decode.name, decode.separator, limit, reader.skip)


def read_rows(file_format: str, stream: IO[bytes], decode: LineDecoder, reader: Reader) -> Blocks:
    """Yield the records of a format with a row reader in the table of formats."""
    objects = _JsonRecords(reader, decode.name, carried=FORMATS[file_format].carried)
    lines = _numbered_lines(stream, decode, reader)
    rows = load(FORMATS[file_format].reader)(lines, decode.name, reader.skip)
    while block := [*islice(rows, ROWS_PER_BLOCK)]:
        numbers, values = zip(*block, strict=True)
        yield reader.collect(objects.record, values, numbers)


def _numbered_lines(
    stream: IO[bytes], decode: LineDecoder, reader: Reader
) -> Iterator[tuple[int, str]]:
    """Yield numbered lines. Undecodable lines are skipped."""
    for block in _blocks(stream, decode, reader):
        for index in range(len(block.lines)):
            try:
                line = decode(block, index)
            except InputError as error:
                reader.skip(error)
            else:
                yield block.number + index, line


class _JsonRecords:
    """Records from JSON values; the fields may change from value to value.

    With ``strings``, a string is a record, too. For ids, a list is one. The fields ``carried`` are
    kept beside those that the user asked for.
    """

    def __init__(
        self,
        reader: Reader,
        name: str,
        *,
        strings: bool = False,
        carried: Sequence[str] = (),
    ) -> None:
        self.reader = reader
        self.source = reader.source
        if carried and self.source.fields.keep != "*":
            kept = filter(None, (self.source.fields.keep, *carried))
            self.source = self.source.changed(keep=",".join(kept))
        self.name = name
        self.text_types: Any = (str,) if strings else ()  # a value of one of them is a record
        if self.source.ids:
            self.text_types = (list,)
        self.source_without_pair = self.source.changed(pair_field=None)  # for objects without one
        self.fields_by_keys: dict[tuple[str, ...], RecordFields] = {}

    def __call__(self, text: str, number: int) -> Record:
        return self.record(self.value(text, f"{self.name}:{number}"), number)

    def read(self, text: str, number: int) -> list[Record]:
        """Return the records of a JSON text."""
        return self.records(self.value(text, f"{self.name}:{number}"), number)

    def value(self, text: str, where: str) -> Any:
        """Return the value of a JSON text, without lone surrogates in its strings."""
        value = value_of(text, where, SKIP)
        if "\\ud" not in text.lower():
            return value
        escaped = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        try:
            return parse(escaped.decode("utf-16", self.source.format_options.encoding_errors))
        except UnicodeDecodeError:
            raise InputError(
                f"{where}: a field holds half of a surrogate pair, which is not text",
                f"use {option('encoding_errors', 'replace')}",
            ) from None

    def records(self, value: Any, number: int) -> list[Record]:
        """Return the record of a value, or of each hit in an answer of `bertcli similar`."""
        hits = hits_of(value) if self.source.fields.text_field is None else None
        return [self.record(row, number) for row in ([value] if hits is None else hits)]

    def record(self, value: Any, number: int) -> Record:
        """Return the record of a value."""
        source = self.source
        name = self.name
        if isinstance(value, self.text_types):
            return checked(Record("", file=name, line=number)._replace(text=value), source)
        value = object_in(value, f"{name}:{number}", OBJECTS_HINT)
        return self.reader.record(self._fields(tuple(value), number), name, number, value)

    def parse_block(self, texts: list[str], numbers: Sequence[int]) -> Sequence[Record] | None:
        """Return the records of a block of lines; None if some line must be parsed by itself."""
        values = parse_lines(texts)
        if values is None or {*map(type, values)} != {dict}:
            return None
        try:
            fields_of_lines = [self._fields(keys, 0) for keys in dict.fromkeys(map(tuple, values))]
        except InputError:  # parsing each line finds which one
            return None
        fields = fields_of_lines[0]
        if any(other != fields for other in fields_of_lines):
            return None
        columns = {name: [value[name] for value in values] for name in fields.needed}
        return self.reader.rows(fields, columns, self.name, numbers)

    def _fields(self, keys: tuple[str, ...], number: int) -> RecordFields:
        """Return the fields of objects with these keys; ``number`` is the line of the first."""
        fields = self.fields_by_keys.get(keys)
        if fields is None:
            pair = self.source.fields.pair_field
            source = self.source if pair and field_path(pair, keys) else self.source_without_pair
            fields = record_fields(source, keys, f"{self.name}:{number}")
            self.fields_by_keys[keys] = fields
        return fields


DECODER = json.JSONDecoder()
OPENING = re.compile(r"\[\s*[{\"\]]|\{\s*[\"}]")  # a list of objects or strings, or an object


def detect_json(stream: IO[bytes], decode: LineDecoder, source: Input) -> tuple[str, IO[bytes]]:
    """Return the format detected at the start of a stream, and the complete stream.

    "jsonl": the first non-blank line is an object. "json": it is a list of objects or strings, or
    the start of multi-line JSON. "": anything else. Reads no further than the end of that line
    (after a lone bracket: into the next line), so typed lines are processed at once.
    """
    limit = source.format_options.max_record_bytes
    head = b""  # all bytes read
    line = b""  # the first line that is not blank
    following = b""  # what was read after that line
    while len(head) <= limit and (chunk := read_chunk(stream, decode.name)):
        if not head:
            _refuse_binary(chunk, decode)
        head += chunk
        if codecs.BOM_UTF8.startswith(head):
            continue
        text_bytes = head.removeprefix(codecs.BOM_UTF8).lstrip(BLANK_BYTES)
        line, end, rest = text_bytes.partition(decode.separator)
        following = rest.lstrip(BLANK_BYTES)
        is_open = line.strip() in (b"[", b"{")
        if line[:1] not in (b"", b"[", b"{") or (end and (following or not is_open)):
            break
    try:
        text = line.decode(decode.encoding, decode.errors).strip()
    except UnicodeDecodeError:
        text = ""
    detected_format = _format_of_line(text, following[:1].decode("ascii", "replace"), source)
    chunks = iter(partial(read_chunk, stream, decode.name), b"")
    return detected_format, stream_of(chain(filter(None, [head]), chunks), stream)


def _refuse_binary(head: bytes, decode: LineDecoder) -> None:
    """Raise InputError if the first bytes of stdin are those of a binary format."""
    try:
        refuse_not_text(head, decode.name, decode.encoding)
    except InputError as refused:
        if head.startswith((*BYTE_ORDER_MARKS,)):
            raise
        raise InputError(refused.marked, "give it as a file: -i FILE says how to read it") from None


def _format_of_line(line: str, following: str, source: Input) -> str:
    """Return the format of the first line of a stream; ``following`` is the start of the rest."""
    if line in ("[", "{"):
        return JSON if OPENING.match(line + following) else ""
    has_words = source.pre_split and not re.match(r"\[\s*\{", line)  # a text is a list of strings
    if not OPENING.match(line) or has_words:
        return ""
    try:
        value, end = DECODER.raw_decode(line)
    except json.JSONDecodeError as bad:
        return JSON if bad.pos >= len(line) else ""
    except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
        return ""
    rest = line[end:].lstrip()
    if isinstance(value, dict) and not rest:
        return JSONL
    if isinstance(value, dict):
        return JSON if OPENING.match(rest) else ""
    is_texts = {*map(type, value)} <= {dict, str}
    return JSON if is_texts and not rest else ""


def _separate_values(text: str, name: str) -> Iterator[tuple[str, int]]:
    """Yield consecutive JSON texts, each with its line number.

    Raises InputError for invalid JSON.
    """
    start = 0
    number = 1
    while start < len(text):
        if text[start] in " \t\r\n":
            number += text[start] == "\n"
            start += 1
            continue
        try:
            _, end = DECODER.raw_decode(text, start)
        except RecursionError:
            end = len(text)  # the parser of the record reports it
        except ValueError as bad:
            line = text.count("\n", 0, getattr(bad, "pos", start)) + 1
            reason = getattr(bad, "msg", "a number is too long")
            message = f"{name}:{line}: not valid JSON: {reason}"
            raise InputError(message, ONE_PER_LINE_HINT) from None
        yield text[start:end], number
        number += text.count("\n", start, end)
        start = end


# Readers of built-in formats, which turn whole blocks of lines into records, faster than rows. They
# are here and not in the table of formats because they need the `Reader` and its options.
READERS: dict[str, Callable[[IO[bytes], LineDecoder, Reader], Blocks]] = {
    TXT: read_lines,
    WHOLE_FILE: read_whole_file,
    JSONL: read_jsonl,
    JSON: read_json,
    "conll": read_conll,
    CSV: partial(read_delimited, tabs=False),
    TSV: partial(read_delimited, tabs=True),
}
