"""Arrays of token ids: NPY, NPZ and safetensors, in one of two shapes.

Rows of one length are int64 of shape [records, length], an array a field. Rows of any length
(``ragged``, NPZ and safetensors) are flat, and offsets say where each begins:

    input_ids        uint32 [T]: all rows, one after the other
    offsets          int64 [B + 1]: row b is input_ids[offsets[b] : offsets[b + 1]]
    token_type_ids   uint8 [T], where a token has another type than 0
    special_tokens_mask   uint8 [T], where it is asked for

The number of rows stands at the head of these files and is known at the end, so the rows are
spooled, and each array is copied behind its header. An archive's members are stored uncompressed,
so arrays can be mapped where they lie. Both writing and reading take the memory of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
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
from bertcli.files.tables import NUMERIC, ColumnTable, FlatLists, Row, Spool, table_of

IDS, OFFSETS = "input_ids", "offsets"
DTYPES = {IDS: "<u4", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}  # of flat rows
ROWS = 1024  # rows read at a time


def ids_writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of npy (input_ids alone), npz or safetensors, perhaps "ragged npz"."""
    form, ragged = form.removeprefix("ragged "), form.startswith("ragged ")
    names = NUMERIC[:1] if form == "npy" else NUMERIC

    @contextmanager
    def ids_writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        import numpy as np

        rows_before, ids_before = 0, 0
        lengths: dict[str, int] = {}  # of each row of an array, where all rows have one length
        with closing(Spool()) as spool:

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                nonlocal rows_before, ids_before
                table = table_of(rows)
                flat = {n: _flat(table.columns[n]) for n in names if n in table.columns}
                for name, lists in {} if ragged else flat.items():
                    for record, length in enumerate(np.diff(lists.offsets), rows_before + 1):
                        if lengths.setdefault(name, int(length)) != length:
                            raise uneven(record, int(length), lengths[name])
                if len(table):
                    spool.add(flat)
                    rows_before += len(table)
                    ids_before += len(flat[IDS].values)

            def parts(name: str, dtype: str) -> Iterator[bytes]:
                for flat in spool:
                    numbers = flat[name].values if name in flat else np.zeros_like(flat[IDS].values)
                    yield numbers.astype(dtype).tobytes()

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


def _flat(lists: Any) -> FlatLists:
    """Return the lists of a column as one array."""
    import numpy as np

    if isinstance(lists, FlatLists):
        return lists
    offsets = np.cumsum([0, *map(len, lists)])
    return FlatLists(np.fromiter(chain.from_iterable(lists), "<i8", offsets[-1]), offsets)


def uneven(record: int, length: int, before: int) -> OutputError:
    """Return the error for a row that is longer or shorter than those before."""
    return OutputError(
        f"record {record} has {counted(length, 'token')} and those before have {before:,}: an "
        "array needs rows of one length",
        "give --padding longest (its --window must hold all records) or max_length, with "
        "--truncation when some are too long",
    )


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
