"""Rows of instances in one file: safetensors, an array a column, or Parquet, a list a cell.

Letters: `n` rows, `L` the length, `P` the most predictions. A row is one instance:

    input_ids             int32 [n, L]  [CLS] A [SEP] B [SEP], masked, then padding
    token_type_ids        uint8 [n, L]  0 up to the first [SEP], 1 up to the second, then 0
    lengths               int32 [n]     tokens; the attention mask is arange(L) < length
    masked_lm_positions   int32 [n, P]  ascending, then 0
    masked_lm_ids         int32 [n, P]  the original tokens, then 0
    masked_lm_counts      int32 [n]     number of positions in use
    next_sentence_labels  uint8 [n]     0: B follows A, 1: B is from another document
    extra.NAME            int32 [n, L]  ids of an extra embedding, 0 for special tokens and padding
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.files.safetensors import read_header
from bertcli.tokenizing.columns import EXTRA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]

GROUP = 4096  # rows of a Parquet file that are unpacked together
AGAIN = "run bertcli pretrain prepare again"


def row_type(length: int, predictions: int, extra: Iterable[str] = ()) -> np.dtype[Any]:
    """Return the type of a row of these sizes, with these extra embeddings."""
    import numpy as np

    return np.dtype(
        [
            ("input_ids", "<i4", (length,)),
            ("token_type_ids", "u1", (length,)),
            ("lengths", "<i4"),
            ("masked_lm_positions", "<i4", (predictions,)),
            ("masked_lm_ids", "<i4", (predictions,)),
            ("masked_lm_counts", "<i4"),
            ("next_sentence_labels", "u1"),
            *((EXTRA + name, "<i4", (length,)) for name in extra),
        ]
    )


def columns(rows: Array) -> dict[str, Array]:
    """Return rows of ``row_type`` by column: views, which share their memory."""
    return {name: rows[name] for name in rows.dtype.names or ()}


def write_safetensors(file: IO[bytes], rows: Array) -> None:
    """Write rows of ``row_type`` as one array a column."""
    from numpy import ascontiguousarray
    from safetensors.numpy import save

    file.write(save({name: ascontiguousarray(column) for name, column in columns(rows).items()}))


def write_parquet(file: IO[bytes], rows: Array) -> None:
    """Write rows of ``row_type`` as a table with lists of fixed size."""
    from bertcli.files.parquet import write_arrays

    write_arrays(file, columns(rows), GROUP)


WRITERS: dict[str, Callable[[IO[bytes], Array], None]] = {
    "safetensors": write_safetensors,
    "parquet": write_parquet,
}


class SafetensorsRows:
    """A memory-mapped safetensors file: only the pages that are read are loaded."""

    def __init__(self, path: Path, rows: int, kind: np.dtype[Any]) -> None:
        import numpy as np

        stored = {tensor.name: tensor for tensor in read_header(path)}
        self.columns: dict[str, Array] = {}
        for name, shape, dtype in _parts(rows, kind):
            tensor, size = stored.get(name), prod(shape) * dtype.itemsize
            if tensor is None or (tensor.shape, tensor.nbytes) != (shape, size):
                raise _unlike(path, name, shape, dtype)
            if not rows:
                continue
            self.columns[name] = np.memmap(path, dtype, "r", tensor.start, shape)

    def fill(self, found: Array, here: Array, numbers: Array) -> None:
        """Copy rows to those of ``found`` that the mask ``here`` selects."""
        for name, column in self.columns.items():
            found[name][here] = column[numbers]


class ParquetRows:
    """A Parquet file; the last group of rows read is cached."""

    def __init__(self, path: Path, rows: int, kind: np.dtype[Any]) -> None:
        from bertcli.files.parquet import opened

        self.path, self.kind = path, kind
        self.group: tuple[int, Array] | None = None
        with opened(str(path), str(path), AGAIN) as table:
            there, names = table.count, table.names
        if there != rows or names != list(kind.names or ()):
            raise InputError(f"{path}: {there} rows of {', '.join(names)}, not {rows}", AGAIN)

    def fill(self, found: Array, here: Array, numbers: Array) -> None:
        """Copy rows to those of ``found`` that the mask ``here`` selects."""
        import numpy as np

        places = np.flatnonzero(here)
        for group in np.unique(numbers // GROUP).tolist():
            inside = numbers // GROUP == group
            found[places[inside]] = self._group(group)[numbers[inside] - group * GROUP]

    def _group(self, number: int) -> Array:
        import numpy as np

        from bertcli.files.parquet import opened

        if self.group is None or self.group[0] != number:
            with opened(str(self.path), str(self.path), AGAIN) as table:
                found = table.group(number)
            rows = np.zeros(len(next(iter(found.values()))), self.kind)
            for name, shape, _ in _parts(len(rows), self.kind):
                if found[name].shape != shape:
                    raise _unlike(self.path, name, shape, rows[name].dtype)
                rows[name] = found[name]
            self.group = number, rows
        return self.group[1]


def open_rows(path: Path, rows: int, kind: np.dtype[Any]) -> SafetensorsRows | ParquetRows:
    """Open a file by its suffix. Raises InputError unless it has these rows of this type."""
    if not path.is_file():
        raise InputError(f"{path}: not found, but listed in the index", AGAIN)
    return (ParquetRows if path.suffix == ".parquet" else SafetensorsRows)(path, rows, kind)


def _parts(rows: int, kind: np.dtype[Any]) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Return name, shape and type of every column."""
    fields: Mapping[str, Any] = kind.fields or {}
    return [(name, (rows, *fields[name][0].shape), fields[name][0].base) for name in fields]


def _unlike(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> InputError:
    return InputError(f"{path}: expected {name} as {dtype.name} {list(shape)}", AGAIN)
