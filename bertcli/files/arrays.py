"""Arrays in files, NPY, NPZ and safetensors: read a block of rows at a time, and written.

    with open_array("out.npz", "out.npz", "npz", "embeddings") as array:
        print(array.dtype, array.shape)
        for block in array.blocks(1024): ...

    file.write(header_of("<f4", (2, 384)))          # of an NPY file
    with npz_archive(file) as member:
        with member("embeddings") as array: ...

Only headers are read until blocks are asked for. Numpy's own reader of them evaluates what is none,
and makes room for what they promise; archives from outside have bounds as well. Source:
numpy.lib.format.
"""

from __future__ import annotations

import ast
import math
import os
import stat
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo
from zipfile import ZIP_STORED as ZIP_STORED
from zipfile import BadZipFile as BadZipFile

from bertcli.errors import InputError
from bertcli.files import safetensors
from bertcli.files.safetensors import AGAIN, DIMENSIONS
from bertcli.files.streams import PACKED, open_bytes, size_on_disk, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MAGIC = b"\x93NUMPY"
LONGEST = 1 << 16  # bytes of a header
WIDEST = 1 << 22  # numbers of a row, all of which are in memory at once
BLOCK = 1 << 20  # numbers of a block, unless a row has more
UNREADABLE = (BadZipFile, zlib.error, EOFError)  # what a broken archive raises
BAD_HEADER = (
    ValueError, SyntaxError, TypeError, LookupError, MemoryError, RecursionError, struct.error,
)  # fmt: skip


# --- NPY ---


class Header(NamedTuple):
    """What an NPY file says that it holds."""

    dtype: Any
    shape: tuple[int, ...]
    by_columns: bool  # Fortran order
    end: int  # the bytes of the whole file


def read_header(file: IO[bytes]) -> Header:
    """Read up to the data. Raises ValueError for what is no NPY header."""
    import numpy

    try:
        start = file.read(8)
        if start[:6] != MAGIC or start[6] not in (1, 2, 3):
            raise ValueError("it does not start like one")
        digits = 2 if start[6] == 1 else 4
        length = int.from_bytes(file.read(digits), "little")
        if length > LONGEST:
            raise ValueError(f"a header of {length:,} bytes")
        text = file.read(length).decode("latin-1")
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
        if shape and shape[0] > BLOCK and not math.prod(shape):
            raise ValueError(f"{shape[0]:,} rows without a number")
        end = 8 + digits + length + math.prod(shape) * dtype.itemsize
        return Header(dtype, shape, bool(header["fortran_order"]), end)
    except BAD_HEADER as broken:
        raise ValueError(str(broken).split("\n")[0] or type(broken).__name__) from None


