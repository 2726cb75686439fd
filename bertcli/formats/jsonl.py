"""JSON Lines, one value per line: read and write rows; read vectors from a field of each line.

    for lines in numbered_lines(stream, "in.jsonl"):
        values = [value_of(line, f"in.jsonl:{number}") for number, line in lines]
    for block in read_arrays("out.jsonl", "embedding", max_rows=2048): ...   # [<= 2048, D...]

Vectors already encoded as JSON (`NumbersText`) bypass the encoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError, OutputError
from bertcli.formats.tables import NumbersText, Row, to_compact_json, without_headers
from bertcli.io.paths import input_name
from bertcli.io.printable import listed
from bertcli.io.streams import blocks, open_bytes, suffix_of
from bertcli.io.typed_json import BadJsonError, parse, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Line = tuple[int, str | bytes]  # line number, content


# --- reading ---


def numbered_lines(stream: IO[bytes], name: str) -> Iterator[list[Line]]:
    """Yield the non-blank lines of a stream, as they arrive."""
    for block in blocks(stream, name):
        lines = enumerate(block.lines, block.number)
        yield [(number, line) for number, line in lines if line.strip()]


def numbered_lines_of_file(path: str) -> Iterator[list[Line]]:
    """Yield the lines of a file, or the values of a JSON array as `JsonArrayFile` writes it."""
    is_array = suffix_of(path) == ".json"
    with open_bytes(path) as stream:
        for lines in numbered_lines(stream, input_name(path)):
            yield _array_items(lines) if is_array else lines


def _array_items(lines: Iterable[Line]) -> list[Line]:
    """Return the values among the lines of a JSON array, without commas and brackets."""
    items: list[Line] = []
    for number, line in lines:
        text = line.encode() if isinstance(line, str) else line
        text = text.strip().removesuffix(b",")
        if text not in (b"[", b"]", b"[]"):
            items.append((number, text))
    return items


def value_of(line: str | bytes, where: str, hint: str = "") -> Any:
    """Return the value of a line. Raises InputError for invalid JSON."""
    try:
        return parse(line)
    except BadJsonError as bad:
        raise InputError(f"{where}: not valid JSON: {bad}", hint) from None


def object_in(value: Any, where: str, hint: str = "") -> dict[str, Any]:
    """Return a value that is an object. Raises InputError for another type."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, found {shown(value)}", hint)
    return value


def located_objects(path: str) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield lists of the objects of a file, each with its location."""
    for lines in numbered_lines_of_file(path):
        located_lines = [(f"{path}:{number}", line) for number, line in lines]
        yield [(where, object_in(value_of(line, where), where)) for where, line in located_lines]


def read_arrays(path: str, field: str, max_rows: int) -> Iterator[Array]:
    """Yield the vectors in a field, or in lines that are lists, as arrays [<= max_rows, D...]."""
    name = input_name(path)
    for lines in numbered_lines_of_file(path):
        for start in range(0, len(lines), max_rows):
            yield array_of(lines[start : start + max_rows], field, name)


def array_of(lines: Sequence[Line], field: str, name: str) -> Array:
    """Return lines of vectors as an array; numbers with a decimal point become float32.

    Raises InputError, with the line number, for a line that is not a vector, or differs in length
    from the first one.
    """
    import numpy as np

    vectors: list[Array] = []
    for number, line in lines:
        where = f"{name}:{number}"
        try:
            value = parse(line)
            vector = np.array(value[field] if isinstance(value, dict) else value)
        except KeyError:
            hint = f"available: {listed(value)}"
            raise InputError(f"{where}: field {field!r} not found", hint) from None
        except (ValueError, OverflowError) as broken:
            raise InputError(f"{where}: not a vector: {broken}") from None
        if vector.dtype.kind not in "fi" or vector.size == 0 or vector.ndim == 0:
            raise InputError(f"{where}: not a vector of numbers")
        vectors.append(vector)
        if vector.shape != vectors[0].shape:
            first_shape = vectors[0].shape
            raise InputError(
                f"{where}: a vector of shape {vector.shape}, and before it {first_shape}"
            )
    block = np.stack(vectors)
    return block.astype(np.float32) if block.dtype.kind == "f" else block


# --- writing ---


ENCODE_ERRORS = "backslashreplace"  # file names may have invalid bytes, which JSON escapes
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class JsonArrayFile:
    """A file that receives JSON Lines, some at a time, and stores them as a JSON array.

    Each value stays on its own line, so that the array can be read line by line. `end` closes the
    array.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.flush = file.flush
        self.opening = b"[\n"  # not yet written
        self.line_end = b""  # of the last line, delayed: a comma may precede it

    def write(self, lines: bytes) -> None:
        """Write lines, each of which is a JSON value."""
        if not lines:
            return
        text = self.line_end + lines
        self.line_end = b"\n" if text.endswith(b"\n") else b""
        self.file.write(self.opening + text.removesuffix(b"\n").replace(b"\n", b",\n"))
        self.opening = b""

    def end(self) -> None:
        """Close the array."""
        self.file.write(self.opening.strip() + self.line_end + b"]\n")


def to_json(row: Row) -> str:
    """Return a row as a line of JSON.

    Raises OutputError for NaN and infinity, which JSON does not support.
    """
    members = []
    for name, value in row.items():
        if isinstance(value, NumbersText):
            text: str = value
        else:
            try:
                text = str(value) if type(value) is int else _encode(value)
            except ValueError as bad:
                raise OutputError(f"field {name!r} cannot be written as JSON: {bad}") from None
        members.append(_json_key(name) + text)
    return "{" + ",".join(members) + "}\n"


def to_lines(rows: Iterable[Row]) -> str:
    """Return rows as lines of JSON."""
    return "".join(map(to_json, rows))


def encoder() -> Callable[[Sequence[Row]], bytes]:
    """Return a function from rows to lines of JSON."""

    def encode(rows: Sequence[Row]) -> bytes:
        return to_lines(without_headers(rows)).encode(errors=ENCODE_ERRORS)

    return encode


@lru_cache
def _json_key(name: str) -> str:
    return to_compact_json(name) + ":"


def json_of(arrays: Iterable[NDArray[Any]]) -> Iterator[str]:
    """Yield the JSON of each array, with digits that read back to the same numbers."""
    import numpy as np
    import orjson

    for array in arrays:
        numbers = np.ascontiguousarray(array)
        yield orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY).decode()
