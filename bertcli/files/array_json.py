"""Arrays of numbers as JSON, each in the fewest digits that read back to it in its own precision.

    json_of(numpy.array([[0.1, 1e-05]], "float32"))   # ["[0.1,1e-05]"]

The digits are those of NumPy's own texts, which take a third of a microsecond a number. orjson
writes the same ones twenty times as fast, but begins exponents elsewhere: what has one is left out
of what it is given, and put in behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    import numpy as np

# Float32 between these has no exponent, whoever writes it. Powers of two: no number is between.
LEAST, MOST = 2.0**-13, 2.0**19


def json_of(arrays: Sequence[np.ndarray] | np.ndarray) -> Iterator[str]:
    """Yield the JSON of each of some arrays, or of [n, D...]: float32, float16, whole numbers."""
    import numpy as np

    if isinstance(arrays, Sequence):
        yield from (text for array in arrays for text in json_of(array[None]))
        return
    if arrays.dtype == np.float16:
        yield from map(_of_halves, arrays)
        return
    arrays = np.ascontiguousarray(arrays)
    if not arrays.size:
        yield from map(_written, arrays)
        return
    if arrays.dtype != np.float32:
        yield from _each(_written(arrays), arrays.ndim)
        return
    size = np.abs(arrays)
    odd = ~(((size >= LEAST) & (size < MOST)) | (size == 0))
    plain = np.where(odd, np.float32(np.nan), arrays)  # which orjson writes as null
    first, *others = _written(plain).split("null")
    strange = arrays[odd].astype("U32").tolist()
    yield from _each(first + "".join(map(str.__add__, strange, others)), arrays.ndim)


def _each(text: str, axes: int) -> Iterator[str]:
    """Yield the JSON of each of the arrays in the JSON of all of them, which has so many axes."""
    opening, closing = "[" * (axes - 1), "]" * (axes - 1)
    for inner in text[axes:-axes].split(f"{closing},{opening}"):
        yield opening + inner + closing


def _written(array: np.ndarray) -> str:
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _of_halves(array: np.ndarray) -> str:
    """Return the JSON of float16, of which there are so few that all are known."""
    if array.ndim > 1:
        return f"[{','.join(map(_of_halves, array))}]"
    return f"[{','.join(map(_halves().__getitem__, array.view('u2').tolist()))}]"


@lru_cache
def _halves() -> list[str]:
    """Return the text of every float16, by its bits."""
    import numpy as np

    texts: list[str] = np.arange(1 << 16, dtype="u2").view("f2").astype("U32").tolist()
    return texts
