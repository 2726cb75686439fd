"""Vectors in lower precision: float16, bytes and single bits.

Bytes and bits equal those of `quantize_embeddings` in sentence-transformers 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bertcli.errors import PrecisionError, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
RANGED = ("int8", "uint8")  # precisions that need the range of every dimension
OF_BYTES = ("int8", "uint8", "binary", "ubinary")
BUCKETS = 255  # steps between the minimum and maximum of a dimension
SIGNED = ("int8", "binary")  # 128 less than the bytes of the other two


def quantize(vectors: Floats, precision: str, ranges: Floats | None = None) -> NDArray[np.generic]:
    """Return vectors [..., D] in another precision; binary ones have ceil(D / 8) bytes.

    int8 and uint8 need ``ranges`` [2, D], the minimum and maximum of each dimension. Values outside
    the range are clipped. Raises PrecisionError for a value that float16 cannot represent.
    """
    import numpy as np

    match precision:
        case "float32":
            return vectors.astype(np.float32, copy=False)
        case "float16":
            check_values(vectors, precision)
            return vectors.astype(np.float16)
        case "int8" | "uint8":
            least, step = _steps(ranges)
            buckets: Floats = np.clip(np.floor((vectors - least) / step), 0, BUCKETS)
            unsigned = buckets.astype(np.uint8)
        case _:
            unsigned = np.packbits(vectors > 0, axis=-1)
    return (unsigned ^ 0x80).view(np.int8) if precision in SIGNED else unsigned


def restore(
    vectors: NDArray[np.generic], precision: str, ranges: Floats | None = None, dim: int = 0
) -> Floats:
    """Return vectors of bytes or bits as float32: the middle of each bucket, or -1 and 1 for bits.

    ``dim`` is the number of dimensions packed into bits.
    """
    import numpy as np

    unsigned = vectors.astype(np.uint8) ^ np.uint8(0x80 if precision in SIGNED else 0)
    if precision in RANGED:
        least, step = _steps(ranges)
        return (unsigned.astype(np.float32) + np.float32(0.5)) * step + least
    count = dim if unsigned.shape[-1] == math.ceil(dim / 8) else None
    return np.unpackbits(unsigned, axis=-1, count=count).astype(np.float32) * 2 - 1


def ranges_of(blocks: Iterable[Floats]) -> Floats:
    """Return the minimum and maximum of each dimension [2, D] of vectors [n, D].

    Raises PrecisionError for fewer than two vectors.
    """
    import numpy as np

    rows = 0
    low = np.float32(np.inf)
    high = np.float32(-np.inf)
    for vectors in filter(len, blocks):
        rows += len(vectors)
        low = np.minimum(low, vectors.min(axis=0))
        high = np.maximum(high, vectors.max(axis=0))
    if rows < 2:
        raise PrecisionError(
            f"int8 and uint8 need the range of at least two vectors, not {rows}",
            f"give more texts, or {option('precision', 'float16')}",
        )
    return np.stack((low, high))


def check_values(vectors: Floats, precision: str) -> None:
    """Raise PrecisionError if the precision is float16 and a value is too large for it."""
    import numpy as np

    if precision != "float16":
        return
    largest = float(np.finfo(np.float16).max)
    beyond = np.isfinite(vectors) & (np.abs(vectors) > largest)
    if beyond.any():
        extreme = float(np.abs(vectors[beyond]).max())
        raise PrecisionError(
            f"a value of {extreme:.6g} is too large for float16",
            f"use {option('precision', 'float32')}",
        )


def _steps(ranges: Any) -> tuple[Floats, Floats]:
    """Return the minimum and the bucket width of each dimension; the width is 1 if constant."""
    import numpy as np

    step = (ranges[1] - ranges[0]) / BUCKETS
    return ranges[0], np.where(step == 0, np.float32(1), step)
