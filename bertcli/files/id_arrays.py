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
from functools import partial
from itertools import chain, islice, pairwise
from typing import IO, Any

from bertcli.errors import InputError, OutputError, counted
from bertcli.files.arrays import (
    BLOCK,
    WIDEST,
    ArrayParts,
    StoredArray,
    open_array,
    open_arrays,
    write_arrays,
)
from bertcli.files.tables import NUMERIC, ColumnTable, Row, lines_of

IDS, OFFSETS = "input_ids", "offsets"
DTYPES = {IDS: "<u4", OFFSETS: "<i8", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}
ROWS = 1024  # rows read at a time


class NumberSpool:
    """An array on its way: its numbers in a nameless file, and how many rows they are."""

    length: int | None = None  # of each row; None for a flat array

    def __init__(self, dtype: str, file: IO[bytes], rows: int = 0) -> None:
        self.dtype, self.file = dtype, file
        self.rows = file.seek(file.truncate(rows))  # of zeros, a byte each

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

    @property
    def array(self) -> ArrayParts:
        """The array, to be written."""
        self.file.seek(0)
        return ArrayParts(self.dtype, self.shape, iter(partial(self.file.read, 1 << 20), b""))


def ids_writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors, perhaps "ragged npz"."""
    form, ragged = form.removeprefix("ragged "), form.startswith("ragged ")
    names = DTYPES if ragged else NUMERIC[:1] if form == "npy" else NUMERIC

    @contextmanager
    def ids_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        with ExitStack() as stack:
            spools: dict[str, NumberSpool] = {}

            def spool_of(name: str, before: int = 0) -> NumberSpool:
                if name not in spools:
                    place = stack.enter_context(tempfile.TemporaryFile())
                    spools[name] = NumberSpool(DTYPES[name] if ragged else "<i8", place, before)
                return spools[name]

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                lines = rows if isinstance(rows, ColumnTable) else lines_of(rows)
                if ragged:
                    write_ragged(lines)
                    return
                for name, values, lengths in _flat(lines or rows, names):
                    spool = spool_of(name)
                    spool.check(lengths)  # those of a header as well
                    if lines:
                        spool.add(values, len(lengths))

            def write_ragged(lines: Sequence[Row] | ColumnTable) -> None:
                import numpy as np

                before = spools[IDS].rows
                for name, values, lengths in _flat(lines, names):
                    numbers = np.asarray(values, DTYPES[name])
                    if name == IDS:
                        ends = before + np.cumsum(lengths, dtype="<i8")
                        spool_of(OFFSETS).add(ends, len(ends))
                    if name != "token_type_ids" or name in spools or numbers.any():
                        spool_of(name, before).add(numbers, len(numbers))

            if ragged:
                spool_of(IDS)
                spool_of(OFFSETS).add(array("q", [0]), 1)
            yield write
            if spools:
                write_arrays(file, form, {name: spool.array for name, spool in spools.items()})

    return ids_writer


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
        for rows in array.blocks(ROWS):
            yield start, rows.tolist()
            start += len(rows)


def _read_ragged(path: str, ids: StoredArray, offsets: StoredArray) -> Iterator[Numbered]:
    """Yield the rows of flat ids. Raises InputError where the arrays do not fit each other."""
    if not all(
        getattr(array.dtype, "kind", "O") in "iu" and len(array.shape) == 1
        for array in (ids, offsets)
    ):
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
