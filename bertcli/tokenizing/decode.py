"""Lists of token ids to texts or tokens, a window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bertcli.errors import InputError
from bertcli.files.tables import Made, TableHeader
from bertcli.records.reader import Reader
from bertcli.records.records import Record, row_of
from bertcli.records.windows import windows
from bertcli.tokenizing.tokenizer import Tokenizer

WINDOW = 1024


@dataclass(frozen=True)
class DecodeSettings:
    """How ids are decoded: to a text, or with ``tokens`` to the list of tokens."""

    tokens: bool = False
    skip_special: bool = False
    clean_up: bool | None = None  # None: as the model specifies

    @property
    def field(self) -> str:
        """The name of the output field."""
        return "tokens" if self.tokens else "text"

    def header(self, reader: Reader) -> TableHeader:
        """Return the header of a table without rows."""
        fields = reader.fields
        key = {"id": None} if fields and fields.id is not None else {}
        carried = dict.fromkeys(fields.carried) if fields else {}
        return TableHeader({**key, self.field: Made() if self.tokens else "", **carried})


def decoded(
    reader: Reader, tokenizer: Tokenizer, how: DecodeSettings
) -> Iterator[list[dict[str, Any]]]:
    """Yield rows with ``text`` (or ``tokens``), after the record's id and before its other fields.

    An id outside the vocabulary is an InputError with the record's place, or the record is skipped.
    """
    for records in windows(reader.blocks(), WINDOW):
        yield reader.collect(enumerate(records), lambda _, record: _row(record, tokenizer, how))


def _row(record: Record, tokenizer: Tokenizer, how: DecodeSettings) -> dict[str, Any]:
    ids, skip_special = record.ids or [], how.skip_special
    value: Any
    try:
        if how.tokens:
            value = Made(tokenizer.tokens_of(ids, skip_special=skip_special))
        else:
            value = tokenizer.text_of(ids, skip_special=skip_special, clean_up=how.clean_up)
    except InputError as unknown:
        raise InputError(f"{record.where}: {unknown}", unknown.hint) from None
    return row_of(record, {how.field: value})
