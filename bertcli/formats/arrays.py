"""Arrays in NPY, NPZ and safetensors files: read them in blocks of rows, and write them.

    with open_arrays("out.npz", "out.npz", "npz") as arrays:
        array = array_in(arrays, "out.npz", "embeddings")
        print(array.dtype, array.shape)
        for block in array.blocks(1024): ...

    write_arrays(file, "npz", {"embeddings": ArrayParts("<f4", (2, 384), parts)})

Opening a file reads only its headers.

Token ids have one of two layouts. Rows of equal length are int64 of shape [records, length], one
array per field. Rows of any length (``ragged``, NPZ and safetensors) are flat, with the offset of
each row:

    input_ids        uint32 [T]: all rows, one after the other
    offsets          int64 [B + 1]: row b is input_ids[offsets[b] : offsets[b + 1]]
    token_type_ids   uint8 [T], where a token has another type than 0
    special_tokens_mask   uint8 [T], where it is asked for

The header of these files contains the number of rows, which is known only at the end, so the rows
are spooled, and each array is copied after its header. Archive members are stored uncompressed, so
arrays can be mapped in place. Both writing and reading need the memory of one block.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from mmap import ACCESS_READ, mmap
from tokenize import TokenError
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import ZIP_STORED as ZIP_STORED
from zipfile import BadZipFile as BadZipFile
from zipfile import ZipFile as ZipFile
from zipfile import ZipInfo

from bertcli.errors import InputError, OutputError, counted, option
from bertcli.formats import safetensors
from bertcli.formats.safetensors import AGAIN
from bertcli.formats.tables import NUMERIC, FlatLists, Row, Spool, Table, table_of
from bertcli.io.printable import listed
from bertcli.io.streams import CHUNK, open_bytes, stream_of, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

WIDEST = 1 << 22  # maximum numbers in a row, which is in memory at once
BLOCK = 1 << 20  # numbers in a block, unless a row has more
# Errors of an archive that is broken, encrypted, or compressed in an unsupported way.
UNREADABLE = (BadZipFile, zlib.error, EOFError, struct.error, RuntimeError)


# --- NPY ---


class ArrayParts(NamedTuple):
    """An array to write, with its bytes in parts."""

    dtype: str
    shape: tuple[int, ...]
    parts: Iterable[bytes]


def write_arrays(file: IO[bytes], form: str, arrays: Mapping[str, ArrayParts]) -> None:
    """Write arrays (NPY: exactly one). Equal arrays produce equal bytes."""
    if form == "safetensors":
        names = safetensors.NAMES
        tensors = {name: array._replace(dtype=names[array.dtype]) for name, array in arrays.items()}
        safetensors.write_parts(file, tensors)
        return
    from numpy.lib import format as npy

    onward: Any = SimpleNamespace(write=file.write, flush=file.flush)  # a pipe cannot seek
    with ZipFile(onward, "w") if form == "npz" else nullcontext() as archive:
        for name, array in arrays.items():
            entry = ZipInfo(f"{name}.npy")  # with a fixed date
            opened = archive.open(entry, "w", force_zip64=True) if archive else nullcontext(file)
            with opened as place:
                header = {"descr": array.dtype, "fortran_order": False, "shape": array.shape}
                npy.write_array_header_1_0(place, header)
                place.writelines(array.parts)


# --- the arrays of a file ---


@dataclass(frozen=True)
class StoredArray:
    """An array in a file. Rows are along its first axis."""

    dtype: Any  # NumPy's, or bytes if NumPy has none; BF16 is read as float32
    shape: tuple[int, ...]
    opened: Callable[[], IO[bytes]]  # returns the file at the array's first number
    label: str  # name of the dtype in the file: float32, F32

    def blocks(self, most: int = BLOCK) -> Iterator[Array]:
        """Yield the rows in blocks of at most ``most`` rows: [<= most, D...]."""
        rows, *inner = self.shape or (1,)
        for block in self.read(rows, math.prod(inner), most):
            yield block.reshape(len(block), *inner)

    def read(self, rows: int, width: int, most: int) -> Iterator[Array]:
        """Yield the numbers as ``rows`` rows of ``width`` numbers: [<= most, width].

        Raises ValueError for rows that are too wide, EOFError for missing rows.
        """
        import numpy

        if width > WIDEST:
            raise ValueError(f"a row has {width:,} numbers, and {WIDEST:,} is the limit")
        bits = self.label == "BF16"
        kind = numpy.dtype(safetensors.NUMPY_OF["BF16"] if bits else self.dtype)
        most = max(1, min(most, BLOCK // max(1, width)))
        with self.opened() as file:
            for start in range(0, rows, most):
                count = min(most, rows - start)
                size = count * width * kind.itemsize
                raw = file.read(size)
                if len(raw) < size:
                    last = start + len(raw) // max(1, width * kind.itemsize)
                    raise EOFError(f"ends after row {last:,} of {rows:,}")
                block = numpy.frombuffer(raw, kind).reshape(count, width)
                yield safetensors.float32_of(block) if bits else block


Arrays = Mapping[str, Callable[[], StoredArray]]  # name ("" in NPY) -> opener


@contextmanager
def open_arrays(place: str | IO[bytes], path: str, form: str) -> Iterator[Arrays]:
    """Open all arrays of a file, by name. ``place`` is a path or an open file.

    Raises InputError, with the name ``path``, if the file is broken, also while it is read.
    """
    try:
        with OPENERS[form](place) as arrays:
            yield arrays
    except (ValueError, *UNREADABLE) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}", AGAIN) from None
    except OSError as failed:
        raise unreadable(path, failed) from None


def array_in(arrays: Arrays, path: str, name: str) -> StoredArray:
    """Return the array of this name, or the only array. Raises InputError if there is neither."""
    if name not in arrays and len(arrays) != 1:
        raise InputError(f"{path}: array {name!r} not found", f"available: {listed(arrays)}")
    return arrays[name if name in arrays else next(iter(arrays))]()


@contextmanager
def _npy(place: str | IO[bytes]) -> Iterator[Arrays]:
    with open_bytes(place) if isinstance(place, str) else place as stream:
        yield {"": lambda: array_of_stream(stream)}


@contextmanager
def _npz(place: str | IO[bytes]) -> Iterator[Arrays]:
    with ZipFile(place) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]

        def member(name: str) -> StoredArray:
            return array_of_stream(archive.open(name))

        yield {name.removesuffix(".npy"): partial(member, name) for name in names}


def array_of_stream(stream: IO[bytes]) -> StoredArray:
    """Return the array of a stream at its NPY header. Raises ValueError for an invalid header."""
    from numpy.lib import format as npy

    try:
        is_first = npy.read_magic(stream) == (1, 0)
        read_header = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            shape, by_columns, dtype = read_header(stream)
    except (TypeError, TokenError) as broken:
        raise ValueError(f"a header that is none: {broken}") from None
    if min(shape, default=0) < 0 or by_columns:
        raise ValueError(f"shape {shape}{' in Fortran order' * by_columns}")

    return StoredArray(dtype, shape, lambda: stream, str(dtype))


@contextmanager
def _safetensors(place: str | IO[bytes]) -> Iterator[Arrays]:
    import numpy

    def tensor(info: safetensors.StoredTensor) -> StoredArray:
        def opened() -> IO[bytes]:
            if isinstance(place, str):
                file = open(place, "rb")  # noqa: SIM115 - `blocks` closes it
                file.seek(info.start)
                return file
            return stream_of(mapped_parts(place, info.start, info.nbytes), io.BytesIO())

        kind = "<f4" if info.dtype == "BF16" else safetensors.NUMPY_OF.get(info.dtype, "V1")
        return StoredArray(numpy.dtype(kind), info.shape, opened, info.dtype)

    yield {info.name: partial(tensor, info) for info in safetensors.tensors_in(place)}


def mapped_parts(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    """Yield a range of bytes of an open file, independent of its read position."""
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        for offset in range(start, start + size, CHUNK):
            yield content[offset : min(offset + CHUNK, start + size)]


OPENERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}


# --- token ids ---

IDS, OFFSETS = "input_ids", "offsets"
DTYPES = {IDS: "<u4", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}  # of ragged rows
ROWS = 1024  # rows read at a time


def ids_writer_of(form: str, *, ragged: bool = False) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids only), npz or safetensors; rows may be ragged."""
    names = NUMERIC[:1] if form == "npy" else NUMERIC

    @contextmanager
    def ids_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | Table], None]]:
        import numpy as np

        rows_before = 0
        ids_before = 0
        lengths: dict[str, int] = {}  # name -> common length of its rows, unless ragged
        with closing(Spool()) as spool:

            def write(rows: Sequence[Row] | Table) -> None:
                nonlocal rows_before, ids_before
                table = table_of(rows)
                flat = {n: _flat(table.columns[n]) for n in names if n in table.columns}
                for name, lists in {} if ragged else flat.items():
                    for record, length in enumerate(np.diff(lists.offsets), rows_before + 1):
                        if lengths.setdefault(name, int(length)) != length:
                            raise OutputError(
                                f"record {record} has {counted(int(length), 'token')} and those "
                                f"before have {lengths[name]:,}: an array needs rows of one length",
                                f"give {option('padding', 'longest')} (its {option('window')} "
                                "must hold all records) or "
                                f"max_length, with {option('truncation')} when some are too long",
                            )
                if len(table):
                    spool.add(flat)
                    rows_before += len(table)
                    ids_before += len(flat[IDS].values)

            def parts(name: str, dtype: str) -> Iterator[bytes]:
                for flat in spool:
                    yield flat[name].values.astype(dtype).tobytes()

            def offsets() -> Iterator[bytes]:
                yield bytes(8)
                before = 0
                for flat in spool:
                    ends = flat[IDS].offsets[1:] + before
                    before = ends[-1]
                    yield ends.astype("<i8").tobytes()

            yield write
            if ragged:
                present = {name for flat in spool for name in flat if flat[name].values.any()}
                arrays = {
                    name: ArrayParts(dtype, (ids_before,), parts(name, dtype))
                    for name, dtype in DTYPES.items()
                    if name in {IDS, *present}
                }
                arrays[OFFSETS] = ArrayParts("<i8", (rows_before + 1,), offsets())
            else:
                arrays = {
                    name: ArrayParts("<i8", (rows_before, length), parts(name, "<i8"))
                    for name, length in lengths.items()
                }
            if arrays:
                write_arrays(file, form, arrays)

    return ids_writer


