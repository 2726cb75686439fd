"""Copy the selected records of an input with all their columns, in the format of the output.

    copy = InputCopy(reader, "csv")
    copy.write(is_kept, write)     # bool [n], and the function that writes rows

Fields keep their names and their order. From Parquet to Parquet, columns also keep their types;
between other formats, values have the types of JSON.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertcli.formats.registry import ENCODED_ROWS, FORMATS, TXT
from bertcli.formats.tables import Row, TableHeader
from bertcli.formats.vector_files import Array
from bertcli.formats.writers import Write
from bertcli.records.batch import RecordBatch
from bertcli.records.reader import Reader
from bertcli.records.record import Record


class InputCopy:
    """A copy of selected records of a reader, in the format ``file_format``.

    Raises InputError for an input that cannot be copied.
    """

    def __init__(self, reader: Reader, file_format: str) -> None:
        self.file_format = file_format
        formats = {reader.source.format_of(path) for path in reader.source.paths}
        self.in_columns = FORMATS[file_format].is_columnar and formats == {file_format}
        source = reader.source
        if file_format != TXT and not self.in_columns:
            source = source.changed(keep_rows=True, with_location=False)
        self.reader = Reader(source)
        self.paths = list(dict.fromkeys(self.reader.source.paths))
        if self.in_columns:
            from bertcli.formats.parquet import common_schema

            self.schema = common_schema(self.paths)

    def refuse_input(self) -> None:
        """Read the first records, to raise InputError early if they cannot be copied."""
        next(self.reader.again().blocks(), None)

    @property
    def writer(self) -> str:
        """The name of the writer: of finished bytes for Parquet to Parquet, else of rows."""
        return ENCODED_ROWS if self.in_columns else self.file_format

    def write(self, is_kept: Array, write: Write) -> None:
        """Write the records that are True in ``is_kept``, bool [n]."""
        if self.in_columns:
            self._write_columns(is_kept, write)
            return
        any_rows = False
        for records in self._kept_records(is_kept):
            if len(records):
                write([self._row(record) for record in records])
                any_rows = True
        if not any_rows:
            fields = self.reader.fields
            write([TableHeader(dict.fromkeys(fields.carried if fields else ["text"]))])

    def _kept_records(self, is_kept: Array) -> Iterator[RecordBatch]:
        """Yield the records to copy, one batch per block of the input."""
        start = 0
        for block in self.reader.blocks():
            rows = np.flatnonzero(is_kept[start : start + len(block)]).tolist()
            yield block.take(rows)
            start += len(block)

    def _row(self, record: Record) -> Row:
        """Return the row of a record.

        A record without fields has its text, and its id if it has one (the name of a whole file).
        """
        if self.file_format == TXT:
            return {"text": record.text}
        if record.extra is not None:
            return record.extra
        return (
            {"text": record.text} if record.id is None else {"id": record.id, "text": record.text}
        )

    def _write_columns(self, is_kept: Array, write: Write) -> None:
        """Copy the kept rows of Parquet files to one Parquet file."""
        from bertcli.formats.parquet import copy_rows

        lines = {path: array("q") for path in self.paths}
        for records in self._kept_records(is_kept):
            for path, line in zip(records.files, records.lines, strict=True):
                lines[path].append(line)
        masks = []  # bool [n] of each file: True for rows to copy
        for path in self.paths:
            mask = np.zeros(max(lines[path], default=0), bool)
            mask[np.array(lines[path], int) - 1] = True
            masks.append(mask)

        def write_bytes(block: Any) -> int:
            write([bytes(block)])
            return len(block)

        file: Any = SimpleNamespace(write=write_bytes, flush=bool, close=bool, closed=False)
        copy_rows(self.paths, masks, self.schema, file)
