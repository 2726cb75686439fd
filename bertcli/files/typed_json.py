"""JSON from outside: parsed here only, and every value checked before it is used.

    settings = read_object(Path("tokenizer_config.json"))   # empty when there is no such file
    settings.text("unk_token")            # None when the key is missing or null
    settings.whole("model_max_length")    # ModelError unless it is a whole number

An error names the file, the key, what was found and what is expected.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertcli.errors import BertcliError, ModelError

DEPTH = 100  # of lists and objects in each other
LARGEST_FILE = 256 << 20  # bytes; the largest tokenizer.json in use has about 35 MB
LARGEST_NUMBER = 10**9  # of any count; what is larger is a mistake, and overflows torch's numbers
SHOWN = 60  # characters of a value in a message
HINT = "correct the file, or fetch it again"

KINDS = {
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


class BadJsonError(ValueError):
    """Why a text is not JSON that can be worked with."""


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; NaN and Infinity are read, as Python's own reader does.

    Raises BadJsonError for anything else, also for lists and objects nested more than DEPTH deep
    and numbers of thousands of digits. Strings may hold half of a surrogate pair: see `is_text`.
    """
    try:
        value = json.loads(text)
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
    opening = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, opening)) > DEPTH and _too_deep(value):  # type: ignore[arg-type]
        raise BadJsonError("lists or objects are nested too deeply")
    return value


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else []


def read_bytes(
    path: Path, error: type[BertcliError] = ModelError, hint: str = HINT
) -> bytes | None:
    """Return the contents of a regular file of reasonable size; None when there is no such file.

    Never waits for a pipe, nor reads a device.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise error(f"{path}: not a regular file", hint)
        if found.st_size > LARGEST_FILE:
            raise error(f"{path}: {found.st_size:,} bytes are too many for this kind of file", hint)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(path):
            raise error(f"{path}: broken symlink", hint) from None
        return None
    except OSError as failed:
        raise error(f"{path}: {failed.strerror or failed}", hint) from None


def read_value(path: Path, error: type[BertcliError] = ModelError, hint: str = HINT) -> Any:
    """Return the value in a JSON file, None when there is no such file (or it holds null)."""
    raw = read_bytes(path, error, hint)
    if raw is None:
        return None
    try:
        return parse(raw)
    except BadJsonError as bad:
        raise error(f"{path}: not valid JSON: {bad}", hint) from None


def read_object(path: Path, error: type[BertcliError] = ModelError, hint: str = HINT) -> JsonObject:
    """Return the object in a JSON file; an empty one when there is no such file."""
    found = read_value(path, error, hint)
    if found is not None and not isinstance(found, dict):
        raise error(f"{path}: expected a JSON object, found {kind_of(found)}", hint)
    return JsonObject(found or {}, str(path), error, hint)


def kind_of(value: Any) -> str:
    """Return what a JSON value is, in words."""
    return KINDS.get(type(value), type(value).__name__)


def shown(value: Any) -> str:
    """Return a JSON value for a message, shortened."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


class JsonObject(Mapping[str, Any]):
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
        self.content, self.source, self.error, self.hint = values, source, error, hint
        self.path = path  # of keys, from the top of the file: "added_tokens_decoder.5."

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def bad(self, key: str, expected: str) -> BertcliError:
        """Return the error for the value of a key."""
        found = f"found {shown(self.content[key])}" if key in self.content else "but it is missing"
        return self.error(
            f"{self.source}: {self.path}{key}: expected {expected}, {found}", self.hint
        )

    def checked(self, key: str, holds: Callable[[Any], bool], expected: str) -> Any:
        """Return the value of a key for which ``holds`` is true, or None."""
        value = self.content.get(key)
        if value is not None and not holds(value):
            raise self.bad(key, expected)
        return value

    def text(self, key: str) -> str | None:
        """Return a string that is valid Unicode."""
        found: str | None = self.checked(key, is_text, "a string")
        return found

    def texts(self, key: str) -> list[str] | None:
        """Return a list of strings."""

        def holds(value: Any) -> bool:
            return isinstance(value, list) and all(map(is_text, value))

        found: list[str] | None = self.checked(key, holds, "a list of strings")
        return found

    def switch(self, key: str) -> bool | None:
        """Return true or false."""
        found: bool | None = self.checked(key, lambda v: isinstance(v, bool), "true or false")
        return found

    def whole(self, key: str, least: int = 0, most: int = LARGEST_NUMBER) -> int | None:
        """Return a whole number in a range, its ends included."""

        def holds(value: Any) -> bool:
            return type(value) is int and least <= value <= most

        expected = f"a whole number from {least} to {most}"
        found: int | None = self.checked(key, holds, expected)
        return found

    def wholes(self, key: str, least: int = 0, most: int = LARGEST_NUMBER) -> list[int] | None:
        """Return a list of whole numbers in a range, its ends included."""

        def holds(value: Any) -> bool:
            return isinstance(value, list) and all(
                type(one) is int and least <= one <= most for one in value
            )

        found: list[int] | None = self.checked(
            key, holds, f"a list of whole numbers from {least} to {most}"
        )
        return found

    def object(self, key: str) -> JsonObject:
        """Return an object inside; an empty one when there is none."""
        found = self.checked(key, lambda v: isinstance(v, dict), "an object")
        return self._inside(key, found or {})

    def objects(self, key: str) -> dict[str, JsonObject]:
        """Return an object of objects, by its keys."""
        outer = self.object(key)
        return {name: outer.object(name) for name in outer}

    def list_of_objects(self, key: str) -> list[JsonObject]:
        """Return a list of objects; an empty one when there is none."""

        def holds(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(one, dict) for one in value)

        found = self.checked(key, holds, "a list of objects") or []
        return [self._inside(f"{key}.{at}", one) for at, one in enumerate(found)]

    def _inside(self, key: str, values: Mapping[str, Any]) -> JsonObject:
        return JsonObject(values, self.source, self.error, self.hint, f"{self.path}{key}.")


def is_text(value: Any) -> bool:
    """Whether a value is a string without half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
