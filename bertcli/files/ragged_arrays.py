"""Lists of token ids of any length in NPZ and safetensors: flat, and where each begins.

    input_ids        uint32 [T]: all rows, one after the other
    offsets          int64 [B + 1]: row b is input_ids[offsets[b] : offsets[b + 1]]
    token_type_ids   uint8 [T], where a token has another type than 0
    special_tokens_mask   uint8 [T], where it is asked for

An archive's members are stored uncompressed, so arrays can be mapped where they lie. Both writing
and reading take the memory of a block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.files.id_arrays import NumberSpool, put_npz, put_safetensors
from bertcli.files.npy import BLOCK, WIDEST
from bertcli.files.stored_arrays import StoredArray, open_arrays
from bertcli.files.tables import ColumnTable, Row, TableHeader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IDS, OFFSETS = "input_ids", "offsets"
DTYPES = {IDS: "<u4", OFFSETS: "<i8", "token_type_ids": "|u1", "special_tokens_mask": "|u1"}
ROWS = 1024  # rows read at a time


class FlatSpool(NumberSpool):
    """The numbers of all rows, one after the other."""

    def add(self, values: NDArray[Any]) -> None:
        """Append numbers."""
        self.file.write(values.astype(self.dtype, copy=False).tobytes())
        self.rows += len(values)


def writer_of(form: str) -> Callable[[IO[bytes]], Any]:
    """Return the writer of ragged npz or safetensors."""

    @contextmanager
    def ragged(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row] | ColumnTable], None]]:
        import numpy as np

        with ExitStack() as stack:
            spools: dict[str, FlatSpool] = {}

            def spool(name: str) -> FlatSpool:
                if name not in spools:
                    place = stack.enter_context(tempfile.TemporaryFile())
                    spools[name] = FlatSpool(name, DTYPES[name], place)
                return spools[name]

            def write(rows: Sequence[Row] | ColumnTable) -> None:
                for name, values, lengths in _flat(rows):
                    if name == IDS:
                        before, ids = spool(IDS).rows, spool(IDS)
                        ids.add(values)
                        spool(OFFSETS).add(before + np.cumsum(lengths))
                    elif name == "token_type_ids" and name not in spools and not values.any():
                        continue
                    else:
                        if name not in spools:  # what came before is of type 0
                            late = spool(name)
                            late.file.seek(late.file.truncate(before))
                            late.rows = before
                        spool(name).add(values)

            spool(IDS)
            spool(OFFSETS).add(np.zeros(1, np.int64))
            yield write
            (put_npz if form == "npz" else put_safetensors)(file, spools.values())

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
    lines = [row for row in rows if not isinstance(row, TableHeader)]
    for name in lines[0] if lines else ():
        if name in DTYPES:
            lengths = np.array([len(row[name]) for row in lines], np.int64)
            yield name, np.concatenate([np.array(row[name], np.int64) for row in lines]), lengths


def is_ragged(place: str, path: str, form: str) -> bool:
    """Whether a file holds flat ids and offsets. Raises InputError when it is broken."""
    with open_arrays(place, path, form) as arrays:
        return {IDS, OFFSETS} <= arrays.keys()


def read_rows(place: str, path: str, form: str) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield the rows with the number of the first.

    Raises InputError, which calls the file ``path``, where the arrays do not fit each other.
    """
    with open_arrays(place, path, form) as arrays:
        ids, offsets = arrays[IDS](), arrays[OFFSETS]()
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
