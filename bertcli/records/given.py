"""Records given in Python: lists, data frames, or file names.

    records_of(["one", ("a", "pair"), {"id": 3, "text": "three"}], {})
    records_of(pandas.DataFrame({"text": ["one", "two"]}), {"keep_fields": "*"})
    records_of("reviews.csv", {"text_field": "body"})

All of them can be read more than once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertcli.errors import InputError, UsageError
from bertcli.formats.registry import WHOLE_FILE
from bertcli.keywords import refuse_other_choices, refuse_unknown
from bertcli.records.input import OPTION_GROUPS, Input, input_files, option_names
from bertcli.records.reader import Divide, Reader, is_frame
from bertcli.records.record import Record, checked
from bertcli.records.record_fields import record_fields

# Reading options, as at the command line.
READING_OPTIONS = (
    "text_field",
    "join",
    "pair_field",
    "id_field",
    "keep_fields",
    "input_format",
    "whole",
    "delimiter",
    "skip_empty",
    "infer_types",
    "max_record_bytes",
    "on_error",
    "encoding",
    "encoding_errors",
    "offline",  # also an option of models
)
INPUT_NAMES = {"keep_fields": "keep", "input_format": "format"}  # option -> its name in `Input`
RECORDS_PER_BLOCK = 1024  # records per block


class GivenRecords(Reader):
    """A reader of the items of a sequence, or of the rows of a data frame.

    An item is a text, a pair of two texts, a `Record`, or a mapping of fields.
    """

    def __init__(
        self, items: Sequence[Any], source: Input, *, divide: Divide | None = None
    ) -> None:
        super().__init__(source, divide=divide)
        self.items = items

    def again(self, **options: Any) -> GivenRecords:
        """Return a new reader of the same records, optionally with other options."""
        return GivenRecords(self.items, self.source.changed(**options), divide=self.divide)

    def _blocks(self) -> Iterator[Sequence[Record]]:
        for start in range(0, len(self.items), RECORDS_PER_BLOCK):
            numbers = range(start + 1, start + 1 + RECORDS_PER_BLOCK)
            yield self.collect(self._record, self.items[start : start + RECORDS_PER_BLOCK], numbers)

    def _record(self, item: Any, number: int) -> Record:
        if isinstance(item, Record):
            return checked(item if item.line else item._replace(line=number), self.source)
        if isinstance(item, Mapping):
            if self.fields is None:
                self.fields = record_fields(self.source, [*item], f"text {number}")
            if missing := [name for name in self.fields.needed if name not in item]:
                raise InputError(f"text {number}: field {missing[0]!r} not found")
            return self.record(self.fields, "", number, item)
        if isinstance(item, tuple | list) and len(item) == 2:
            text, pair = item
            return checked(Record(text, pair, line=number), self.source)
        return checked(Record(item, line=number), self.source)


def input_from(options: Mapping[str, Any], **settings: Any) -> Input:
    """Return the `Input` for options that Python code gave by name, and for other settings.

    Raises UsageError for an unknown option, or for a value that is not one of its choices.
    """
    refuse_unknown(options, option_names())
    for group in (Input, *OPTION_GROUPS.values()):
        refuse_other_choices(group, options)
    return Input.of(**options, **settings)


def records_of(texts: Any, options: Mapping[str, Any], **settings: Any) -> Reader:
    """Return a reader of ``texts``, with the ``options`` listed in READING_OPTIONS.

    ``texts`` is the name of a file, a folder or a glob (a string or a path), or a URL such as
    hf://datasets/OWNER/NAME/FILE; an iterable of texts, pairs, records or mappings of fields; or a
    pandas, polars or Arrow data frame. ``settings`` are
    other options of an `Input`. Raises UsageError for an option that does not apply, InputError for
    a file that does not exist.
    """
    values = {INPUT_NAMES.get(name, name): value for name, value in options.items()}
    if values.pop("whole", False):
        values["format"] = WHOLE_FILE
    keep = values.get("keep", "")
    if isinstance(keep, bool):
        values["keep"] = "*" if keep else None
    elif not isinstance(keep, str):
        values["keep"] = ",".join(keep)
    names = option_names()
    input_options = {name: value for name, value in values.items() if name in names}
    source = input_from(input_options, **settings)
    if isinstance(texts, str | Path):
        return Reader(replace(source, paths=input_files([os.fspath(texts)], source)))
    if is_frame(texts):
        from bertcli.formats.parquet import rows_of_frame

        rows = rows_of_frame(texts)
    else:
        if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
            raise UsageError(
                f"expected texts, found {type(texts).__name__}",
                "give the name of a file, an iterable of texts, or a data frame",
            )
        rows = texts.to_pylist() if hasattr(texts, "to_pylist") else list(texts)
    return GivenRecords(rows, source)
