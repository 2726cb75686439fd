"""Arrays in files, NPY, NPZ and safetensors: read a block of rows at a time, and written.

    with open_array("out.npz", "out.npz", "npz", "embeddings") as array:
        print(array.dtype, array.shape)
        for block in array.blocks(1024): ...

    write_arrays(file, "npz", {"embeddings": ArrayParts("<f4", (2, 384), parts)})

Only headers are read until blocks are asked for.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from tokenize import TokenError
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import ZIP_STORED as ZIP_STORED
from zipfile import BadZipFile as BadZipFile
from zipfile import ZipFile as ZipFile
from zipfile import ZipInfo

from bertcli.errors import InputError
from bertcli.files import safetensors
from bertcli.files.safetensors import AGAIN
from bertcli.files.streams import open_bytes, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

WIDEST = 1 << 22  # numbers of a row, all of which are in memory at once
BLOCK = 1 << 20  # numbers of a block, unless a row has more
# What a broken archive raises, and one that is encrypted or packed in another way.
UNREADABLE = (BadZipFile, zlib.error, EOFError, struct.error, RuntimeError)


# --- NPY ---


def read_blocks(file: IO[bytes], dtype: Any, rows: int, width: int, most: int) -> Iterator[Array]:
    """Yield blocks [n, width], of ``most`` rows at most.

    Raises ValueError for rows that are too wide, EOFError when rows are missing.
    """
    import numpy

    if width > WIDEST:
        raise ValueError(f"a row has {width:,} numbers, and {WIDEST:,} is the limit")
    kind, most = numpy.dtype(dtype), max(1, min(most, BLOCK // max(1, width)))
    for start in range(0, rows, most):
        count = min(most, rows - start)
        size = count * width * kind.itemsize
        raw = file.read(size)
        if len(raw) < size:
            last = start + len(raw) // max(1, width * kind.itemsize)
            raise EOFError(f"ends after row {last:,} of {rows:,}")
        yield numpy.frombuffer(raw, kind).reshape(count, width)


class ArrayParts(NamedTuple):
    """An array that is written part by part."""

    dtype: str
    shape: tuple[int, ...]
    parts: Iterable[bytes]


def write_arrays(file: IO[bytes], form: str, arrays: Mapping[str, ArrayParts]) -> None:
    """Write arrays, of NPY the only one. Equal arrays give equal bytes."""
    if form == "safetensors":
        names = safetensors.NAMES
        tensors = {name: array._replace(dtype=names[array.dtype]) for name, array in arrays.items()}
        safetensors.write_parts(file, tensors)
        return
    from numpy.lib import format as npy

    onward: Any = SimpleNamespace(write=file.write, flush=file.flush)  # no pipe goes back
    with ZipFile(onward, "w") if form == "npz" else nullcontext() as archive:
        for name, array in arrays.items():
            entry = ZipInfo(f"{name}.npy")  # its date is fixed
            opened = archive.open(entry, "w", force_zip64=True) if archive else nullcontext(file)
            with opened as place:
                header = {"descr": array.dtype, "fortran_order": False, "shape": array.shape}
                npy.write_array_header_1_0(place, header)
                place.writelines(array.parts)


# --- the arrays of a file ---


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: rows are along its first axis, and a list of numbers is one row."""

    dtype: Any  # NumPy's, or the name of one that NumPy has not: BF16 is read as float32
    shape: tuple[int, ...]
    read: Callable[[int, int, int], Iterator[Array]]  # rows, width, at most so many at a time
    label: str  # what its file calls the type: float32, F32

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the rows in blocks of so many: [<= most, D...], or [1, width] for a list."""
        rows, *inner = self.shape if len(self.shape) > 1 else (1, *self.shape)
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
    with open_bytes(place) as stream:
        yield {"": lambda: _array(stream)}


@contextmanager
def _npz(place: str) -> Iterator[Arrays]:
    with ZipFile(place) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        yield {n.removesuffix(".npy"): partial(_member, archive, n) for n in names}


def _member(archive: ZipFile, name: str) -> StoredArray:
    return _array(archive.open(name))


def _array(stream: IO[bytes]) -> StoredArray:
    """Read the header. Raises ValueError for what is none."""
    from numpy.lib import format as npy

    try:
        is_first = npy.read_magic(stream) == (1, 0)
        read_header = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, by_columns, dtype = read_header(stream)
    except (TypeError, TokenError) as broken:
        raise ValueError(f"a header that is none: {broken}") from None
    if min(shape, default=0) < 0 or by_columns:
        raise ValueError(f"shape {shape}{' in Fortran order' * by_columns}")

    def read(rows: int, width: int, most: int) -> Iterator[Array]:
        return read_blocks(stream, dtype, rows, width, most)

    return StoredArray(dtype, shape, read, str(dtype))


@contextmanager
def _safetensors(place: str) -> Iterator[Arrays]:
    import numpy

    def tensor(info: safetensors.StoredTensor) -> StoredArray:
        kind = safetensors.NUMPY_OF.get(info.dtype)
        bits = info.dtype == "BF16"

        def read(rows: int, width: int, most: int) -> Iterator[Array]:
            with open(place, "rb") as file:
                file.seek(info.start)
                for block in read_blocks(file, kind, rows, width, most):
                    yield safetensors.float32_of(block) if bits else block

        dtype = info.dtype if bits or kind is None else numpy.dtype(kind)
        return StoredArray(dtype, info.shape, read, info.dtype)

    yield {info.name: partial(tensor, info) for info in safetensors.tensors_in(place)}


OPENERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}
