"""Arrays of token ids: NPY, NPZ and safetensors, int64 of shape [records, length].

The number of rows stands at the head of these files and is known at the end, so each array is
spooled to a nameless file beside the result and copied behind its header.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from shutil import copyfileobj
from typing import IO, Any

from bertcli.errors import InputError, OutputError, counted
from bertcli.files import safetensors
from bertcli.files.npy import BLOCK, header_of
from bertcli.files.stored_arrays import open_array
from bertcli.files.tables import NUMERIC, ColumnTable, FlatLists, Row, TableHeader
from bertcli.files.zips import npz_archive

ROWS = 1024  # rows read at a time


class NumberSpool:
    """An array on its way: its numbers in a nameless file, and how many they are."""

    rows = 0
    length: int | None = None  # of each row; None for a flat array

    def __init__(self, name: str, dtype: str, file: IO[bytes]) -> None:
        self.name, self.dtype, self.file = name, dtype, file

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array so far."""
        return (self.rows,) if self.length is None else (self.rows, self.length)

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the numbers to a file."""
        self.file.seek(0)
        copyfileobj(self.file, file, 1 << 20)


class ArraySpool(NumberSpool):
    """The rows of one array as raw int64, all of one length."""

    length: int = 0

    def add(self, values: Sequence[int]) -> None:
        """Append a row. Raises OutputError when it is longer or shorter than those before."""
        if self.rows == 0:
            self.length = len(values)
        elif len(values) != self.length:
            raise OutputError(
                f"record {self.rows + 1} has {counted(len(values), 'token')} and those before have "
                f"{self.length:,}: an array needs rows of one length",
                "give --padding longest (its --window must hold all records) or max_length, with "
                "--truncation when some are too long",
            )
        self.rows += 1
        self.file.write(array("q", values).tobytes())

    def add_lists(self, lists: FlatLists) -> None:
        """Append many rows at once."""
        lengths = lists.offsets[1:] - lists.offsets[:-1]
        if not len(lengths):
            return
        self.length = self.length if self.rows else int(lengths[0])
        wrong = (lengths != self.length).nonzero()[0]
        if len(wrong):
            at = int(wrong[0])
            self.rows += at
            self.add(range(int(lengths[at])))  # raises
        self.rows += len(lengths)
        self.file.write(lists.values.astype("<i8").tobytes())


def writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors (every numeric field)."""
    finish = {"npy": _npy, "npz": _npz, "safetensors": put_safetensors}[form]
    names = NUMERIC[:1] if form == "npy" else NUMERIC

    @contextmanager
    def arrays(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        with ExitStack() as stack:
            spools: list[ArraySpool] = []

            def begin(columns: Container[str]) -> None:
                present = [name for name in names if name in columns]
                for name in present:
                    place = stack.enter_context(tempfile.TemporaryFile())
                    spools.append(ArraySpool(name, "<i8", place))

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                if isinstance(rows, ColumnTable):
                    if not spools:
                        begin(rows.columns)
                    for spool in spools:
                        spool.add_lists(rows.columns[spool.name])
                    return
                if rows and not spools:
                    begin(rows[0])
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
    with open_array(place, path, form, NUMERIC[0]) as array:
        if getattr(array.dtype, "kind", "O") not in "iu" or len(array.shape) not in (1, 2):
            raise InputError(
                f"{path}: holds {array.dtype} of shape {array.shape}, not lists of ids",
                "ids are whole numbers of shape [records, length]",
            )
        for rows in array.blocks(max(1, min(ROWS, BLOCK // max(1, array.width)))):
            yield start, rows.tolist()
            start += len(rows)


def _npy(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    _put(spools[0], file)


def _put(spool: NumberSpool, file: IO[bytes]) -> None:
    file.write(header_of(spool.dtype, spool.shape))
    spool.copy_to(file)


class _Onward:
    """A file that is only ever written on, as a pipe is: /dev/null claims that it can seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush


def _npz(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    onward: Any = _Onward(file)
    put_npz(onward, spools)


def put_npz(file: IO[bytes], spools: Iterable[NumberSpool]) -> None:
    """Write an archive of arrays."""
    with npz_archive(file) as member:
        for spool in spools:
            with member(spool.name) as array:
                _put(spool, array)


def put_safetensors(file: IO[bytes], spools: Iterable[NumberSpool]) -> None:
    """Write arrays, the widest numbers first, so that all of them are aligned."""
    spools = sorted(spools, key=lambda spool: -int(spool.dtype[-1]))
    tensors = {spool.name: (safetensors.NAMES[spool.dtype], spool.shape) for spool in spools}
    file.write(safetensors.header_of(tensors))
    for spool in spools:
        spool.copy_to(file)
