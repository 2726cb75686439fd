"""Smaller numbers for vectors: float16, one byte, or one bit a dimension.

The bytes are those of sentence-transformers 6.2, quantize_embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bertcli.errors import OutputError, PrecisionError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

PRECISIONS = ("float32", "float16", "int8", "uint8", "binary", "ubinary")
RANGED = ("int8", "uint8")  # precisions that need the range of every dimension
BUCKETS = 255  # steps between the least and the greatest value of a dimension


def quantize(vectors: Floats, precision: str, ranges: Floats | None = None) -> NDArray[np.generic]:
    """Return vectors [..., D] in another precision; binary ones have ceil(D / 8) bytes.

    int8 and uint8 need ``ranges`` [2, D], the least and the greatest value of each dimension.
    Values outside of them become the nearest that can be had. Raises PrecisionError for a value
    that float16 cannot hold.
    """
    import numpy as np

    match precision:
        case "float32":
            return vectors.astype(np.float32, copy=False)
        case "float16":
            check_values(vectors, precision)
            return vectors.astype(np.float16)
        case "int8" | "uint8":
            least, step = _steps(precision, ranges)
            bucket: Floats = np.clip(np.floor((vectors - least) / step), 0, BUCKETS)
            return (
                bucket.astype(np.uint8) if precision == "uint8" else (bucket - 128).astype(np.int8)
            )
        case "binary":
            return (np.packbits(vectors > 0, axis=-1) ^ 0x80).view(np.int8)
        case "ubinary":
            return np.packbits(vectors > 0, axis=-1)
        case unknown:
            raise UsageError(f"unknown --precision {unknown!r}", f"one of {', '.join(PRECISIONS)}")


def restore(
    vectors: NDArray[np.generic], precision: str, ranges: Floats | None = None, dim: int = 0
) -> Floats:
    """Return vectors of bytes or bits in float32: the middle of each bucket, or -1 and 1 for a bit.

    ``dim`` is the number of dimensions that were packed into bits.
    """
    import numpy as np

    if precision in RANGED:
        least, step = _steps(precision, ranges)
        shift = np.float32(128.5 if precision == "int8" else 0.5)
        return ((vectors.astype(np.float32) + shift) * step + least).astype(np.float32)
    packed = vectors.view(np.uint8) ^ (0x80 if precision == "binary" else 0)
    bits = np.unpackbits(packed.astype(np.uint8), axis=-1, count=dim or None)
    return bits.astype(np.float32) * 2 - 1


def ranges_of(blocks: Iterable[Floats]) -> Floats:
    """Return the least and greatest values of each dimension [2, D], of vectors [n, D].

    Raises PrecisionError for fewer than two vectors.
    """
    import numpy as np

    rows, low, high = 0, np.float32(np.inf), np.float32(-np.inf)
    for vectors in filter(len, blocks):
        rows += len(vectors)
        low, high = np.minimum(low, vectors.min(axis=0)), np.maximum(high, vectors.max(axis=0))
    if rows < 2:
        raise too_few(rows)
    return np.stack((low, high))


def too_few(rows: int) -> PrecisionError:
    """Return the error for so few vectors that their dimensions have no ranges."""
    return PrecisionError(
        f"int8 and uint8 need the range of at least two vectors, not {rows}",
        "give more texts, or --precision float16",
    )


def check_values(vectors: Floats, precision: str) -> None:
    """Raise PrecisionError for a value that float16 cannot hold, where that is the precision."""
    if precision != "float16":
        return
    import numpy as np

    largest = float(np.finfo(np.float16).max)
    beyond = np.isfinite(vectors) & (np.abs(vectors) > largest)
    if beyond.any():
        extreme = float(np.abs(vectors[beyond]).max())
        raise PrecisionError(
            f"a value of {extreme:.6g} is too large for float16", "use --precision float32"
        )


def _steps(precision: str, ranges: Floats | None) -> tuple[Floats, Floats]:
    """Return the least value and the width of a bucket for each dimension; a constant has 1."""
    import numpy as np

    if ranges is None:
        raise UsageError(
            f"--precision {precision} needs the ranges of the values",
            "calibrate on a sample of the vectors",
        )
    ranges = ranges.astype(np.float32, copy=False)
    step = (ranges[1] - ranges[0]) / BUCKETS
    return ranges[0], np.where(step == 0, np.float32(1), step).astype(np.float32, copy=False)


STREAMED = ("jsonl", "csv")
WITH_TERMS = ("jsonl", "npz", "parquet")  # formats of sparse vectors


def refuse_dense(form: str) -> None:
    """Raise UsageError for a format that holds no weights of terms."""
    if form not in WITH_TERMS:
        raise UsageError(
            f"--sparse: weights of terms cannot be written as {form}",
            f"one of {', '.join(WITH_TERMS)}",
        )


def refuse_stream(form: str, precision: str) -> None:
    """Raise OutputError for what is made of all rows together."""
    if form not in STREAMED or precision in RANGED:
        what = form if form not in STREAMED else f"--precision {precision}"
        raise OutputError(f"{what} cannot be streamed", "use -o FILE")
