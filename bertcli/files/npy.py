"""NPY arrays, alone or in archives (NPZ): their headers, and rows as a stream.

    head = read_header(file)                 # ValueError says what is wrong
    for block in read_blocks(file, head.dtype, rows, width, most=1024): ...

    file.write(header_of("<f4", (2, 384)))

Source: numpy.lib.format. Numpy's own reader evaluates headers that are none, and makes room for
what they promise.
"""

from __future__ import annotations

import ast
import struct
import warnings
from collections.abc import Iterator
from math import prod
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertcli.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MAGIC = b"\x93NUMPY"
LONGEST = 1 << 16  # bytes of a header
DIMENSIONS = 64  # numpy's own limit
WIDEST = 1 << 22  # numbers of a row, all of which are in memory at once
BLOCK = 1 << 20  # numbers of a block, unless a row has more
_BAD = (ValueError, SyntaxError, TypeError, LookupError, MemoryError, RecursionError, struct.error)


class Header(NamedTuple):
    """What an NPY file says that it holds."""

    dtype: Any
    shape: tuple[int, ...]
    by_columns: bool  # Fortran order
    start: int  # of the data, in bytes

    @property
    def end(self) -> int:
        """The bytes of the whole file."""
        count: int = prod(self.shape)
        return self.start + count * int(self.dtype.itemsize)


def read_header(file: IO[bytes]) -> Header:
    """Read up to the data. Raises ValueError for what is no NPY header."""
    import numpy

    try:
        magic, major = file.read(6), file.read(2)[:1]
        if magic != MAGIC or major not in (b"\1", b"\2", b"\3"):
            raise ValueError("it does not start like one")
        form = "<H" if major == b"\1" else "<I"
        (length,) = struct.unpack(form, file.read(struct.calcsize(form)))
        if length > LONGEST:
            raise ValueError(f"a header of {length:,} bytes")
        text = file.read(length).decode("utf-8" if major == b"\3" else "latin-1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python and numpy, about odd headers
            header = ast.literal_eval(text.strip())
            if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
                raise ValueError("its header is not that of an array")
            dtype = numpy.dtype(header["descr"])
        if not dtype.itemsize:
            raise ValueError(f"its numbers, {dtype}, have no bytes")
        shape = header["shape"]
        whole = isinstance(shape, tuple) and all(
            type(size) is int and 0 <= size < 2**63 for size in shape
        )
        if not whole or len(shape) > DIMENSIONS:
            raise ValueError("its shape is not of whole numbers from 0")
        if shape and shape[0] > BLOCK and not prod(shape):
            raise ValueError(f"{shape[0]:,} rows without a number")
        return Header(
            dtype, shape, bool(header["fortran_order"]), 8 + struct.calcsize(form) + length
        )
    except _BAD as broken:
        raise ValueError(str(broken).split("\n")[0] or type(broken).__name__) from None


def rows_at_once(path: str, width: int, most: int) -> int:
    """Return how many rows of so many numbers are read at a time: ``most``, or fewer of long ones.

    Raises InputError for longer rows than are read.
    """
    if width > WIDEST:
        raise InputError(f"{path}: a row has {width:,} numbers, and {WIDEST:,} is the limit")
    return max(1, min(most, WIDEST // max(1, width)))


def read_blocks(file: IO[bytes], dtype: Any, rows: int, width: int, most: int) -> Iterator[Array]:
    """Yield blocks [n, width], of ``most`` rows each but the last.

    Raises ValueError for rows that are too wide, EOFError when rows are missing.
    """
    import numpy

    kind = numpy.dtype(dtype)
    if width > WIDEST:
        raise ValueError(f"a row has {width:,} numbers, and {WIDEST:,} is the limit")
    for start in range(0, rows, most):
        count = min(most, rows - start)
        size = count * width * kind.itemsize
        raw = file.read(size)
        if len(raw) < size:
            last = start + len(raw) // max(1, width * kind.itemsize)
            raise EOFError(f"ends after row {last:,} of {rows:,}")
        yield numpy.frombuffer(raw, kind).reshape(count, width)


def header_of(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of an NPY file of version 1.0, 128 bytes for every shape."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return MAGIC + b"\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n"
