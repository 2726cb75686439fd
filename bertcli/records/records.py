"""A record: a text or a sentence pair, and how it is made from the fields of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertcli.errors import SKIP, InputError
from bertcli.files.typed_json import BadJsonError, TooDeepError, parse
from bertcli.records.source import Source

Text = str | list[str]  # a list is a text that is already split into words

PRE_SPLIT = "with --pre-split a text is a list of words"


class Record(NamedTuple):
    """A text, or a sentence pair, and where it came from."""

    text: Text
    pair: Text | None = None
    id: Any = None
    extra: dict[str, Any] | None = None
    file: str = ""
    line: int = 0
    ids: list[int] | None = None  # instead of a text, where token ids are read

    @property
    def where(self) -> str:
        """The place to name in messages: ``reviews.txt:12``, or ``text 2`` for arguments."""
        return f"{self.file}:{self.line}" if self.file else f"text {self.line}"


def checked(record: Record, source: Source) -> Record:
    """Return the record with its texts split into words or parsed as ids, if the source says so.

    Raises InputError for a text that is not a string, or not valid Unicode.
    """
    if source.ids:
        return record._replace(text="", ids=ids_in(record.text, record.where))
    text = _checked(record.text, record, source)
    pair = None if record.pair is None else _checked(record.pair, record, source)
    return record._replace(text=text, pair=pair)


def _checked(text: Any, record: Record, source: Source) -> Text:
    if source.pre_split or (source.sentences and isinstance(text, list)):
        text = _words(text, record) if isinstance(text, str) else text
        if not isinstance(text, list) or not all(isinstance(word, str) for word in text):
            what = "the list holds more than strings" if source.sentences else PRE_SPLIT
            raise InputError(f"{record.where}: {what}", SKIP)
        return [_valid(word, record, source) for word in text]
    if not isinstance(text, str):
        raise InputError(
            f"{record.where}: the text is {_kind(text)}, not a string",
            "a list of words needs --pre-split" if isinstance(text, list) else SKIP,
        )
    return _valid(text, record, source)


def _kind(value: Any) -> str:
    known = {list: "a list", dict: "an object", bool: "a truth value", type(None): "null"}
    number = isinstance(value, int | float)
    return known.get(type(value), "a number" if number else type(value).__name__)


def _words(text: str, record: Record) -> list[str]:
    try:
        return words(text)
    except BadJsonError as bad:
        raise InputError(f"{record.where}: {bad}", SKIP) from None


def _valid(text: str, record: Record, source: Source) -> str:
    """Lone surrogates come from bad bytes in arguments and from JSON escapes; they are not text."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        if source.encoding_errors == "strict":
            raise InputError(
                f"{record.where}: character {bad.start} is half of a surrogate pair, not text",
                "use --encoding-errors replace",
            ) from None
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def words(text: str) -> list[str]:
    """Split a text into words: a JSON list of strings, or else at white space.

    Raises TooDeepError for JSON nested too deep.
    """
    if text.startswith("["):
        try:
            found = parse(text)
        except TooDeepError:
            raise
        except BadJsonError:
            return text.split()
        if isinstance(found, list) and all(isinstance(word, str) for word in found):
            return found
    return text.split()


def ids_in(value: Any, where: str) -> list[int]:
    """Return a list of ids: a list, JSON, or numbers separated by spaces or commas.

    Raises InputError for anything else.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            listed = text.startswith("[")
            value = parse(text) if listed else [int(n) for n in text.replace(",", " ").split()]
        except TooDeepError as deep:
            raise InputError(f"{where}: {deep}", SKIP) from None
        except ValueError:  # of the JSON, or of a number
            raise InputError(
                f"{where}: {text[:40]!r} is not a list of token ids",
                "give integers separated by spaces or commas, or a JSON list",
            ) from None
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise InputError(f"{where}: expected a list of integers, the token ids", SKIP)
    return value


class RecordFields(NamedTuple):
    """The names of the fields of a file that make a record."""

    text: str
    pair: str | None
    id: str | None
    rest: Sequence[str]

    @property
    def needed(self) -> list[str]:
        """All names, without duplicates."""
        return list(dict.fromkeys(name for name in (*self[:3], *self.rest) if name is not None))


def not_finite(name: str, where: str) -> InputError:
    """Return the error for a value that JSON cannot hold."""
    return InputError(
        f"{where}: field {name!r} holds NaN or infinity, which JSON cannot hold",
        "write null there, or leave the field out; commands with --on-error can skip such records",
    )


def is_finite(value: Any) -> bool:
    """Whether no number in a JSON value is NaN or infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        if {*map(type, value)} == {float}:
            return all(map(math.isfinite, value))
        return all(map(is_finite, value))
    return True


def fields_of(source: Source, there: Sequence[str], where: str) -> RecordFields:
    """Return the names of text, pair, id and kept fields among those available.

    Raises InputError for a requested name that is missing, and for a kept field that has the name
    of an output field.
    """
    text = source.text_field or ("input_ids" if source.ids else "text")
    text = next((name for name in source.text_fields if name in there), text)
    single = source.pair_field is None and (source.single or source.ids)
    pair, key = None if single else source.pair_field or "pair", source.id_field or "id"
    used = (pair, key) if source.text_fields else (text, pair, key)
    rest = [name for name in there if name not in used]
    if source.keep != "*":
        rest = [name.strip() for name in source.keep.split(",")] if source.keep else []
        rest = [name for name in dict.fromkeys(rest) if name != "id" or key != "id"]  # kept anyway
    asked = {"--text-field": [text], "--keep-fields": rest}
    asked |= {"--pair-field": [pair]} if pair and source.pair_field else {}
    asked |= {"--id-field": [key]} if source.id_field else {}
    for option, names in asked.items():
        for name in names:
            if name not in there:
                raise InputError(
                    f"{where}: field {name!r} not found",
                    f"available: {', '.join(there) or 'none'}"
                    + ("" if source.ids else f"; choose with {source.flags.get(name, option)}"),
                )
    for name in rest:
        if name in source.taken:
            raise taken(name, where)
    for name in source.extra_ids:
        if name not in there:
            raise InputError(
                f"{where}: field {name!r} not found",
                f"available: {', '.join(there) or 'none'}; the model needs ids of the words in it",
            )
    rest += [name for name in source.extra_ids if name not in rest]
    return RecordFields(text, pair if pair in there else None, key if key in there else None, rest)


def taken(name: str, where: str) -> InputError:
    """Return the error for a kept field that has the name of an output field."""
    return InputError(
        f"{where}: field {name!r} cannot be kept, as the output has a field of that name",
        "rename it in the input, or name the fields to keep: --keep-fields a,b,c",
    )


def carried(row: Mapping[str, Any], record: Record, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return the kept fields of a record, which are written after those of a row.

    Raises InputError for a name that the row or ``also`` has.
    """
    extra = record.extra or {}
    for name in extra:
        if name in row or name in also:
            raise taken(name, record.where)
    return extra


def too_many_columns(where: str, count: int) -> InputError:
    """Return the error for a file of pairs that has more than two columns."""
    return InputError(
        f"{where}: {count} columns, but BERT takes at most two sentences",
        "keep two columns, or read the file with --input and name --text-field and --pair-field",
    )
