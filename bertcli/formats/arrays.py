"""Arrays in NPY, NPZ and safetensors files: read them in blocks of rows, and write them.

    with open_arrays("out.npz", "out.npz", "npz") as arrays:
        array = array_in(arrays, "out.npz", "embeddings")
        print(array.dtype, array.shape)
        for block in array.blocks(1024): ...

    write_arrays(file, "npz", {"embeddings": ArrayToWrite("<f4", (2, 384), chunks)})

Opening a file reads only its headers.

Token ids have one of two layouts. Rows of equal length are int64 of shape [records, length], one
array per field. Rows of any length (``ragged``, NPZ and safetensors) are flat, with the offset of
each row:

    input_ids        uint32 [T]: all rows, one after the other
    offsets          int64 [B + 1]: row b is input_ids[offsets[b] : offsets[b + 1]]
    token_type_ids   uint8 [T], where a token has another type than 0
    special_tokens_mask   uint8 [T], where it is asked for and a token is special

Both have the columns `ROW_NUMBERS` that the rows have, int64 [records], except in NPY.

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
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from mmap import ACCESS_READ, mmap
from tempfile import TemporaryFile
from tokenize import TokenError
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from zipfile import ZIP_STORED as ZIP_STORED
from zipfile import BadZipFile as BadZipFile
from zipfile import ZipFile as ZipFile
from zipfile import ZipInfo

from bertcli.errors import InputError, OutputError, counted, option
from bertcli.formats import safetensors
from bertcli.formats.safetensors import GET_AGAIN
from bertcli.formats.tables import ID_COLUMNS, FlatLists, Row, Table, table_of
from bertcli.io.printable import listed
from bertcli.io.streams import CHUNK, on_disk, open_mapped, stream_of, unreadable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MAX_ROW_NUMBERS = 1 << 22  # maximum numbers in a row, which is in memory at once
NUMBERS_PER_BLOCK = 1 << 20  # numbers in a block, unless a row has more
# Errors of an archive that is broken, encrypted, or compressed in an unsupported way.
ARCHIVE_ERRORS = (BadZipFile, zlib.error, EOFError, struct.error, RuntimeError)


# --- NPY ---


class ArrayToWrite(NamedTuple):
    """An array to write. The ``chunks`` are its bytes, in order."""

    dtype: str
    shape: tuple[int, ...]
    chunks: Iterable[bytes]


def write_arrays(file: IO[bytes], file_format: str, arrays: Mapping[str, ArrayToWrite]) -> None:
    """Write arrays by name, as npy (exactly one), npz or safetensors.

    Equal arrays give equal bytes.
    """
    if file_format == "safetensors":
        dtype_names = safetensors.DTYPE_NAMES
        tensors = {
            name: array._replace(dtype=dtype_names[array.dtype]) for name, array in arrays.items()
        }
        safetensors.write_tensors(file, tensors)
        return
    from numpy.lib import format as npy

    unseekable: Any = SimpleNamespace(write=file.write, flush=file.flush)  # a pipe cannot seek
    with ZipFile(unseekable, "w") if file_format == "npz" else nullcontext() as archive:
        for name, array in arrays.items():
            entry = ZipInfo(f"{name}.npy")  # with a fixed date
            member = archive.open(entry, "w", force_zip64=True) if archive else nullcontext(file)
            with member as target:
                header = {"descr": array.dtype, "fortran_order": False, "shape": array.shape}
                npy.write_array_header_1_0(target, header)
                target.writelines(array.chunks)


# --- the arrays of a file ---


@dataclass(frozen=True)
class StoredArray:
    """An array in a file. Rows are along its first axis."""

    dtype: Any  # NumPy's, or bytes if NumPy has none; BF16 is read as float32
    shape: tuple[int, ...]
    open: Callable[[], IO[bytes]]  # returns a stream whose first bytes are the first number
    dtype_name: str  # name of the dtype in the file: float32, F32

    def blocks(self, max_rows: int = NUMBERS_PER_BLOCK) -> Iterator[Array]:
        """Yield the rows in blocks [<= max_rows, D...], which cannot be written to."""
        rows, *inner = self.shape or (1,)
        for block in self.read_rows(rows, math.prod(inner), max_rows):
            yield block.reshape(len(block), *inner)

    def read_rows(self, rows: int, width: int, max_rows: int) -> Iterator[Array]:
        """Yield the numbers as ``rows`` rows of ``width`` numbers: [<= max_rows, width].

        Raises ValueError for rows that are too wide, EOFError for missing rows.
        """
        import numpy

        if width > MAX_ROW_NUMBERS:
            raise ValueError(f"a row has {width:,} numbers, and {MAX_ROW_NUMBERS:,} is the limit")
        is_bfloat16 = self.dtype_name == "BF16"
        stored_dtype = numpy.dtype(safetensors.NUMPY_DTYPES["BF16"] if is_bfloat16 else self.dtype)
        max_rows = max(1, min(max_rows, NUMBERS_PER_BLOCK // max(1, width)))
        with self.open() as file:
            for start in range(0, rows, max_rows):
                count = min(max_rows, rows - start)
                size = count * width * stored_dtype.itemsize
                raw = file.read(size)
                if len(raw) < size:
                    complete_rows = start + len(raw) // max(1, width * stored_dtype.itemsize)
                    raise EOFError(f"ends after row {complete_rows:,} of {rows:,}")
                block = numpy.frombuffer(raw, stored_dtype).reshape(count, width)
                yield safetensors.float32_of(block) if is_bfloat16 else block


Arrays = Mapping[str, Callable[[], StoredArray]]  # name ("" in NPY) -> opener


@contextmanager
def open_arrays(path_or_file: str | IO[bytes], name: str, file_format: str) -> Iterator[Arrays]:
    """Open all arrays of a file, by name. ``name`` is the file in messages.

    Raises InputError if the file is broken, also while it is read.
    """
    try:
        with ExitStack() as stack:
            if isinstance(path_or_file, str) and path_or_file != "-":
                path_or_file = stack.enter_context(on_disk(path_or_file))
            yield stack.enter_context(OPENERS[file_format](path_or_file))
    except (ValueError, *ARCHIVE_ERRORS) as broken:
        raise InputError(
            f"{name}: not a readable {file_format} file: {broken}", GET_AGAIN
        ) from None
    except OSError as failed:
        raise unreadable(name, failed) from None


def array_in(arrays: Arrays, file_name: str, name: str) -> StoredArray:
    """Return the array of this name, or the only array. Raises InputError if there is neither."""
    if name not in arrays and len(arrays) != 1:
        raise InputError(f"{file_name}: array {name!r} not found", f"available: {listed(arrays)}")
    return arrays[name if name in arrays else next(iter(arrays))]()


@contextmanager
def _npy(path_or_file: str | IO[bytes]) -> Iterator[Arrays]:
    with open_mapped(path_or_file) if isinstance(path_or_file, str) else path_or_file as stream:
        yield {"": lambda: array_of_stream(stream)}


@contextmanager
def _npz(path_or_file: str | IO[bytes]) -> Iterator[Arrays]:
    with ZipFile(path_or_file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]

        def member(name: str) -> StoredArray:
            return array_of_stream(archive.open(name))

        yield {name.removesuffix(".npy"): partial(member, name) for name in names}


def array_of_stream(stream: IO[bytes]) -> StoredArray:
    """Return the array of a stream that begins with an NPY header.

    Raises ValueError for an invalid header.
    """
    from numpy.lib import format as npy

    try:
        is_version_1 = npy.read_magic(stream) == (1, 0)
        read_header = npy.read_array_header_1_0 if is_version_1 else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            shape, is_fortran_order, dtype = read_header(stream)
    except (TypeError, TokenError) as broken:
        raise ValueError(f"a header that is none: {broken}") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape}")

    def in_fortran_order() -> IO[bytes]:
        return stream_of(_rows_of_columns(stream.read(), dtype, shape), io.BytesIO())

    is_transposed = is_fortran_order and len(shape) > 1  # else both orders are the same
    return StoredArray(
        dtype, shape, in_fortran_order if is_transposed else lambda: stream, str(dtype)
    )


def _rows_of_columns(content: bytes, dtype: Any, shape: tuple[int, ...]) -> Iterator[bytes]:
    """Yield the bytes of the rows of an array that is stored column by column.

    Raises ValueError for missing bytes.
    """
    import numpy

    array = numpy.frombuffer(content, dtype, math.prod(shape)).reshape(shape, order="F")
    rows = max(1, NUMBERS_PER_BLOCK // max(1, math.prod(shape[1:])))
    for start in range(0, len(array), rows):
        yield array[start : start + rows].tobytes()


@contextmanager
def _safetensors(path_or_file: str | IO[bytes]) -> Iterator[Arrays]:
    import numpy

    def stored_array(tensor: safetensors.StoredTensor) -> StoredArray:
        def open_at_start() -> IO[bytes]:
            if isinstance(path_or_file, str):
                file = open(path_or_file, "rb")  # noqa: SIM115 - `blocks` closes it
                file.seek(tensor.start)
                return file
            chunks = mapped_chunks(path_or_file, tensor.start, tensor.nbytes)
            return stream_of(chunks, io.BytesIO())

        dtype = safetensors.NUMPY_DTYPES.get(tensor.dtype, "V1")
        if tensor.dtype == "BF16":
            dtype = "<f4"
        return StoredArray(numpy.dtype(dtype), tensor.shape, open_at_start, tensor.dtype)

    tensors = safetensors.tensors_in(path_or_file)
    yield {tensor.name: partial(stored_array, tensor) for tensor in tensors}


def mapped_chunks(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    """Yield a range of bytes of an open file, independent of its read position."""
    with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        for offset in range(start, start + size, CHUNK):
            yield content[offset : min(offset + CHUNK, start + size)]


OPENERS = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}


# --- token ids ---

IDS = "input_ids"
OFFSETS = "offsets"
ROW_NUMBERS = ("length", "overflow_to_sample_mapping")  # columns with a number for each row
RAGGED_DTYPES = {IDS: "<u4", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}
ROWS_PER_BLOCK = 1024


class NumberSpool:
    """A temporary store of the numbers of one array. Must be closed.

    It is an unnamed file, so nothing remains if the process is killed. As long as all numbers are
    zero, only their count is stored, and ``file`` is None.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.count = 0
        self.file: IO[bytes] | None = None

    def add(self, numbers: Array) -> None:
        """Append numbers."""
        import numpy

        if self.file is None and numbers.any():
            self.file = TemporaryFile()  # noqa: SIM115 - closed by `close`
            self.file.seek(self.count * numpy.dtype(self.dtype).itemsize)  # skipped bytes are zeros
        if self.file:
            self.file.write(numbers.astype(self.dtype, copy=False).data)
        self.count += len(numbers)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of all numbers."""
        import numpy

        if self.file is None:
            size = self.count * numpy.dtype(self.dtype).itemsize
            for start in range(0, size, CHUNK):
                yield bytes(min(CHUNK, size - start))
            return
        self.file.seek(0)
        while chunk := self.file.read(CHUNK):
            yield chunk

    def array(self, shape: tuple[int, ...]) -> ArrayToWrite:
        """Return the numbers as an array of this shape."""
        return ArrayToWrite(self.dtype, shape, self.chunks())

    def close(self) -> None:
        """Delete the file."""
        if self.file:
            self.file.close()


class EqualRows:
    """Rows of equal length to write: int64 [records, length] for each of these columns."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.spools: dict[str, NumberSpool] = {}
        self.count = 0
        self.length = 0

    def add(self, columns: Mapping[str, FlatLists], count: int) -> None:
        """Append ``count`` rows. With 0, store nothing: the one list per column is a header.

        A header, like the first row, sets the length of all rows.
        Raises OutputError for a row of another length.
        """
        import numpy as np

        lengths = np.diff(columns[IDS].offsets)
        if not len(lengths):
            return
        if not self.spools:
            self.length = int(lengths[0])
        others = np.flatnonzero(lengths != self.length)
        if len(others):
            first = int(others[0])
            raise OutputError(
                f"record {self.count + first + 1} has {counted(int(lengths[first]), 'token')} and "
                f"those before have {self.length:,}: an array needs rows of one length",
                f"give {option('padding', 'longest')} (its {option('window')} must hold all "
                f"records) or max_length, with {option('truncation')} when some are too long",
            )
        self.count += count
        for name, lists in columns.items():
            spool = self.spools.setdefault(name, NumberSpool("<i8"))
            if count:
                spool.add(lists.values)
            assert spool.count == self.count * self.length, name  # a block lacked the column

    def arrays(self) -> dict[str, ArrayToWrite]:
        """Return the array of each column. Without rows and header there is none."""
        shape = (self.count, self.length)
        return {name: spool.array(shape) for name, spool in self.spools.items()}


