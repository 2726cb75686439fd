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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice, pairwise
from shutil import copyfileobj
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError, OutputError, counted
from bertcli.files import safetensors
from bertcli.files.npy import BLOCK, WIDEST, header_of
from bertcli.files.stored_arrays import StoredArray, open_array, open_arrays
from bertcli.files.tables import NUMERIC, ColumnTable, Row, TableHeader, lines_of
from bertcli.files.zips import npz_archive

if TYPE_CHECKING:
    from numpy.typing import NDArray

IDS, OFFSETS = "input_ids", "offsets"
DTYPES = {IDS: "<u4", OFFSETS: "<i8", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}
ROWS = 1024  # rows read at a time


class NumberSpool:
    """An array on its way: its numbers in a nameless file, and how many rows they are."""

    rows = 0
    length: int | None = None  # of each row; None for a flat array

    def __init__(self, name: str, dtype: str, file: IO[bytes]) -> None:
        self.name, self.dtype, self.file = name, dtype, file

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array so far."""
        return (self.rows,) if self.length is None else (self.rows, self.length)

    def add(self, values: Any, rows: int) -> None:
        """Add numbers of the array's type."""
        self.file.write(values.tobytes())
        self.rows += rows

    def check(self, lengths: Iterable[int]) -> None:
        """Raise OutputError for a row that is longer or shorter than those before."""
        for row, length in enumerate(lengths, self.rows + 1):
            if row == 1:
                self.length = length
            if length != self.length:
                raise OutputError(
                    f"record {row} has {counted(length, 'token')} and those before have "
                    f"{self.length:,}: an array needs rows of one length",
                    "give --padding longest (its --window must hold all records) or max_length, "
                    "with --truncation when some are too long",
                )

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the numbers to a file."""
        self.file.seek(0)
        copyfileobj(self.file, file, 1 << 20)


def even_writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors (every numeric field)."""

    @contextmanager
    def arrays(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        with ExitStack() as stack:
            spools: dict[str, NumberSpool] = {}

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                for name, values, lengths in _flat(rows, NUMERIC[:1] if form == "npy" else NUMERIC):
                    if name not in spools:
                        place = stack.enter_context(tempfile.TemporaryFile())
                        spools[name] = NumberSpool(name, "<i8", place)
                    spools[name].check(lengths)
                    count = len(lengths)
                    if not isinstance(rows, ColumnTable) and isinstance(rows[0], TableHeader):
                        values, count = values[:0], 0
                    spools[name].add(values, count)

            yield write
            if spools and form == "npy":
                _put(spools[IDS], file)
            elif spools:
                _put_all(form, _Onward(file), spools.values())

    return arrays


def ragged_writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of ragged npz or safetensors."""

    @contextmanager
    def ragged(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        import numpy as np

        with ExitStack() as stack:
            spools: dict[str, NumberSpool] = {}

            def add(name: str, values: NDArray[Any], before: int = 0) -> None:
                if name not in spools:
                    place = stack.enter_context(tempfile.TemporaryFile())
                    spools[name] = NumberSpool(name, DTYPES[name], place)
                    spools[name].rows = place.seek(place.truncate(before))  # all of type 0
                spools[name].add(values.astype(DTYPES[name], copy=False), len(values))

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                before = spools[IDS].rows
                lines = rows if isinstance(rows, ColumnTable) else lines_of(rows)
                for name, values, lengths in _flat(lines, DTYPES):
                    numbers = np.asarray(values)
                    if name == IDS:
                        add(OFFSETS, before + np.cumsum(lengths))
                    if name != "token_type_ids" or name in spools or numbers.any():
                        add(name, numbers, before)

            add(IDS, np.zeros(0))
            add(OFFSETS, np.zeros(1))
            yield write
            _put_all(form, file, spools.values())

    return ragged


def _flat(
    rows: Sequence[Row] | ColumnTable, names: Iterable[str]
) -> Iterator[tuple[str, Any, Sequence[int]]]:
    """Yield the columns that are written: name, int64 and lengths of the rows."""
    for name in names:
        if isinstance(rows, ColumnTable):
            if name in rows.columns:
                lists = rows.columns[name]
                lengths = (lists.offsets[1:] - lists.offsets[:-1]).tolist()
                yield name, lists.values.astype("<i8"), lengths
        elif rows and name in rows[0]:
            numbers = array("q", chain.from_iterable(row[name] for row in rows))
            yield name, numbers, [len(row[name]) for row in rows]


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
    blocks = ids.read(ids.shape[0], 1, BLOCK)
    numbers = chain.from_iterable(block.reshape(-1).tolist() for block in blocks)
    number, at = 0, 0  # the first offset ends a row that is none
    for block in offsets.read(offsets.shape[0], 1, ROWS):
        stops = block.reshape(-1).tolist()
        sizes = [stop - start for start, stop in pairwise([at, *stops])]
        if (number == 0 and stops[0] != 0) or min(sizes) < 0:
            raise InputError(f"{path}: offsets do not begin at 0, or decrease")
        if stops[-1] > ids.shape[0]:
            raise InputError(f"{path}: offsets go beyond the last id")
        if max(sizes) > WIDEST:
            raise InputError(f"{path}: a row has {max(sizes):,} ids, and {WIDEST:,} is the limit")
        rows = [[*islice(numbers, size)] for size in sizes]
        yield max(1, number), rows if number else rows[1:]
        number, at = number + len(stops), stops[-1]
    if at != ids.shape[0]:
        raise InputError(f"{path}: offsets end at {at:,}, and there are {ids.shape[0]:,} ids")


def _is_list(array: StoredArray) -> bool:
    return getattr(array.dtype, "kind", "O") in "iu" and len(array.shape) == 1
