"""A record: a text or a sentence pair, with its id, other fields, file and line."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from bertcli.errors import SKIP, InputError, option
from bertcli.io.typed_json import BadJsonError, parse, shown
from bertcli.records.input import Input

Text = str | list[str]  # a list is a text already split into words


class TextWindow(NamedTuple):
    """The part of a text that a model reads at once, and the characters of one chunk in it."""

    text: str
    start: int  # of the chunk
    end: int
    starts_long_text: bool  # True for the first chunk of a text with several windows


class Record(NamedTuple):
    """A text or a sentence pair, with its origin."""

    text: Text
    pair: Text | None = None
    id: Any = None
    extra: dict[str, Any] | None = None  # carried fields
    file: str = ""
    line: int = 0
    ids: list[int] | None = None  # instead of a text, if token ids are read
    window: TextWindow | None = None  # of a chunk that is encoded within its text

    @property
    def where(self) -> str:
        """The location for messages: ``reviews.txt:12``, or ``text 2`` for arguments."""
        return f"{self.file}:{self.line}" if self.file else f"text {self.line}"


def is_empty(record: Record) -> bool:
    """Return True if a record contains only white space."""
    texts = (record.text, record.pair or "")
    strings = (text if isinstance(text, str) else "".join(text) for text in texts)
    return not any(map(str.strip, strings))


def checked(record: Record, source: Input) -> Record:
    """Return the record with its texts split into words or parsed as ids, if ``source`` says so.

    Raises InputError for a text that is not a string, or not valid Unicode.
    """
    if source.ids:
        return record._replace(text="", ids=ids_in(record.text, record.where))
    text = _checked_text(record.text, record, source)
    pair = None if record.pair is None else _checked_text(record.pair, record, source)
    return record._replace(text=text, pair=pair)


LIST_HINT = (
    "a pair has at most two texts; join the words of a text with spaces, or give "
    f"{option('pre_split')} if this command has it"
)


def _checked_text(text: Any, record: Record, source: Input) -> Text:
    """Return a text, or a list of words if ``source`` says so. Raises InputError as `checked`."""
    if source.pre_split or (source.sentences and isinstance(text, list)):
        text = words(text) if isinstance(text, str) else text
        if not (isinstance(text, list | tuple) and all(isinstance(word, str) for word in text)):
            raise InputError(f"{record.where}: the text is not a list of strings", SKIP)
        return [_valid_unicode(word, record, source) for word in text]
    if not isinstance(text, str):
        raise InputError(
            f"{record.where}: the text is {shown(text)}, not a string",
            LIST_HINT if isinstance(text, list | tuple) else SKIP,
        )
    return _valid_unicode(text, record, source)


def _valid_unicode(text: str, record: Record, source: Input) -> str:
    """Return a text if it is valid Unicode; otherwise replace or refuse its lone surrogates.

    They come from invalid bytes in arguments and from JSON escapes.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        if source.format_options.encoding_errors == "strict":
            raise InputError(
                f"{record.where}: character {bad.start} is half of a surrogate pair, not text",
                f"use {option('encoding_errors', 'replace')}",
            ) from None
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def words(text: str) -> list[str]:
    """Return the words of a text: the items of a JSON list of strings, or split at white space."""
    with suppress(BadJsonError):
        value = parse(text) if text.startswith("[") else None
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return value
    return text.split()


def ids_in(value: Any, where: str) -> list[int]:
    """Return a list of ids from a list, JSON, or numbers separated by spaces or commas.

    Raises InputError for anything else.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            if text.startswith("["):
                value = parse(text)
            else:
                value = [int(number) for number in text.replace(",", " ").split()]
        except ValueError:  # from JSON, or from a number
            raise InputError(
                f"{where}: {text[:40]!r} is not a list of ids",
                "give integers separated by spaces or commas, or a JSON list",
            ) from None
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise InputError(f"{where}: expected a list of integers, the ids", SKIP)
    return value


def row_of(record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output row of a record: its id, the columns, and its carried fields.

    The reader has already rejected carried fields with the name of a column.
    """
    row = dict(columns) if record.id is None else {"id": record.id, **columns}
    return row | (record.extra or {})
