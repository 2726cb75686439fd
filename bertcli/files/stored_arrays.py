"""The arrays of a file, NPY, NPZ or safetensors, read a block of rows at a time.

with open_array("out.npz", "out.npz", "npz", "embeddings") as found:
    print(found.dtype, found.shape)
    for block in found.blocks(1024): ...

with open_arrays("out.npz", "out.npz", "npz") as arrays:
    found = {name: opened().shape for name, opened in arrays.items()}

Only headers are read until blocks are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.files import npy, safetensors
from bertcli.files.safetensors import AGAIN
from bertcli.files.streams import PACKED, open_bytes, size_on_disk, unreadable
from bertcli.files.zips import UNREADABLE, ZipInfo, open_zip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: rows are along its first axis, and a list of numbers is one row."""

    dtype: Any  # NumPy's, or the name of one that NumPy has not: BF16 is read as float32
    shape: tuple[int, ...]
    by_columns: bool  # in Fortran order
    read: Callable[[int, int, int], Iterator[Array]]  # rows, width, at most so many at a time
    label: str  # what its file calls the type: float32, F32
    behind: int = 0  # bytes in the file after the array

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
    head = npy.read_header(stream)
    size = head.end if size is None else size
    if head.end > size:
        raise EOFError(f"truncated: {size:,} bytes, not {head.end:,}")

    def read(rows: int, width: int, most: int) -> Iterator[Array]:
        return npy.read_blocks(stream, head.dtype, rows, width, most)

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
                for block in npy.read_blocks(file, kind, rows, width, most):
                    yield safetensors.float32_of(block) if bits else block

        dtype = info.dtype if bits or kind is None else numpy.dtype(kind)
        return StoredArray(dtype, info.shape, False, read, info.dtype)

    yield {info.name: partial(tensor, info) for info in safetensors.tensors_in(place)}


OPENERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}
