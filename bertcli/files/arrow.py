"""Arrow's values as those of JSON and NumPy, and NumPy's as Arrow's. Nothing else imports pyarrow.

What JSON has no type for is text: timestamps are ISO 8601 with every digit of their unit and the
offset of their time zone (``2024-05-01T12:00:00.000000001+02:00``), durations counts of their unit,
decimals digits (``"1.20"``), binary values base64. NaN is null, as data frames mean it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow as pyarrow
from pyarrow import types
from pyarrow.parquet import ParquetFile as ParquetFile
from pyarrow.parquet import ParquetWriter as ParquetWriter

from bertcli.files.tables import FlatLists

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

VECTOR = re.compile(r"((fixed_size_|large_)?list<\w+: )+(u?int|halffloat|float|double)")  # a type
STRINGS = (types.is_string, types.is_large_string, types.is_string_view)


# --- values as JSON has them ---


def values(array: Any, errors: str = "strict") -> list[Any]:
    """Return the values of an Arrow array as JSON has them."""
    kind = array.type
    if any(check(kind) for check in STRINGS):
        stored = array.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
        return [None if raw is None else _decoded(raw, errors) for raw in stored]
    if types.is_timestamp(kind):
        from pyarrow import compute

        zone = "%Ez" if kind.tz else ""
        array = compute.strftime(array, format=f"%Y-%m-%dT%H:%M:%S{zone}")
    elif types.is_temporal(kind):
        array = array.cast("string")
    return [_plain(value) for value in array.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _decoded(raw: bytes, errors: str) -> str | bytes:
    try:
        return raw.decode(errors=errors)
    except UnicodeDecodeError:
        return raw


# --- lists of numbers as NumPy has them, and back ---


def is_vector(kind: Any) -> bool:
    """Tell whether a type is a list of numbers, or lists of them, as of the tokens of a text."""
    return VECTOR.match(str(kind)) is not None


def vectors(column: Any) -> tuple[str, list[Array]]:
    """Return the type of the numbers in a column of lists, and the innermost of them, no nulls."""
    while hasattr(column.type.value_type, "value_type"):
        column = column.flatten()
    rows = [row.values.to_numpy(zero_copy_only=False) for row in column if row.is_valid]
    return str(column.type.value_type), rows


def array(column: Any, name: str) -> Array:
    """Return a column of numbers, or of (nested) lists of one length, as one array [n, D...].

    Raises ValueError for lists of several lengths.
    """
    shape = [len(column)]
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        nulls, before, size = column.null_count, len(column), getattr(column.type, "list_size", 0)
        column = column.flatten()
        if nulls or (before and len(column) % before):
            raise ValueError(f"column {name!r} has rows of several lengths, or empty ones")
        shape.append(len(column) // before if before else size)
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def type_of_array(shape: Sequence[int], dtype: Any) -> Any:
    """Return the type of a cell that holds an array of this shape."""
    kind = pyarrow.from_numpy_dtype(dtype)
    for size in reversed(shape):
        kind = pyarrow.list_(kind, size)
    return kind


# --- types, and columns of them ---


def type_of(name: str) -> Any:
    """Return the type of this name, as list<int32>."""
    if name.startswith("list<"):
        return pyarrow.list_(type_of(name[5:-1]))
    return getattr(pyarrow, name)()


def array_of(values: Any, kind: Any = None) -> Any:
    """Return values as Arrow's, numbers of NumPy in place.

    To learn that those are no data of pandas, `pyarrow.array` would import it: a third of a second.
    """
    if not (isinstance(values, numpy.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf"):
        return pyarrow.array(values, kind)
    own, buffer = pyarrow.from_numpy_dtype(values.dtype), pyarrow.py_buffer(values.ravel())
    numbers = pyarrow.Array.from_buffers(own, len(values), [None, buffer])
    return numbers.cast(kind) if kind else numbers


def common_type(kind: Any, values: Sequence[Any]) -> Any:
    """Return the type that holds values of this type and these values; text holds all.

    None is the type of no values.
    """
    try:
        own = array_of(values).type
        if types.is_null(own):
            return kind
        if kind in (None, own):
            return own
        schemas = [pyarrow.schema([("", member)]) for member in (kind, own)]
        kind = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()
    return pyarrow.string() if "struct" in str(kind) else kind  # objects differ in their keys


def column(values: Any, kind: Any) -> Any:
    """Return values as a column of a type.

    Lists of fixed size are an array [n, D...] and, where there are several a row, arrays [k, D...].
    Of flat lists, as list<int32>, numbers of its width stay in place; unsigned ones are read as
    signed ones, which token ids fit.
    """
    if types.is_fixed_size_list(kind):
        cells = array_of(values.reshape(-1))
        for size in reversed(values.shape[1:]):
            cells = pyarrow.FixedSizeListArray.from_arrays(cells, size)
        return cells
    if isinstance(values, FlatLists):
        numbers = values.values.view(f"i{values.values.itemsize}")
        numbers = numbers.astype(kind.value_type.to_pandas_dtype(), copy=False)
        offsets = array_of(values.offsets.astype("int32"))
        return pyarrow.ListArray.from_arrays(offsets, array_of(numbers), type=kind)
    if types.is_list(kind) and isinstance(next(iter(values), None), numpy.ndarray):
        ends = pyarrow.array([0, *accumulate(map(len, values))], "int32")
        inner = column(numpy.concatenate([*values]), kind.value_type)
        return pyarrow.ListArray.from_arrays(ends, inner)
    if kind == pyarrow.string():  # what is no text is written as JSON
        values = [
            value
            if value is None or isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            for value in values
        ]
    elif kind == pyarrow.float64():  # which Arrow makes of no integer above 2**53
        values = [value if value is None else float(value) for value in values]
    return array_of(values, kind)


def file_system(place: str) -> tuple[Any, str]:
    """Return the file system of an address, with fsspec's methods, and the path within it."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    system, path = FileSystem.from_uri(place)
    return ArrowFSWrapper(system), path
