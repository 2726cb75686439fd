"""Arrays of token ids: NPY, NPZ and safetensors, int64 of shape [records, length].

The number of rows stands at the head of these files and is known at the end, so each array is
spooled to a nameless file beside the result and copied behind its header.
"""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from bertcli.errors import InputError, OutputError, counted
from bertcli.files import safetensors
from bertcli.files.npy import BLOCK, header_of
from bertcli.files.stored_arrays import open_array
from bertcli.files.tables import ColumnTable, FlatLists, Row, TableHeader
from bertcli.files.zips import npz_archive

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

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the rows to a file."""
        self.file.seek(0)
        shutil.copyfileobj(self.file, file, 1 << 20)


def writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors (every numeric field)."""
    finish = {"npy": _npy, "npz": _npz, "safetensors": _safetensors}[form]
    names = NUMERIC[:1] if form == "npy" else NUMERIC

    @contextmanager
    def arrays(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        with ExitStack() as stack:
            spools: list[ArraySpool] = []

            def begin(found: Container[str]) -> None:
                present = [name for name in names if name in found]
                opened = (stack.enter_context(tempfile.TemporaryFile()) for _ in present)
                spools.extend(map(ArraySpool, present, opened))

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
    with open_array(place, path, form, NUMERIC[0]) as found:
        if getattr(found.dtype, "kind", "O") not in "iu" or len(found.shape) not in (1, 2):
            raise InputError(
                f"{path}: holds {found.dtype} of shape {found.shape}, not lists of ids",
                "ids are whole numbers of shape [records, length]",
            )
        for rows in found.blocks(max(1, min(ROWS, BLOCK // max(1, found.width)))):
            yield start, rows.tolist()
            start += len(rows)


def _npy(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    _put(spools[0], file)


def _put(spool: ArraySpool, file: IO[bytes]) -> None:
    file.write(header_of("<i8", (spool.rows, spool.length)))
    spool.copy_to(file)


class _Onward:
    """A file that is only ever written on, as a pipe is: /dev/null claims that it can seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush


def _npz(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    onward: Any = _Onward(file)
    with npz_archive(onward) as member:
        for spool in spools:
            with member(spool.name) as array:
                _put(spool, array)


def _safetensors(file: IO[bytes], spools: Sequence[ArraySpool]) -> None:
    tensors = {spool.name: ("I64", (spool.rows, spool.length)) for spool in spools}
    file.write(safetensors.header_of(tensors))
    for spool in spools:
        spool.copy_to(file)