def rows_at_once(width: int, most: int) -> int:
    """Return how many rows of so many numbers are read at a time: ``most``, or fewer of long ones.

    Raises ValueError for longer rows than are read.
    """
    if width > WIDEST:
        raise ValueError(f"a row has {width:,} numbers, and {WIDEST:,} is the limit")
    return max(1, min(most, BLOCK // max(1, width)))


def read_blocks(file: IO[bytes], dtype: Any, rows: int, width: int, most: int) -> Iterator[Array]:
    """Yield blocks [n, width], of ``most`` rows at most.

    Raises ValueError for rows that are too wide, EOFError when rows are missing.
    """
    import numpy

    kind, most = numpy.dtype(dtype), rows_at_once(width, most)
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


# --- archives ---


def open_zip(path: str | Path) -> ZipFile:
    """Open an archive for reading. Raises BadZipFile, or OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a device may have no end
        raise BadZipFile("it has no directory of members: it is no regular file")
    try:
        archive = ZipFile(path)
    except (ValueError, NotImplementedError, struct.error, RuntimeError) as broken:
        raise BadZipFile(f"its directory is broken: {broken}") from None
    entries = archive.infolist()
    counts = Counter(entry.filename for entry in entries)
    for entry in entries:
        name = entry.filename
        if counts[name] > 1:
            raise BadZipFile(f"{name!r} is in it twice")
        if entry.flag_bits & 1:
            raise BadZipFile(f"{name!r} is encrypted")
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BadZipFile(f"{name!r} is compressed in a way that is not supported")
    return archive


@contextmanager
def npz_archive(file: IO[bytes]) -> Iterator[Callable[[str], IO[bytes]]]:
    """Yield what opens an array of an archive, to write it there. Equal arrays give equal bytes."""
    with ZipFile(file, "w") as archive:

        def member(name: str) -> IO[bytes]:
            entry = ZipInfo(f"{name}.npy")  # its date is fixed
            return archive.open(entry, "w", force_zip64=True)

        yield member


# --- the arrays of a file ---


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: rows are along its first axis, and a list of numbers is one row."""

    dtype: Any  # NumPy's, or the name of one that NumPy has not: BF16 is read as float32
    shape: tuple[int, ...]
    by_columns: bool  # in Fortran order
    read: Callable[[int, int, int], Iterator[Array]]  # rows, width, at most so many at a time
    label: str  # what its file calls the type: float32, F32
    behind: int = 0  # bytes in the file after the array

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the rows in blocks of so many: [<= most, D...], or [1, width] for a list."""
        rows, *inner = self.shape if len(self.shape) > 1 else (1, *self.shape)
        if self.by_columns:  # all of it belongs to every row
            for whole in self.read(1, math.prod(self.shape), 1):
                yield whole.reshape((rows, *inner), order="F")
            return
        for block in self.read(rows, math.prod(inner), most):
            yield block.reshape(len(block), *inner)


Arrays = Mapping[str, Callable[[], StoredArray]]  # name, "" in NPY -> what opens it


@contextmanager
def open_arrays(place: str, path: str, form: str) -> Iterator[Arrays]:
    """Open all arrays of a file that messages call ``path``, by their names.

    Raises InputError when the file is broken; also while it is read.
    """
    try:
        with OPENERS[form](place) as arrays:
            yield arrays
    except (ValueError, *UNREADABLE) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}", AGAIN) from None
    except OSError as failed:
        raise unreadable(path, failed) from None


@contextmanager
def open_array(place: str, path: str, form: str, name: str) -> Iterator[StoredArray]:
    """Open the array of this name, or the only one there is: see `open_arrays`."""
    with open_arrays(place, path, form) as arrays:
        if name not in arrays and len(arrays) != 1:
            available = ", ".join(arrays) or "none"
            raise InputError(f"{path}: array {name!r} not found", f"available: {available}")
        yield arrays[name if name in arrays else next(iter(arrays))]()


@contextmanager
def _npy(place: str) -> Iterator[Arrays]:
    packed = Path(place).suffix.lower() in PACKED
    with open_bytes(place) as stream:
        yield {"": lambda: _array(stream, None if packed else size_on_disk((place,)))}


@contextmanager
def _npz(place: str) -> Iterator[Arrays]:
    def member(entry: ZipInfo) -> StoredArray:
        try:
            return _array(archive.open(entry), entry.file_size)  # closed when nobody has it
        except (ValueError, EOFError, RuntimeError) as broken:
            raise ValueError(f"{entry.filename}: {broken}") from None

    with open_zip(place) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        yield {entry.filename.removesuffix(".npy"): partial(member, entry) for entry in entries}


def _array(stream: IO[bytes], size: int | None) -> StoredArray:
    head = read_header(stream)
    size = head.end if size is None else size
    if head.end > size:
        raise EOFError(f"truncated: {size:,} bytes, not {head.end:,}")

    def read(rows: int, width: int, most: int) -> Iterator[Array]:
        return read_blocks(stream, head.dtype, rows, width, most)

    label = str(head.dtype)
    return StoredArray(head.dtype, head.shape, head.by_columns, read, label, size - head.end)


@contextmanager
def _safetensors(place: str) -> Iterator[Arrays]:
    import numpy

    def tensor(info: safetensors.TensorInfo) -> StoredArray:
        kind = safetensors.NUMPY_OF.get(info.dtype)
        bits = info.dtype == "BF16"

        def read(rows: int, width: int, most: int) -> Iterator[Array]:
            with open(place, "rb") as file:
                file.seek(info.start)
                for block in read_blocks(file, kind, rows, width, most):
                    yield safetensors.float32_of(block) if bits else block

        dtype = info.dtype if bits or kind is None else numpy.dtype(kind)
        return StoredArray(dtype, info.shape, False, read, info.dtype)

    yield {info.name: partial(tensor, info) for info in safetensors.tensors_in(place)}


OPENERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}
