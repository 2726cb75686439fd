"""The field names of a file, from its header, its schema or its first objects.

    field_names("reviews.csv", Input())   # ["title", "body", "stars"]

Only the start of the file is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from bertcli.errors import BertcliError
from bertcli.formats.registry import FORMATS, FileFormat, load
from bertcli.io.streams import open_bytes, read_chunk
from bertcli.records.column_types import delimited_rows, ignore_error
from bertcli.records.input import Input
from bertcli.records.record_fields import hits_of

MAX_BYTES = 1 << 20  # read per file
MAX_OBJECTS = 20  # read per file, as some may lack fields


def field_names(path: str, source: Input) -> list[str]:
    """Return the field names of a file, in order; nested fields are written "user.bio".

    Empty if the file has no fields, or cannot be read.
    """
    try:
        names = _names_in(path, source)
        return [name for name in dict.fromkeys(names) if name.isprintable()]
    except (BertcliError, OSError, ValueError, RecursionError):
        return []


def _names_in(path: str, source: Input) -> list[str]:
    entry = FORMATS[source.format_of(path)]
    if entry.is_columnar:
        from bertcli.formats.parquet import nested_names, open_parquet

        with open_parquet(path, path) as table:
            return [*nested_names(table.schema)]
    if entry.delimiter:
        with delimited_rows(path, source) as rows:
            _, names = next(rows, (1, []))
            return names
    if entry.is_json:
        return [name for value in _first_objects(path, source) for name in _keys(value)]
    if entry.reader:
        return [name for value in _first_rows(path, source, entry) for name in value]
    return []


def _first_rows(path: str, source: Input, entry: FileFormat) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows of a format that has a row reader."""
    with open_bytes(path) as stream:
        head = read_chunk(stream, path, MAX_BYTES)
    lines = enumerate(head.decode(source.format_options.encoding, "replace").splitlines(), 1)
    rows = load(entry.reader)(lines, path, ignore_error)
    for _, row in islice(rows, MAX_OBJECTS):
        yield row


def _first_objects(path: str, source: Input) -> Iterator[Mapping[str, Any]]:
    """Yield the first objects of JSON lines, of a JSON list, or of multi-line objects."""
    head = b""
    with open_bytes(path) as stream:
        while len(head) < MAX_BYTES and (chunk := read_chunk(stream, path)):
            head += chunk
    text = head.decode(source.format_options.encoding, "replace").lstrip("\ufeff \t\r\n[")
    decoder = json.JSONDecoder()
    for _ in range(MAX_OBJECTS):
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError:  # also at the end of the bytes read
            return
        yield from (row for row in hits_of(value) or [value] if isinstance(row, dict))
        text = text[end:].lstrip(", \t\r\n")


def _keys(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of an object, and after each key those of its nested object."""
    for key, inner in value.items():
        yield key
        if isinstance(inner, dict):
            yield from (f"{key}.{name}" for name in _keys(inner))
