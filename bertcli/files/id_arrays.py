"""Arrays of token ids: NPY, NPZ and safetensors, int64 of shape [records, length].

The number of rows stands at the head of these files and is known at the end, so each array is
spooled to a nameless file beside the result and copied behind its header.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from bertcli.errors import InputError, OutputError
from bertcli.files.npy import BLOCK, read_blocks, read_header
from bertcli.files.safetensors import open_safetensors
from bertcli.files.tables import TableHeader
from bertcli.files.zips import open_zip

Row = dict[str, Any]
ROWS = 1024  # rows read at a time
NUMERIC = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")


class ArraySpool:
    """The rows of one array as raw int64, and how many and how long they are."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name, self.file = name, file
        self.rows, self.length = 0, 0

    def add(self, values: Sequence[int]) -> None:
        """Append a row. Raises OutputError when it is longer or shorter than those before."""
        if self.rows == 0:
            self.length = len(values)
        elif len(values) != self.length:
            raise OutputError(
                f"record {self.rows + 1} has {len(values)} tokens and those before have "
                f"{self.length}: an array needs rows of one length",
                "give --padding longest (its --window must hold all records) or max_length, with "
                "--truncation when some are too long",
            )
        self.rows += 1
        self.file.write(array("q", values).tobytes())

    @property
    def nbytes(self) -> int:
        """The size of the array."""
        return 8 * self.rows * self.length

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the rows to a file."""
        self.file.seek(0)
        shutil.copyfileobj(self.file, file, 1 << 20)


def writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors (every numeric field)."""
    finish = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}[form]
    names = NUMERIC[:1] if form == "npy" else NUMERIC

    @contextmanager
    def arrays(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row]], None]]:
        with ExitStack() as stack:
            spools: list[ArraySpool] = []

            def write(rows: Sequence[Row]) -> None:
                if rows and not spools:
                    present = [name for name in names if name in rows[0]]
                    opened = (stack.enter_context(tempfile.TemporaryFile()) for _ in present)
                    spools.extend(map(ArraySpool, present, opened))
                for row in rows:
                    for spool in spools:
                        if isinstance(row, TableHeader):
                            spool.length = len(row[spool.name])
                        else:
                            spool.add(row[spool.name])

            yield write
            if spools:
                finish(file, spools)

    return arrays


def read_ids(place: str, path: str, form: str) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield the rows of an array of ids with the number of the first: input_ids, or the only one.

    Raises InputError, which calls the file ``path``, when there is no such array.
    """
    start = 1
    try:
        for rows in (_tensor if form == "safetensors" else _array)(place, path, form):
            yield start, rows.tolist()
            start += len(rows)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as broken:
        raise InputError(f"{path}: not a readable {form} file: {broken}") from None


def _array(place: str, path: str, form: str) -> Iterator[Any]:
    """Yield the ids of an NPY file, or of a member of an archive of them, in blocks of rows."""
    if form == "npy":
        with open(place, "rb") as file:
            yield from _blocks(path, file, os.fstat(file.fileno()).st_size)
        return
    with open_zip(place) as archive:
        members = archive.namelist()
        names = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
        entry = archive.getinfo(f"{_ids_among(path, names)}.npy")
        with archive.open(entry) as member:
            yield from _blocks(path, member, entry.file_size)


def _blocks(path: str, file: IO[bytes], size: int) -> Iterator[Any]:
    head = read_header(file)
    _check(path, head.dtype, head.shape)
    if head.end > size:
        raise EOFError(f"{size:,} bytes, not {head.end:,}")
    rows, width = (1, *head.shape)[-2:]
    if not head.by_columns or len(head.shape) == 1:
        yield from read_blocks(file, head.dtype, rows, width, _most(width))
    else:  # all of it belongs to every row
        for whole in read_blocks(file, head.dtype, 1, rows * width):
            yield whole.reshape(width, rows).T


def _tensor(place: str, path: str, form: str) -> Iterator[Any]:
    """Yield the ids of a safetensors file in blocks of rows."""
    from safetensors import SafetensorError

    try:
        with open_safetensors(place, "numpy") as file:
            found = file.get_slice(_ids_among(path, list(file.keys())))
            _check(path, found.get_dtype().lower(), tuple(found.get_shape()))  # i64, f32, bool
            rows, width = (1, *found.get_shape())[-2:]
            if len(found.get_shape()) == 1:
                yield found[:].reshape(1, width)
                return
            for start in range(0, rows, _most(width)):
                yield found[start : min(start + _most(width), rows)]
    except SafetensorError as broken:
        raise ValueError(str(broken)) from None


def _most(width: int) -> int:
    """Return how many rows are read at a time."""
    return max(1, min(ROWS, BLOCK // max(1, width)))


def _check(path: str, dtype: Any, shape: tuple[int, ...]) -> None:
    kind = getattr(dtype, "kind", str(dtype)[0])
    if kind not in "iu" or len(shape) not in (1, 2):
        raise InputError(
            f"{path}: holds {dtype} of shape {shape}, not lists of ids",
            "ids are whole numbers of shape [records, length]",
        )


def _ids_among(path: str, names: list[str]) -> str:
    if "input_ids" in names or len(names) == 1:
        return "input_ids" if "input_ids" in names else names[0]
    raise InputError(f"{path}: array 'input_ids' not found", f"available: {', '.join(names)}")


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the head of an NPY file of version 1.0, 128 bytes for every shape."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n"


def _npy(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    spool = spools[0]
    file.write(npy_header("<i8", (spool.rows, spool.length)))
    spool.copy_to(file)


class _Onward:
    """A file that is only ever written on, as a pipe is: /dev/null claims that it can seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush


def _npz(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    onward: Any = _Onward(file)
    with zipfile.ZipFile(onward, "w") as archive:
        for spool in spools:
            entry = zipfile.ZipInfo(f"{spool.name}.npy")  # its fixed date gives equal bytes
            with archive.open(entry, "w", force_zip64=True) as member:
                _npy(member, [spool])


def _safetensors(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    """Write the header (names to types, shapes and places), padded to 8 bytes, then the data."""
    header, at = {}, 0
    for spool in spools:
        header[spool.name] = {
            "dtype": "I64",
            "shape": [spool.rows, spool.length],
            "data_offsets": [at, at + spool.nbytes],
        }
        at += spool.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for spool in spools:
        spool.copy_to(file)
