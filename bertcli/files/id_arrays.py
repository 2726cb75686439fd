"""Arrays of token ids: NPY, NPZ and safetensors, in one of two shapes.

Rows of one length are int64 of shape [records, length], an array a field. Rows of any length
(``ragged``, NPZ and safetensors) are flat, and offsets say where each begins:

    input_ids        uint32 [T]: all rows, one after the other
    offsets          int64 [B + 1]: row b is input_ids[offsets[b] : offsets[b + 1]]
    token_type_ids   uint8 [T], where a token has another type than 0
    special_tokens_mask   uint8 [T], where it is asked for

The number of rows stands at the head of these files and is known at the end, so each array is
spooled to a nameless file beside the result and copied behind its header. An archive's members are
stored uncompressed, so arrays can be mapped where they lie. Both writing and reading take the
memory of a block.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from shutil import copyfileobj
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError, OutputError, counted
from bertcli.files import safetensors
from bertcli.files.npy import BLOCK, WIDEST, header_of
from bertcli.files.stored_arrays import StoredArray, open_array, open_arrays
from bertcli.files.tables import NUMERIC, ColumnTable, FlatLists, Row, TableHeader, lines_of
from bertcli.files.zips import npz_archive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IDS, OFFSETS = "input_ids", "offsets"
DTYPES = {IDS: "<u4", OFFSETS: "<i8", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}
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

    def append(self, values: NDArray[Any]) -> None:
        """Add numbers to a flat array."""
        self.file.write(values.astype(self.dtype, copy=False).tobytes())
        self.rows += len(values)

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


def even_writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors (every numeric field)."""
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
            if spools and form == "npy":
                _put(spools[0], file)
            elif spools:
                _put_all(form, _Onward(file), spools)

    return arrays


def ragged_writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of ragged npz or safetensors."""

    @contextmanager
    def ragged(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        import numpy as np

        with ExitStack() as stack:
            spools: dict[str, NumberSpool] = {}

            def spool(name: str) -> NumberSpool:
                if name not in spools:
                    place = stack.enter_context(tempfile.TemporaryFile())
                    spools[name] = NumberSpool(name, DTYPES[name], place)
                return spools[name]

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                for name, values, lengths in _flat(rows):
                    if name == IDS:
                        before = spool(IDS).rows
                        spool(IDS).append(values)
                        spool(OFFSETS).append(before + np.cumsum(lengths))
                    elif name == "token_type_ids" and name not in spools and not values.any():
                        continue
                    else:
                        if name not in spools:  # what came before is of type 0
                            late = spool(name)
                            late.file.seek(late.file.truncate(before))
                            late.rows = before
                        spool(name).append(values)

            spool(IDS)
            spool(OFFSETS).append(np.zeros(1, np.int64))
            yield write
            _put_all(form, file, spools.values())

    return ragged


def _flat(
    rows: Sequence[Row] | ColumnTable,
) -> Iterator[tuple[str, NDArray[Any], NDArray[np.int64]]]:
    """Yield the columns that are written: name, numbers and lengths of the rows; ids first."""
    import numpy as np

    if isinstance(rows, ColumnTable):
        for name, lists in rows.columns.items():
            if name in DTYPES:
                yield name, lists.values, np.diff(lists.offsets)
        return
    lines = lines_of(rows)
    for name in lines[0] if lines else ():
        if name in DTYPES:
            lengths = np.array([len(row[name]) for row in lines], np.int64)
            yield name, np.concatenate([np.array(row[name], np.int64) for row in lines]), lengths


def _put(spool: NumberSpool, file: IO[bytes]) -> None:
    file.write(header_of(spool.dtype, spool.shape))
    spool.copy_to(file)


class _Onward:
    """A file that is only ever written on, as a pipe is: /dev/null claims that it can seek."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write, self.flush = file.write, file.flush


def _put_all(form: str, file: Any, spools: Iterable[NumberSpool]) -> None:
    """Write an archive of arrays, or safetensors: the widest numbers first, so all are aligned."""
    if form == "npz":
        with npz_archive(file) as member:
            for spool in spools:
                with member(spool.name) as array:
                    _put(spool, array)
        return
    spools = sorted(spools, key=lambda spool: -int(spool.dtype[-1]))
    tensors = {spool.name: (safetensors.NAMES[spool.dtype], spool.shape) for spool in spools}
    file.write(safetensors.header_of(tensors))
    for spool in spools:
        spool.copy_to(file)


Numbered = tuple[int, list[list[int]]]  # the number of the first of some rows, and the rows


def read_ids(place: str, path: str, form: str) -> Iterator[Numbered]:
    """Yield rows of ids: flat ones with offsets, or those of input_ids, or of the only array.

    Raises InputError, which calls the file ``path``, when there is no such array.
    """
    with open_arrays(place, path, form) as arrays:
        if {IDS, OFFSETS} <= arrays.keys():
            yield from _read_ragged(path, arrays[IDS](), arrays[OFFSETS]())
            return
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


def _read_ragged(path: str, ids: StoredArray, offsets: StoredArray) -> Iterator[Numbered]:
    """Yield the rows of flat ids. Raises InputError where the arrays do not fit each other."""
    if not all(_is_list(array) for array in (ids, offsets)):
        raise InputError(f"{path}: input_ids and offsets are not lists of whole numbers")
    flat = _FlatReader(ids)
    number, at = 0, 0  # the first offset ends a row that is none
    for block in offsets.read(offsets.shape[0], 1, ROWS):
        stops = block.reshape(-1).tolist()
        sizes = [stop - start for start, stop in pairwise([at, *stops])]
        if (number == 0 and stops[0] != 0) or min(sizes) < 0:
            raise InputError(f"{path}: offsets do not begin at 0, or decrease")
        rows = [flat.next(path, size) for size in sizes]
        yield max(1, number), rows if number else rows[1:]
        number, at = number + len(stops), stops[-1]
    if at != ids.shape[0]:
        raise InputError(f"{path}: offsets end at {at:,}, and there are {ids.shape[0]:,} ids")


def _is_list(array: StoredArray) -> bool:
    return getattr(array.dtype, "kind", "O") in "iu" and len(array.shape) == 1


class _FlatReader:
    """Hands out the numbers of a list in pieces."""

    def __init__(self, array: StoredArray) -> None:
        self.blocks = iter(array.read(array.shape[0], 1, BLOCK))
        self.held: list[int] = []
        self.at = 0

    def next(self, path: str, count: int) -> list[int]:
        """Return so many numbers. Raises InputError when there are fewer, or too many asked."""
        if count > WIDEST:
            raise InputError(f"{path}: a row has {count:,} ids, and {WIDEST:,} is the limit")
        while len(self.held) - self.at < count:
            block = next(self.blocks, None)
            if block is None:
                raise InputError(f"{path}: offsets go beyond the last id")
            self.held = [*self.held[self.at :], *block.reshape(-1).tolist()]
            self.at = 0
        self.at += count
        return self.held[self.at - count : self.at]
