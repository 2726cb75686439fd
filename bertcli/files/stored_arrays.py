"""One array of a file, NPY, NPZ or safetensors, read a block of rows at a time.

with open_array("out.npz", "out.npz", "npz", "embeddings") as found:
print(found.dtype, found.shape)
for block in found.blocks(1024): ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.files.npy import read_blocks, read_header
from bertcli.files.safetensors import AGAIN, NUMPY_OF, open_safetensors
from bertcli.files.streams import PACKED, open_bytes, size_on_disk, unreadable
from bertcli.files.zips import UNREADABLE, open_zip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: rows are along its first axis, and a list of numbers is one row."""

    dtype: Any  # NumPy's, or the name of one that NumPy has not
    shape: tuple[int, ...]
    by_columns: bool  # in Fortran order
    read: Callable[[int, int, int], Iterator[Array]]  # rows, width, at most so many at a time

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def width(self) -> int:
        """The numbers in a row."""
        return math.prod(self.shape[1:] if len(self.shape) > 1 else self.shape)

    def blocks(self, most: int) -> Iterator[Array]:
        """Yield the rows in blocks of so many: [<= most, D...], or [1, width] for a list."""
        if self.by_columns and len(self.shape) > 1:  # all of it belongs to every row
            for whole in self.read(1, self.rows * self.width, 1):
                yield whole.reshape(self.shape, order="F")
            return
        inner = self.shape[1:] if len(self.shape) > 1 else self.shape
        for block in self.read(self.rows, self.width, most):
            yield block.reshape(len(block), *inner)


@contextmanager
def open_array(place: str, path: str, form: str, wanted: str) -> Iterator[StoredArray]:
    """Open the array of this name, or the only one there is, in a file that messages call ``path``.

    Raises InputError when there is none, or the file is broken; also while it is read.
    """
    try:
        with OPENERS[form](place, path, wanted) as found:
            yield found
    except (ValueError, *UNREADABLE) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}", AGAIN) from None
    except OSError as failed:
        raise unreadable(path, failed) from None


def names_of(place: str, path: str, form: str) -> list[str]:
    """Return the names of the arrays in an NPZ or safetensors file. Raises InputError."""
    from safetensors import SafetensorError

    try:
        if form == "npz":
            with open_zip(place) as archive:
                return [name.removesuffix(".npy") for name in archive.namelist()]
        with open_safetensors(place, "numpy") as file:
            return list(file.keys())
    except (SafetensorError, ValueError, *UNREADABLE) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}", AGAIN) from None
    except OSError as failed:
        raise unreadable(path, failed) from None


@contextmanager
def _npy(place: str, path: str, wanted: str) -> Iterator[StoredArray]:
    packed = Path(place).suffix.lower() in PACKED
    with open_bytes(place) as stream:
        yield _array(stream, None if packed else size_on_disk((place,)))


@contextmanager
def _npz(place: str, path: str, wanted: str) -> Iterator[StoredArray]:
    with open_zip(place) as archive:
        members = archive.namelist()
        names = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
        entry = archive.getinfo(f"{_name_among(path, names, wanted)}.npy")
        with archive.open(entry) as member:
            yield _array(member, entry.file_size)


def _array(stream: IO[bytes], size: int | None) -> StoredArray:
    head = read_header(stream)
    if size is not None and head.end > size:
        raise EOFError(f"truncated: {size:,} bytes, not {head.end:,}")

    def read(rows: int, width: int, most: int) -> Iterator[Array]:
        return read_blocks(stream, head.dtype, rows, width, most)

    return StoredArray(head.dtype, head.shape, head.by_columns, read)


@contextmanager
def _safetensors(place: str, path: str, wanted: str) -> Iterator[StoredArray]:
    import numpy
    from safetensors import SafetensorError

    def read(rows: int, width: int, most: int) -> Iterator[Array]:
        if len(shape) < 2 and rows == 1:
            yield found[:].reshape(rows, width)
            return
        for start in range(0, rows, most):
            block = found[start : min(start + most, rows)]
            yield block if len(shape) > 1 else block.reshape(-1, 1)

    try:
        with open_safetensors(place, "numpy") as file:
            found = file.get_slice(_name_among(path, list(file.keys()), wanted))
            shape, dtype = tuple(found.get_shape()), found.get_dtype()
            kind = NUMPY_OF.get(dtype) if dtype != "BF16" else None
            yield StoredArray(numpy.dtype(kind) if kind else dtype, shape, False, read)
    except SafetensorError as broken:
        raise ValueError(str(broken)) from None


def _name_among(path: str, names: Sequence[str], wanted: str) -> str:
    if wanted in names or len(names) == 1:
        return wanted if wanted in names else names[0]
    there = ", ".join(names) or "none"
    raise InputError(f"{path}: array {wanted!r} not found", f"available: {there}")


OPENERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}
