"""Arrow's values as those of JSON and NumPy, and NumPy's as Arrow's. Nothing else imports pyarrow.

What JSON has no type for is text, and nothing is rounded:

- timestamps, dates and times are ISO 8601 with every digit of their unit, the offset of their time
  zone behind them (``2024-05-01T12:00:00.000000001+02:00``); outside the years 1 to 9999 they are a
  count (``9999999999999 s since 1970-01-01``); durations are seconds (``PT1.5S``);
- decimals are digits (``"1.20"``), UUIDs as usual, other binary values base64;
- NaN is null, as data frames mean it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

import pyarrow as pyarrow
from pyarrow import types
from pyarrow.parquet import ParquetFile as ParquetFile
from pyarrow.parquet import ParquetWriter as ParquetWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.files.tables import FlatLists

    Array = NDArray[Any]

DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
STRINGS = (types.is_string, types.is_large_string, types.is_string_view)
LISTS = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)


# --- values as JSON has them ---


def sizes_of(columns: Mapping[str, Any], count: int) -> NDArray[Any]:
    """Return about how many bytes each row of some columns takes."""
    import numpy

    total = numpy.zeros(count, numpy.int64)
    for column in columns.values():
        total += _sizes(column)
    return total


def _sizes(array: Any) -> NDArray[Any]:
    import numpy
    from pyarrow import compute

    array = _without_views(array)
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _sizes(array.storage)
    if types.is_dictionary(kind):
        inner = numpy.append(_sizes(array.dictionary), 0)
        indices = array.indices.cast("int64").fill_null(len(inner) - 1)
        return numpy.asarray(inner[indices.to_numpy(False)])
    if any(check(kind) for check in (types.is_binary, types.is_large_binary, *STRINGS)):
        lengths = compute.binary_length(array).fill_null(0)
        return numpy.asarray(lengths.to_numpy(False), numpy.int64)
    if types.is_struct(kind):
        return sizes_of(dict(enumerate(array.flatten())), len(array))  # type: ignore[arg-type]
    if types.is_list(kind) or types.is_large_list(kind):
        counts = compute.list_value_length(array).fill_null(0).to_numpy(False)
        ends = numpy.cumsum(counts, dtype=numpy.int64)
        before = numpy.append(0, numpy.cumsum(_sizes(array.flatten())))
        return numpy.asarray(before[ends] - before[ends - counts])
    return numpy.full(len(array), 8, numpy.int64)


def _without_views(array: Any) -> Any:
    """Return an array of views as one of offsets, which all functions of Arrow take."""
    kind = array.type
    if types.is_string_view(kind):
        return array.cast(pyarrow.large_string())
    if types.is_binary_view(kind):
        return array.cast(pyarrow.large_binary())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return array.cast(pyarrow.large_list(kind.value_type))
    return array


def is_plain(kind: Any) -> bool:
    """Whether values of an Arrow type are those of JSON: text, whole numbers, lists of them."""
    if isinstance(kind, pyarrow.BaseExtensionType):
        return is_plain(kind.storage_type)
    if any(check(kind) for check in (*LISTS, types.is_dictionary)):
        return is_plain(kind.value_type)
    checks = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, *STRINGS)
    return any(check(kind) for check in checks)


def values(array: Any, errors: str = "strict") -> list[Any]:
    """Return the values of an Arrow array as JSON has them."""
    array = _without_views(array)
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        name = getattr(kind, "extension_name", "")
        if name != "arrow.uuid":
            return values(array.storage, errors)
        from uuid import UUID

        stored = array.storage.to_pylist()
        return [None if raw is None else str(UUID(bytes=raw)) for raw in stored]
    if types.is_dictionary(kind):
        return values(array.dictionary_decode(), errors)
    if any(check(kind) for check in STRINGS):
        return _texts(array, errors)
    if types.is_floating(kind):
        return [
            None if value is None or math.isnan(value) else value for value in array.to_pylist()
        ]
    if types.is_nested(kind):
        return _nested(array, errors)
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        plain: list[Any] = array.to_pylist()
        return plain
    return [None if value is None else _text(value, kind) for value in _raw(array)]


def _raw(array: Any) -> list[Any]:
    """Return values, those of time as counts: Python's types hold no nanoseconds."""
    kind = array.type
    whole = {64: pyarrow.int64(), 32: pyarrow.int32()}
    if types.is_temporal(kind) and not types.is_interval(kind):
        array = array.view(whole[kind.bit_width])
    counts: list[Any] = array.to_pylist()
    return counts


