"""JSON from outside: parsed here only, and every value checked before it is used.

    settings = read_object(Path("tokenizer_config.json"))   # empty when there is no such file
    settings.text("unk_token")            # None when the key is missing or null
    settings.whole("model_max_length")    # ModelError unless it is a whole number

An error names the file, the key, what was found and what is expected.
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

LARGEST_FILE = 256 << 20  # bytes; the largest tokenizer.json in use has about 35 MB
LARGEST_NUMBER = 10**9  # of any count; what is larger is a mistake, and overflows torch's numbers
MOST = 1.7e308  # of any number: the largest float, nearly
SHOWN = 60  # characters of a value in a message
MANY_DIGITS = b"0" * 19  # of a whole number that may have more than 64 bits
DIGITS = bytes(0x30 if chr(byte).isascii() and chr(byte).isdigit() else 0x20 for byte in range(256))
AGAIN = "download the file again: this copy is incomplete or damaged"
HINT = "correct the file, or fetch it again"


class BadJsonError(ValueError):
    """Why a text is not JSON that can be worked with."""


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; NaN and Infinity are read, as Python's own reader does.

    Raises BadJsonError for anything else, also for lists and objects nested too deeply and numbers
    of thousands of digits. Strings may hold half of a surrogate pair: see `is_text`.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as bad:
        place = (
            f"line {bad.lineno}, column {bad.colno}" if bad.lineno > 1 else f"column {bad.colno}"
        )
        raise BadJsonError(f"{bad.msg}, {place}") from None
    except RecursionError:
        raise BadJsonError("lists or objects are nested too deeply") from None
    except UnicodeDecodeError as bad:
        raise BadJsonError(f"byte {bad.start} is not valid UTF-8") from None
    except ValueError as bad:  # an integer of more digits than Python converts
        raise BadJsonError(str(bad).partition(";")[0]) from None


def parse_lines(texts: Sequence[str]) -> list[Any] | None:
    """Return the values of JSON texts, which are those of `parse`, many at a time.

    None where one of them is not JSON, or orjson could read it otherwise: whole numbers of more
    than 64 bits, NaN, infinity, half of a surrogate pair.
    """
    if MANY_DIGITS in "".join(texts).encode(errors="replace").translate(DIGITS):
        return None
    import orjson  # when there is much to read: it takes its time

    try:
        return list(map(orjson.loads, texts))
    except orjson.JSONDecodeError:
        return None


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read back after this was written as JSON: tuples become lists."""
    return json.loads(json.dumps(value))


