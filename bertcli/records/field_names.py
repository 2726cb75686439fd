"""The names of the fields of a file, from its header, its schema or its first object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from bertcli.errors import BertcliError, InputError
from bertcli.files.delimited import DelimitedRows
from bertcli.files.jsonl import lines_of, object_in, value_of
from bertcli.files.streams import LARGEST_RECORD, LineDecoder, on_disk, open_bytes
from bertcli.records.source import Source


def field_names(path: str, source: Source) -> Sequence[str]:
    """Return the names of the fields of a file, in order; none where it has none, or is broken.

    No more than the beginning of the file is read.
    """
    try:
        form = source.format_of(path)
        if form == "parquet":
            from bertcli.files.parquet import opened

            with on_disk(path, lambda size: None) as place, opened(place, path) as table:
                return list(table.names)
        with open_bytes(path) as stream:
            return _of_stream(stream, form, LineDecoder(path, source.encoding, "replace"))
    except (BertcliError, OSError, ValueError, ImportError):
        return ()


def _of_stream(stream: IO[bytes], form: str, decode: LineDecoder) -> Sequence[str]:
    if form in ("csv", "tsv"):
        rows = DelimitedRows(stream, decode, LARGEST_RECORD, _ignore, tabs=form == "tsv")
        return next(rows, (0, []))[1]
    if form != "jsonl":
        return ()
    lines = next(filter(None, lines_of(stream, decode.name)), [(0, "{}")])
    return list(object_in(value_of(lines[0][1], decode.name), decode.name))


def _ignore(error: InputError) -> None:
    """Pass over what cannot be read."""