def _text(value: Any, kind: Any) -> str:
    if types.is_decimal(kind):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if types.is_timestamp(kind):
        return moment(value, kind.unit, _zone(kind.tz))
    if types.is_date(kind):
        return moment(value if types.is_date32(kind) else value // 86_400_000, "days", None)
    if types.is_time(kind):
        seconds, parts = divmod(value, 10 ** DIGITS[kind.unit])
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + _fraction(
            parts, kind.unit
        )
    if types.is_duration(kind):
        seconds, parts = divmod(abs(value), 10 ** DIGITS[kind.unit])
        return f"{'-' if value < 0 else ''}PT{seconds}{_fraction(parts, kind.unit).rstrip('0.')}S"
    return str(value)


def moment(count: int, unit: str, zone: tzinfo | None) -> str:
    """Return ISO 8601 for so many units since 1970; without a zone it is local, wherever."""
    try:
        if unit == "days":
            return (date(1970, 1, 1) + timedelta(count)).isoformat()
        seconds, parts = divmod(count, 10 ** DIGITS[unit])
        when = (EPOCH + timedelta(seconds=seconds)).astimezone(zone or timezone.utc)
        text = when.replace(tzinfo=None).isoformat() + _fraction(parts, unit)
        return text + (when.isoformat()[19:] if zone else "")
    except OverflowError:
        return f"{count} {unit} since 1970-01-01"


def _fraction(parts: int, unit: str) -> str:
    return f".{parts:0{DIGITS[unit]}}" if DIGITS[unit] else ""


def _zone(name: str | None) -> tzinfo | None:
    """Return a time zone by its name or offset; one that this machine does not know is UTC."""
    if name is None:
        return None
    try:
        return datetime.strptime(name, "%z").tzinfo
    except ValueError:
        pass
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return timezone.utc


def _texts(array: Any, errors: str) -> list[Any]:
    try:
        texts: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        large = pyarrow.types.is_large_string(array.type)
        raw = array.view(pyarrow.large_binary() if large else pyarrow.binary()).to_pylist()
        return [None if value is None else _decoded(value, errors) for value in raw]
    return texts


def _decoded(raw: bytes, errors: str) -> str | bytes:
    try:
        return raw.decode(errors=errors)
    except UnicodeDecodeError:
        return raw


def _nested(array: Any, errors: str) -> list[Any]:
    """Return lists, objects, and of maps lists of pairs."""
    kind, valid = array.type, array.is_valid().to_pylist()
    if types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        if len({*names}) < len(names):
            raise ValueError(f"an object has two fields of one name: {', '.join(names)}")
        columns = [values(column, errors) for column in array.flatten()]
        rows = zip(*columns, strict=True) if columns else [()] * len(array)
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        return [row if is_valid else None for row, is_valid in zip(objects, valid, strict=True)]
    if types.is_map(kind):
        return [
            [list(pair.values()) for pair in values(row.values, errors)] if is_valid else None
            for row, is_valid in zip(array, valid, strict=True)
        ]
    inner, at = values(array.flatten(), errors), 0
    lists: list[Any] = []
    for is_valid, size in zip(valid, _lengths(array), strict=True):
        lists.append(inner[at : at + size] if is_valid else None)
        at += size if is_valid else 0
    return lists


def _lengths(array: Any) -> list[int]:
    from pyarrow import compute

    if types.is_fixed_size_list(array.type):
        return [array.type.list_size] * len(array)
    lengths: list[int] = compute.list_value_length(array).fill_null(0).to_pylist()
    return lengths


# --- lists of numbers as NumPy has them, and back ---


def is_vector(kind: Any) -> bool:
    """Tell whether a type is a list of numbers, or lists of them, as of the tokens of a text."""
    if not _is_list(kind):
        return False
    inner = kind.value_type
    return is_vector(inner) or bool(types.is_floating(inner)) or bool(types.is_integer(inner))


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def vectors(column: Any) -> tuple[str, list[Array]]:
    """Return the type of the numbers in a column of lists, and the innermost of them, no nulls."""
    while _is_list(column.type.value_type):
        column = column.flatten()
    rows = [row.values.to_numpy(zero_copy_only=False) for row in column if row.is_valid]
    return str(column.type.value_type), rows


def array(column: Any, name: str) -> Array:
    """Return a column of numbers, or of (nested) lists of one length, as one array [n, D...].

    Raises ValueError for lists of several lengths.
    """
    shape = [len(column)]
    while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        nulls, before, column = column.null_count, len(column), column.flatten()
        if nulls or (before and len(column) % before):
            raise ValueError(f"column {name!r} has rows of several lengths, or empty ones")
        shape.append(len(column) // before if before else 0)
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers.reshape(shape)


def no_rows(kind: Any) -> Iterator[Array]:
    """Yield an array [0, D...] for a type of lists of one size, nothing for any other type."""
    import numpy

    shape = [0]
    while hasattr(kind, "list_size"):
        shape.append(kind.list_size)
        kind = kind.value_type
    if len(shape) > 1 and (types.is_floating(kind) or types.is_integer(kind)):
        yield numpy.zeros(shape, kind.to_pandas_dtype())


def column_of(numbers: Array) -> Any:
    """Return an array [n, D...] as a column of lists of fixed size."""
    column = array_of(numbers.reshape(-1))
    for size in reversed(numbers.shape[1:]):
        column = pyarrow.FixedSizeListArray.from_arrays(column, size)
    return column


def column_of_many(arrays: Sequence[Array]) -> Any:
    """Return arrays [k, D...] as a column with a list of so many for each."""
    import numpy

    ends = numpy.cumsum([0, *map(len, arrays)], dtype=numpy.int32)
    inner = column_of(numpy.concatenate([*arrays]))
    return pyarrow.ListArray.from_arrays(array_of(ends), inner)


def list_of(kind: Any) -> Any:
    """Return the type of lists, of any length, of values of a type."""
    return pyarrow.list_(kind)


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
        return list_of(type_of(name[5:-1]))
    return getattr(pyarrow, name)()


def column_of_flat(lists: FlatLists, kind: Any) -> Any:
    """Return flat lists as a column of a type, as list<int32>; numbers of its width stay in place.

    Unsigned numbers are read as signed ones, which token ids fit.
    """
    width = kind.value_type.to_pandas_dtype()
    values = lists.values.view(f"i{lists.values.itemsize}").astype(width, copy=False)
    offsets = array_of(lists.offsets.astype("int32"))
    return pyarrow.ListArray.from_arrays(offsets, array_of(values), type=kind)


def array_of(values: Any) -> Any:
    """Return values as Arrow's, numbers of NumPy in place.

    To learn that those are no data of pandas, `pyarrow.array` would import it: a third of a second.
    """
    import numpy

    if not (isinstance(values, numpy.ndarray) and values.ndim == 1 and values.dtype.kind in "iuf"):
        return pyarrow.array(values)
    kind, buffer = pyarrow.from_numpy_dtype(values.dtype), pyarrow.py_buffer(values.ravel())
    return pyarrow.Array.from_buffers(kind, len(values), [None, buffer])


def type_of_values(values: Sequence[Any]) -> Any:
    """Return the type of these values: that of text where there are none, or several kinds."""
    try:
        kind = array_of(values).type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()
    return pyarrow.string() if types.is_null(kind) else kind


def common_type(kind: Any, values: Sequence[Any]) -> Any:
    """Return the type that holds values of this type and these values; text holds all."""
    try:
        kinds = [kind, array_of(values).type]
        schemas = [pyarrow.schema([("", member)]) for member in kinds]
        kind = pyarrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()
    return pyarrow.string() if "struct" in str(kind) else kind  # objects differ in their keys


def column(values: Iterable[Any], kind: Any) -> Any:
    """Return values as a column of a type that `common_type` found for them."""
    if kind == pyarrow.string():  # what is no text is written as JSON
        values = [
            value
            if value is None or isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            for value in values
        ]
    elif kind == pyarrow.float64():  # which Arrow makes of no integer above 2**53
        values = [value if value is None else float(value) for value in values]
    return pyarrow.array(values, type=kind)


def file_system(place: str) -> tuple[Any, str]:
    """Return the file system of an address, with fsspec's methods, and the path within it."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import FileSystem

    system, path = FileSystem.from_uri(place)
    return ArrowFSWrapper(system), path
