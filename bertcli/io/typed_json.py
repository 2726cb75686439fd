"""Read JSON, and check the type of every value before it is used.

    settings = read_object(Path("tokenizer_config.json"))   # empty if there is no such file
    settings.text("unk_token")            # None if the key is missing or null
    settings.integer("model_max_length")    # ModelError unless it is an integer

Errors have the file, the key, the value found and the value expected.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import BertcliError, ModelError

MAX_FILE_BYTES = 256 << 20  # bytes; the largest tokenizer.json in use has about 35 MB
LARGEST_NUMBER = 10**9  # of counts; larger ones are mistakes, and overflow in torch
LARGEST_FLOAT = 1.7e308  # nearly
MAX_SHOWN_CHARACTERS = 60  # of a value in a message
MANY_DIGITS = b"0" * 19  # digits of an integer that may have more than 64 bits
DIGITS = bytes(0x30 if chr(byte).isascii() and chr(byte).isdigit() else 0x20 for byte in range(256))
DOWNLOAD_AGAIN = "download the file again: this copy is incomplete or damaged"
HINT = "correct the file, or fetch it again"


class BadJsonError(ValueError):
    """The reason why a text is not valid JSON."""


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text, in which NaN and Infinity are valid, as in Python's `json`.

    Raises BadJsonError for invalid JSON, too deep nesting, and integers of thousands of digits.
    Strings may contain lone surrogates: see `is_text`.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        location = f"column {error.colno}"
        if error.lineno > 1:
            location = f"line {error.lineno}, {location}"
        raise BadJsonError(f"{error.msg}, {location}") from None
    except RecursionError:
        raise BadJsonError("lists or objects are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BadJsonError(f"byte {error.start} is not valid UTF-8") from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise BadJsonError(str(error).partition(";")[0]) from None


def parse_lines(texts: Sequence[str]) -> list[Any] | None:
    """Return the values of many JSON texts, equal to those of `parse`, but faster.

    None if one of them is invalid, or if orjson may read it differently: integers of more than 64
    bits, NaN, infinity, lone surrogates.
    """
    if MANY_DIGITS in "".join(texts).encode(errors="replace").translate(DIGITS):
        return None
    import orjson  # here, because the import is slow

    try:
        return list(map(orjson.loads, texts))
    except orjson.JSONDecodeError:
        return None


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value after writing and reading it as JSON: tuples become lists."""
    return json.loads(json.dumps(value))