npy_writer = ids_writer_of("npy")
npz_writer = ids_writer_of("npz")
safetensors_writer = ids_writer_of("safetensors")
ragged_npz_writer = ids_writer_of("npz", ragged=True)
ragged_safetensors_writer = ids_writer_of("safetensors", ragged=True)


def _flat(lists: Any) -> FlatLists:
    """Return the lists of a column as one flat array with offsets."""
    import numpy as np

    if isinstance(lists, FlatLists):
        return lists
    offsets = np.cumsum([0, *map(len, lists)])
    return FlatLists(np.fromiter(chain.from_iterable(lists), "<i8", offsets[-1]), offsets)


Numbered = tuple[int, list[list[int]]]  # number of the first row, and the rows


def read_ids(place: str | IO[bytes], path: str, form: str) -> Iterator[Numbered]:
    """Yield rows of ids: ragged rows with offsets, or those of input_ids, or of the only array.

    Raises InputError, with the name ``path``, if there is no such array.
    """
    with open_arrays(place, path, form) as arrays:
        if {IDS, OFFSETS} <= arrays.keys():
            yield from _read_ragged(path, arrays[IDS](), arrays[OFFSETS]())
            return
        start = 1
        array = array_in(arrays, path, IDS)
        if array.dtype.kind not in "iu" or len(array.shape) not in (1, 2):
            raise InputError(
                f"{path}: holds {array.label} of shape {array.shape}, not lists of ids",
                "ids are whole numbers of shape [records, length]",
            )
        if len(array.shape) == 1:  # a single row
            array = replace(array, shape=(1, *array.shape))
        for rows in array.blocks(ROWS):
            yield start, rows.tolist()
            start += len(rows)


def _read_ragged(path: str, ids: StoredArray, offsets: StoredArray) -> Iterator[Numbered]:
    """Yield ragged rows of ids. Raises InputError if offsets and ids do not match."""
    if not all(array.dtype.kind in "iu" and len(array.shape) == 1 for array in (ids, offsets)):
        raise InputError(f"{path}: input_ids and offsets are not lists of whole numbers")
    numbers = chain.from_iterable(block.tolist() for block in ids.blocks())
    number, at = 0, 0  # the first offset does not end a row
    for block in offsets.blocks(ROWS):
        stops = block.tolist()
        sizes = [stop - start for start, stop in pairwise([at, *stops])]
        whole = number > 0 or stops[0] == 0
        at = stops[-1]
        if not whole or min(sizes) < 0 or at > ids.shape[0]:
            break
        if max(sizes) > WIDEST:
            raise InputError(f"{path}: a row has {max(sizes):,} ids, and {WIDEST:,} is the limit")
        rows = [[*islice(numbers, size)] for size in sizes]
        yield max(1, number), rows if number else rows[1:]
        number += len(stops)
    else:
        if at == ids.shape[0]:
            return
    raise InputError(f"{path}: offsets do not divide the {ids.shape[0]:,} ids")