class RaggedRows:
    """Rows of any length to write: a flat array for each column, and the offsets of the rows."""

    names = (*RAGGED_DTYPES,)

    def __init__(self) -> None:
        import numpy as np

        self.spools = {name: NumberSpool(dtype) for name, dtype in RAGGED_DTYPES.items()}
        self.spools[OFFSETS] = NumberSpool("<i8")
        self.spools[OFFSETS].add(np.zeros(1, np.int64))

    def add(self, columns: Mapping[str, FlatLists], count: int) -> None:
        """Append rows, unless their ``count`` is 0: then they are a header."""
        if not count:
            return
        self.spools[OFFSETS].add(columns[IDS].offsets[1:] + self.spools[IDS].count)
        for name, lists in columns.items():
            self.spools[name].add(lists.values)

    def arrays(self) -> dict[str, ArrayToWrite]:
        """Return ids and offsets, and the other columns that are not all zero."""
        arrays = {}
        for name, spool in self.spools.items():
            if name in (IDS, OFFSETS) or spool.file:
                is_whole = name == OFFSETS or spool.count == self.spools[IDS].count
                assert is_whole, name  # a block lacked the column
                arrays[name] = spool.array((spool.count,))
        return arrays


def ids_writer_of(file_format: str, *, ragged: bool = False) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids only), npz or safetensors.

    A writer is a context manager from an open file to a function that takes rows. The file is
    written when the context ends, and not at all if there was neither a row nor a header, unless
    ``ragged``. Without ``ragged``, the function raises OutputError for rows of different lengths.
    """

    @contextmanager
    def ids_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | Table], None]]:
        import numpy as np

        is_one_array = file_format == "npy"
        names = ID_COLUMNS[:1] if is_one_array else ID_COLUMNS
        id_rows = RaggedRows() if ragged else EqualRows(names)
        row_numbers: dict[str, NumberSpool] = {}

        def write(rows: Sequence[Row] | Table) -> None:
            table = table_of(rows)
            stored = [name for name in id_rows.names if name in table.columns]
            lists = {name: _flat_lists(table.columns[name]) for name in stored}
            id_rows.add(lists, len(table))
            for name in ROW_NUMBERS:
                if name in table.columns and not is_one_array:
                    spool = row_numbers.setdefault(name, NumberSpool("<i8"))
                    spool.add(np.array(table.columns[name][: len(table)], np.int64))

        try:
            yield write
            arrays = id_rows.arrays()
            arrays |= {name: spool.array((spool.count,)) for name, spool in row_numbers.items()}
            if arrays:
                write_arrays(file, file_format, arrays)
        finally:
            for spool in chain(id_rows.spools.values(), row_numbers.values()):
                spool.close()

    return ids_writer


npy_writer = ids_writer_of("npy")
npz_writer = ids_writer_of("npz")
safetensors_writer = ids_writer_of("safetensors")
ragged_npz_writer = ids_writer_of("npz", ragged=True)
ragged_safetensors_writer = ids_writer_of("safetensors", ragged=True)


def _flat_lists(lists: Any) -> FlatLists:
    """Return the lists of a column as one flat array with offsets."""
    import numpy as np

    from bertcli.formats.row_offsets import offsets_of

    if isinstance(lists, FlatLists):
        return lists
    offsets = offsets_of([*map(len, lists)])
    return FlatLists(np.fromiter(chain.from_iterable(lists), "<i8", offsets[-1]), offsets)


NumberedRows = tuple[int, list[list[int]]]  # number of the first row (from 1), and the rows


def read_ids(
    path_or_file: str | IO[bytes], file_name: str, file_format: str
) -> Iterator[NumberedRows]:
    """Yield rows of ids: ragged rows with offsets, or those of input_ids, or of the only array.

    ``file_name`` is the file in messages. Raises InputError if there is no such array.
    """
    with open_arrays(path_or_file, file_name, file_format) as arrays:
        if {IDS, OFFSETS} <= arrays.keys():
            yield from _read_ragged(file_name, arrays[IDS](), arrays[OFFSETS]())
            return
        start = 1
        array = array_in(arrays, file_name, IDS)
        if array.dtype.kind not in "iu" or len(array.shape) not in (1, 2):
            raise InputError(
                f"{file_name}: holds {array.dtype_name} of shape {array.shape}, not lists of ids",
                "ids are whole numbers of shape [records, length]",
            )
        if len(array.shape) == 1:  # a single row
            array = replace(array, shape=(1, *array.shape))
        for rows in array.blocks(ROWS_PER_BLOCK):
            yield start, rows.tolist()
            start += len(rows)


def _read_ragged(file_name: str, ids: StoredArray, offsets: StoredArray) -> Iterator[NumberedRows]:
    """Yield ragged rows of ids. Raises InputError if offsets and ids do not match."""
    if not all(array.dtype.kind in "iu" and len(array.shape) == 1 for array in (ids, offsets)):
        raise InputError(f"{file_name}: input_ids and offsets are not lists of whole numbers")
    numbers = chain.from_iterable(block.tolist() for block in ids.blocks())
    number = 0  # of the row that the next offset ends; the first offset ends none
    end = 0
    for block in offsets.blocks(ROWS_PER_BLOCK):
        stops = block.tolist()
        sizes = [stop - start for start, stop in pairwise([end, *stops])]
        whole = number > 0 or stops[0] == 0
        end = stops[-1]
        if not whole or min(sizes) < 0 or end > ids.shape[0]:
            break
        if max(sizes) > MAX_ROW_NUMBERS:
            raise InputError(
                f"{file_name}: a row has {max(sizes):,} ids, and {MAX_ROW_NUMBERS:,} is the limit"
            )
        rows = [[*islice(numbers, size)] for size in sizes]
        yield max(1, number), rows if number else rows[1:]
        number += len(stops)
    else:
        if end == ids.shape[0]:
            return
    raise InputError(f"{file_name}: offsets do not divide the {ids.shape[0]:,} ids")