def strict(value: Any) -> Any:
    """Return a value for JSON, which has neither NaN nor infinity, though Python reads them."""
    match value:
        case Mapping():
            return {name: strict(inner) for name, inner in value.items()}
        case list() | tuple():
            return [strict(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON for people, in ASCII."""
    path.write_bytes(json.dumps(value, indent=2).encode() + b"\n")


def read_bytes(
    path: Path, error: type[BertcliError] = ModelError, hint: str = HINT
) -> bytes | None:
    """Return the contents of a regular file of reasonable size; None when there is no such file.

    Never waits for a pipe, nor reads a device.
    """
    try:
        if not is_regular(path, error, hint):
            return None
        if path.stat().st_size > LARGEST_FILE:
            size = f"{path.stat().st_size:,} bytes"
            raise error(f"{path}: {size} are too many for this kind of file", hint)
        return path.read_bytes()
    except OSError as failed:
        raise error(f"{path}: {failed.strerror or failed}", hint) from None


def is_regular(path: Path, error: type[BertcliError] = ModelError, hint: str = HINT) -> bool:
    """Whether there is a file; one that is not regular raises ``error``.

    To be asked before anything opens a file of a model folder: a pipe would be waited for.
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
    listed = JsonObject({str(index): value for index, value in enumerate(values)}, str(path))
    return [*listed.objects().values()]


def read_object(path: Path, error: type[BertcliError] = ModelError) -> JsonObject:
    """Return the object in a JSON file; an empty one when there is no such file."""
    content = read_bytes(path, error)
    return (
        JsonObject({}, str(path), error) if content is None else parse_object(content, path, error)
    )


class Check(NamedTuple):
    """Whether a value will do, and what one that will is called."""

    holds: Callable[[Any], bool]
    expected: str


def whole_number(least: int = 0, most: int = LARGEST_NUMBER) -> Check:
    """Return the check for a whole number in a range, its ends included."""

    def holds(value: Any) -> bool:
        return type(value) is int and least <= value <= most

    return Check(holds, f"a whole number from {least} to {most}")


def is_text(value: Any) -> bool:
    """Whether a value is a string without half of a surrogate pair."""
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
    lambda value: type(value) is float or (type(value) is int and abs(value) <= MOST), "a number"
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
    """Return a JSON value for a message, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # it came from Python
        text = f"a value of the type {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


class JsonObject(dict[str, Any]):
    """An object of a JSON file whose values are asked for by type.

    A value that is missing or null is None. One of another type, or outside the range, raises
    ``error`` with the file, the key, what was found and what is expected.
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
        self.source, self.error, self.hint = source, error, hint
        self.path = path  # of keys, from the top of the file: "added_tokens_decoder.5."
        self.origins: Mapping[str, str] = {}  # key -> its file, where that is not the source

    def bad(self, key: str, expected: str) -> BertcliError:
        """Return the error for the value of a key."""
        actual = f"found {shown(self[key])}" if key in self else "but it is missing"
        place = f"{self.origins.get(key, self.source)}: {self.path}{_in_words(key)}"
        return self.error(f"{place}: expected {expected}, {actual}", self.hint)

    def over(self, other: JsonObject) -> JsonObject:
        """Return an object with the keys of two files; where both have one, this one's counts."""
        both = JsonObject({**other, **self}, self.source, self.error, self.hint, self.path)
        theirs = dict.fromkeys(other.keys() - self.keys(), other.source)
        both.origins = {**other.origins, **theirs, **self.origins}
        return both

    def checked(self, key: str, check: Check) -> Any:
        """Return the value of a key that passes a check, or None."""
        return None if self.get(key) is None else self.needed(key, check)

    def needed(self, key: str, check: Check) -> Any:
        """Return the value of a key that has to be there, and passes a check."""
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
        """Return true or false."""
        return self.checked(key, SWITCH)

    def whole(self, key: str, least: int = 0) -> int | None:
        """Return a whole number that is not below the least one."""
        return self.checked(key, whole_number(least))

    def object(self, key: str) -> JsonObject:
        """Return an object inside; an empty one when there is none."""
        return self._inside(key, self.checked(key, OBJECT) or {})

    def objects(self) -> dict[str, JsonObject]:
        """Return the objects that all values have to be."""
        return {key: self._inside(key, self.needed(key, OBJECT)) for key in self}

    def entries(self, key: str) -> JsonObject:
        """Return what a list or an object holds, by number or by key; empty when there is none."""
        entries = self.checked(key, ENTRIES)
        if isinstance(entries, list):
            entries = {str(at): value for at, value in enumerate(entries)}
        return self._inside(key, entries or {})

    def check_keys(self, holds: Callable[[str], bool], expected: str) -> None:
        """Raise ``error`` unless all keys are as expected."""
        for key in self:
            if not holds(key):
                place = f"{self.source}: {self.path}".removesuffix(".").removesuffix(": ")
                raise self.error(f"{place}: expected {expected}, found {shown(key)}", self.hint)

    def _inside(self, key: str, values: Mapping[str, Any]) -> JsonObject:
        source = self.origins.get(key, self.source)
        return JsonObject(values, source, self.error, self.hint, f"{self.path}{_in_words(key)}.")


def _in_words(key: str) -> str:
    """Return a key for a message: as it is where it is a plain name."""
    return key if key.isidentifier() or key.isdecimal() else shown(key)


NOTHING = JsonObject({}, "")  # what there is no file of