def strict(value: Any) -> Any:
    """Return a value with None in place of NaN and infinity, which standard JSON lacks."""
    match value:
        case Mapping():
            return {name: strict(inner) for name, inner in value.items()}
        case list() | tuple():
            return [strict(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, in ASCII."""
    path.write_bytes(json.dumps(value, indent=2).encode() + b"\n")


def read_bytes(
    path: Path, error: type[BertcliError] = ModelError, hint: str = HINT
) -> bytes | None:
    """Return the contents of a regular file; None if there is no such file.

    Raises ``error`` for a file of more than MAX_FILE_BYTES, and for pipes and devices.
    """
    try:
        if not is_regular(path, error, hint):
            return None
        if path.stat().st_size > MAX_FILE_BYTES:
            size = f"{path.stat().st_size:,} bytes"
            raise error(f"{path}: {size} are too many for this kind of file", hint)
        return path.read_bytes()
    except OSError as failed:
        raise error(f"{path}: {failed.strerror or failed}", hint) from None


def is_regular(path: Path, error: type[BertcliError] = ModelError, hint: str = HINT) -> bool:
    """Return True if there is a regular file, False if there is none.

    Raises ``error`` for others: opening a pipe would block, so call this before opening a file.
    """
    try:
        status = os.stat(path)
    except OSError as failed:
        if os.path.islink(path):
            raise error(f"{path}: broken or circular symlink", hint) from None
        if isinstance(failed, FileNotFoundError | NotADirectoryError):
            return False
        raise error(f"{path}: {failed.strerror or failed}", hint) from None
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{path}: not a regular file", hint)
    return True


def _parsed(content: bytes, path: Path, error: type[BertcliError]) -> Any:
    try:
        return parse(content)
    except BadJsonError as bad:
        raise error(f"{path}: not valid JSON: {bad}", HINT) from None


def parse_object(content: bytes, path: Path, error: type[BertcliError] = ModelError) -> JsonObject:
    """Return the object that is the content of a JSON file."""
    value = _parsed(content, path, error)
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found {shown(value)}", HINT)
    return JsonObject(value, str(path), error)


def parse_objects(content: bytes, path: Path) -> list[JsonObject]:
    """Return the objects in the list that is the content of a JSON file."""
    values = _parsed(content, path, ModelError)
    if not isinstance(values, list):
        raise ModelError(f"{path}: expected a list of objects, found {shown(values)}", HINT)
    by_index = JsonObject({str(index): value for index, value in enumerate(values)}, str(path))
    return list(by_index.objects().values())


def read_object(path: Path, error: type[BertcliError] = ModelError) -> JsonObject:
    """Return the object in a JSON file; empty if there is no such file."""
    content = read_bytes(path, error)
    if content is None:
        return JsonObject({}, str(path), error)
    return parse_object(content, path, error)


class Check(NamedTuple):
    """A test of a value, and its description for messages."""

    holds: Callable[[Any], bool]
    expected: str


def whole_number(minimum: int = 0, maximum: int = LARGEST_NUMBER) -> Check:
    """Return the check for an integer from `minimum` to `maximum`."""

    def holds(value: Any) -> bool:
        return type(value) is int and minimum <= value <= maximum

    return Check(holds, f"a whole number from {minimum} to {maximum}")


def is_text(value: Any) -> bool:
    """Return True for a string without lone surrogates, which UTF-8 cannot encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


TEXT = Check(is_text, "a string")
TEXTS = Check(lambda v: isinstance(v, list) and all(map(is_text, v)), "a list of strings")
NUMBER = Check(
    lambda value: type(value) is float or (type(value) is int and abs(value) <= LARGEST_FLOAT),
    "a number",
)
SWITCH = Check(lambda value: isinstance(value, bool), "true or false")
PROBABILITY = Check(
    lambda value: type(value) in (int, float) and 0 <= value <= 1, "a number from 0 to 1"
)
POSITIVE = Check(
    lambda value: isinstance(value, int | float) and value is not True and 0 < value < 1e30,
    "a number above 0",
)
OBJECT = Check(lambda value: isinstance(value, Mapping), "an object")
ENTRIES = Check(lambda value: isinstance(value, list | dict), "a list or an object")


def shown(value: Any) -> str:
    """Return a JSON value for a message, shortened if it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # a value from Python, not from JSON
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


class JsonObject(dict[str, Any]):
    """An object of a JSON file, with methods that return values of one type.

    A missing or null value is None. A value of another type or outside the range raises ``error``
    with the file, the key, the value found and the value expected.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: str,
        error: type[BertcliError] = ModelError,
        hint: str = HINT,
        path: str = "",
    ) -> None:
        super().__init__(values)
        self.source = source
        self.error = error
        self.hint = hint
        self.path = path  # prefix of its keys in the file, such as "added_tokens_decoder.5."
        self.origins: Mapping[str, str] = {}  # key -> its file, if that is not `source`

    def bad(self, key: str, expected: str) -> BertcliError:
        """Return the error for the value of a key."""
        actual = f"found {shown(self[key])}" if key in self else "but it is missing"
        source = self.origins.get(key, self.source)
        location = f"{source}: {self.path}{_key_text(key)}"
        return self.error(f"{location}: expected {expected}, {actual}", self.hint)

    def over(self, other: JsonObject) -> JsonObject:
        """Return the keys of two objects; values of this one replace those of the other."""
        merged = JsonObject(other | self, self.source, self.error, self.hint, self.path)
        other_origins = dict.fromkeys(other.keys() - self.keys(), other.source)
        merged.origins = dict(other.origins) | other_origins | dict(self.origins)
        return merged

    def checked(self, key: str, check: Check) -> Any:
        """Return the value of a key, or None. Raises ``error`` if it fails the check."""
        return None if self.get(key) is None else self.needed(key, check)

    def needed(self, key: str, check: Check) -> Any:
        """Return the value of a key. Raises ``error`` if it is missing or fails the check."""
        value = self.get(key)
        if not check.holds(value):
            raise self.bad(key, check.expected)
        return value

    def text(self, key: str) -> str | None:
        """Return a string that is valid Unicode."""
        return self.checked(key, TEXT)

    def choice(self, key: str, names: Sequence[str]) -> str | None:
        """Return one of these strings."""
        expected = " or ".join(f'"{name}"' for name in names)
        return self.checked(key, Check(names.__contains__, expected))

    def texts(self, key: str) -> list[str] | None:
        """Return a list of strings."""
        return self.checked(key, TEXTS)

    def switch(self, key: str) -> bool | None:
        """Return a boolean."""
        return self.checked(key, SWITCH)

    def integer(self, key: str, minimum: int = 0) -> int | None:
        """Return an integer that is at least `minimum`."""
        return self.checked(key, whole_number(minimum))

    def object(self, key: str) -> JsonObject:
        """Return a nested object; empty if it is missing."""
        return self._nested(key, self.checked(key, OBJECT) or {})

    def objects(self) -> dict[str, JsonObject]:
        """Return all values, which must be objects."""
        return {key: self._nested(key, self.needed(key, OBJECT)) for key in self}

    def entries(self, key: str) -> JsonObject:
        """Return the entries of a list or an object, by index or by key; empty if it is missing."""
        entries = self.checked(key, ENTRIES)
        if isinstance(entries, list):
            entries = {str(index): value for index, value in enumerate(entries)}
        return self._nested(key, entries or {})

    def check_keys(self, holds: Callable[[str], bool], expected: str) -> None:
        """Raise ``error`` if `holds` is false for a key."""
        for key in self:
            if not holds(key):
                location = f"{self.source}: {self.path}".removesuffix(".").removesuffix(": ")
                raise self.error(f"{location}: expected {expected}, found {shown(key)}", self.hint)

    def _nested(self, key: str, values: Mapping[str, Any]) -> JsonObject:
        source = self.origins.get(key, self.source)
        return JsonObject(values, source, self.error, self.hint, f"{self.path}{_key_text(key)}.")


def _key_text(key: str) -> str:
    """Return a key for a message, quoted unless it is a plain name."""
    return key if key.isidentifier() or key.isdecimal() else shown(key)


NOTHING = JsonObject({}, "")  # of a file that does not exist
