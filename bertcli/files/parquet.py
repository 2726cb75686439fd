"""Parquet in: the rows of some columns, as values that JSON holds, in the memory of a few rows.

    with opened("reviews.parquet", "reviews.parquet") as table:
        for number, row in table.rows(["text", "when"], limit=32 << 20, skip=print): ...

What JSON has no type for is text, and nothing is rounded:

- timestamps, dates and times are ISO 8601 with every digit of their unit, the offset of their time
  zone behind them (``2024-05-01T12:00:00.000000001+02:00``); outside the years 1 to 9999 they are a
  count (``9999999999999 s since 1970-01-01``); durations are seconds (``PT1.5S``);
- decimals are digits (``"1.20"``), UUIDs as usual, other binary values base64;
- NaN is null, as data frames mean it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 1024  # decoded together, at most
DECODED = 16 << 20  # bytes decoded together, as far as the sizes of columns tell
AT_ONCE = 1 << 18  # bytes that become Python's objects together
REPEATED = 1 << 18  # bytes of a column from which its dictionary is not written out
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Row = dict[str, Any]
Large = Callable[[int], None]  # is told the number of a row that is larger than the limit


@contextmanager
def opened(place: str, path: str) -> Iterator[Table]:
    """Open a file that messages call ``path``. Raises InputError when it cannot be read."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow", 'pip install "bertcli[parquet]"'
        ) from None
    try:
        with ParquetFile(place) as file:
            yield Table(file, place, path)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as broken:
        raise InputError(f"{path}: not a readable Parquet file: {broken}") from None


class Table:
    """The columns of a file. A value that is no UTF-8 is bytes, unless ``errors`` is "replace"."""

    def __init__(self, file: Any, place: str, path: str) -> None:
        self.file, self.place, self.path = file, place, path
        self.schema, self.metadata = file.schema_arrow, file.metadata
        self.names: list[str] = self.schema.names

    def check_text(self, name: str) -> None:
        """Raise InputError for a column of a type that is no text, list or number."""
        kind = self.schema.field(name).type
        if not is_plain(kind):
            raise InputError(
                f"{self.path}: column {name!r} is of type {kind}, not text",
                "name another with --text-field, or cast it to string",
            )

    def rows(
        self, names: Sequence[str], limit: int, large: Large, errors: str = "strict"
    ) -> Iterator[list[tuple[int, Row]]]:
        """Yield numbered rows in lists of no fixed length, without those that are too large."""
        from pyarrow.parquet import ParquetFile

        number = 1
        repeated = self._repeated(names)
        with ParquetFile(self.place, read_dictionary=repeated, metadata=self.metadata) as file:
            for group in range(file.num_row_groups):
                step = self._rows_at_once(group, names)
                for batch in file.iter_batches(step, row_groups=[group], columns=list(names)):
                    columns = {name: batch.column(name) for name in names}
                    for start, stop in _slices(sizes_of(columns, len(batch)), limit, number, large):
                        some = {name: column[start:stop] for name, column in columns.items()}
                        yield _listed(some, number + start, errors)
                    number += len(batch)

    def _chunks(self, group: int, names: Sequence[str]) -> Iterator[Any]:
        found = self.metadata.row_group(group)
        for chunk in map(found.column, range(found.num_columns)):
            path = chunk.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in names):
                yield chunk

    def _rows_at_once(self, group: int, names: Sequence[str]) -> int:
        size = sum(chunk.total_uncompressed_size for chunk in self._chunks(group, names))
        each = size // max(1, self.metadata.row_group(group).num_rows)
        return max(1, min(ROWS, DECODED // max(1, int(each))))

    def _repeated(self, names: Sequence[str]) -> list[str]:
        """Return the columns of long texts of which the file holds equal ones once."""
        from pyarrow import types

        texts = {
            name
            for name in names
            if types.is_string(kind := self.schema.field(name).type) or types.is_binary(kind)
        }
        return sorted(
            {
                chunk.path_in_schema
                for group in range(self.metadata.num_row_groups)
                for chunk in self._chunks(group, names)
                if chunk.path_in_schema in texts
                and chunk.has_dictionary_page
                and chunk.total_uncompressed_size > REPEATED
            }
        )


def _slices(
    sizes: NDArray[Any], limit: int, number: int, large: Large
) -> Iterator[tuple[int, int]]:
    """Cut rows where they become many bytes; leave out those that are too large."""
    start, total = 0, 0
    if len(sizes) and sizes.sum() <= min(AT_ONCE, limit):
        yield 0, len(sizes)
        return
    for at, size in enumerate(sizes.tolist()):
        if start < at and (size > limit or total + size > AT_ONCE):
            yield start, at
            start, total = at, 0
        if size > limit:
            large(number + at)
            start = at + 1
        else:
            total += size
    if start < len(sizes):
        yield start, len(sizes)


def sizes_of(columns: Mapping[str, Any], count: int) -> NDArray[Any]:
    """Return about how many bytes each row of some columns takes."""
    import numpy

    total = numpy.zeros(count, numpy.int64)
    for column in columns.values():
        total += _sizes(column)
    return total


def _sizes(array: Any) -> NDArray[Any]:
    import numpy
    from pyarrow import compute, types

    array = _without_views(array)
    kind = array.type
    if isinstance(kind, _extension()):
        return _sizes(array.storage)
    if types.is_dictionary(kind):
        inner = numpy.append(_sizes(array.dictionary), 0)
        indices = array.indices.cast("int64").fill_null(len(inner) - 1)
        return numpy.asarray(inner[indices.to_numpy(False)])
    if any(check(kind) for check in (types.is_binary, types.is_large_binary, *_strings())):
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


def _strings() -> tuple[Callable[[Any], bool], ...]:
    from pyarrow import types

    return types.is_string, types.is_large_string, types.is_string_view


def _without_views(array: Any) -> Any:
    """Return an array of views as one of offsets, which all functions of Arrow take."""
    import pyarrow
    from pyarrow import types

    kind = array.type
    if types.is_string_view(kind):
        return array.cast(pyarrow.large_string())
    if types.is_binary_view(kind):
        return array.cast(pyarrow.large_binary())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return array.cast(pyarrow.large_list(kind.value_type))
    return array


def _extension() -> Any:
    from pyarrow import BaseExtensionType

    return BaseExtensionType


def _listed(columns: Mapping[str, Any], number: int, errors: str) -> list[tuple[int, Row]]:
    found = zip(*(values(column, errors) for column in columns.values()), strict=True)
    return [(at, dict(zip(columns, row, strict=True))) for at, row in enumerate(found, number)]


def is_plain(kind: Any) -> bool:
    """Whether values of an Arrow type are those of JSON: text, whole numbers, lists of them."""
    from pyarrow import types

    if isinstance(kind, _extension()):
        return is_plain(kind.storage_type)
    lists = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    if any(check(kind) for check in (*lists, types.is_dictionary)):
        return is_plain(kind.value_type)
    checks = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, *_strings())
    return any(check(kind) for check in checks)


def values(array: Any, errors: str = "strict") -> list[Any]:
    """Return the values of an Arrow array as JSON has them."""
    from pyarrow import types

    array = _without_views(array)
    kind = array.type
    if isinstance(kind, _extension()):
        name = getattr(kind, "extension_name", "")
        return _uuids(array.storage) if name == "arrow.uuid" else values(array.storage, errors)
    if types.is_dictionary(kind):
        return values(array.dictionary_decode(), errors)
    if any(check(kind) for check in _strings()):
        return _texts(array, errors)
    if types.is_floating(kind):
        return [None if one is None or math.isnan(one) else one for one in array.to_pylist()]
    if types.is_nested(kind):
        return _nested(array, errors)
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        found: list[Any] = array.to_pylist()
        return found
    return [None if one is None else _text(one, kind) for one in _raw(array)]


def _raw(array: Any) -> list[Any]:
    """Return values, those of time as counts: Python's types hold no nanoseconds."""
    import pyarrow
    from pyarrow import types

    kind = array.type
    whole = {64: pyarrow.int64(), 32: pyarrow.int32()}
    if types.is_temporal(kind) and not types.is_interval(kind):
        array = array.view(whole[kind.bit_width])
    found: list[Any] = array.to_pylist()
    return found


def _text(value: Any, kind: Any) -> str:
    from pyarrow import types

    if types.is_decimal(kind):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if types.is_timestamp(kind):
        return moment(value, kind.unit, _zone(kind.tz))
    if types.is_date(kind):
        return moment(value if types.is_date32(kind) else value // 86_400_000, "days", None)
    if types.is_time(kind):
        seconds, rest = divmod(value, 10 ** DIGITS[kind.unit])
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + _fraction(
            rest, kind.unit
        )
    if types.is_duration(kind):
        seconds, rest = divmod(abs(value), 10 ** DIGITS[kind.unit])
        return f"{'-' if value < 0 else ''}PT{seconds}{_fraction(rest, kind.unit).rstrip('0.')}S"
    return str(value)


def moment(count: int, unit: str, zone: tzinfo | None) -> str:
    """Return ISO 8601 for so many units since 1970; without a zone it is local, wherever."""
    try:
        if unit == "days":
            return (date(1970, 1, 1) + timedelta(count)).isoformat()
        seconds, rest = divmod(count, 10 ** DIGITS[unit])
        when = (EPOCH + timedelta(seconds=seconds)).astimezone(zone or timezone.utc)
        text = when.replace(tzinfo=None).isoformat() + _fraction(rest, unit)
        return text + (when.isoformat()[19:] if zone else "")
    except OverflowError:
        return f"{count} {unit} since 1970-01-01"


def _fraction(rest: int, unit: str) -> str:
    return f".{rest:0{DIGITS[unit]}}" if DIGITS[unit] else ""


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
    import pyarrow

    try:
        found: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        large = pyarrow.types.is_large_string(array.type)
        raw = array.view(pyarrow.large_binary() if large else pyarrow.binary()).to_pylist()
        return [None if one is None else _decoded(one, errors) for one in raw]
    return found


def _decoded(raw: bytes, errors: str) -> str | bytes:
    try:
        return raw.decode(errors=errors)
    except UnicodeDecodeError:
        return raw


def _uuids(array: Any) -> list[str | None]:
    from uuid import UUID

    return [None if one is None else str(UUID(bytes=one)) for one in array.to_pylist()]


def _nested(array: Any, errors: str) -> list[Any]:
    """Return lists, objects, and of maps lists of pairs."""
    from pyarrow import types

    kind, there = array.type, array.is_valid().to_pylist()
    if types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        if len({*names}) < len(names):
            raise ValueError(f"an object has two fields of one name: {', '.join(names)}")
        columns = [values(column, errors) for column in array.flatten()]
        rows = zip(*columns, strict=True) if columns else [()] * len(array)
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [row if is_there else None for row, is_there in zip(found, there, strict=True)]
    if types.is_map(kind):
        return [
            [list(pair.values()) for pair in values(row.values, errors)] if is_there else None
            for row, is_there in zip(array, there, strict=True)
        ]
    inner, at = values(array.flatten(), errors), 0
    lists: list[Any] = []
    for is_there, size in zip(there, _lengths(array), strict=True):
        lists.append(inner[at : at + size] if is_there else None)
        at += size if is_there else 0
    return lists


def _lengths(array: Any) -> list[int]:
    from pyarrow import compute, types

    if types.is_fixed_size_list(array.type):
        return [array.type.list_size] * len(array)
    found: list[int] = compute.list_value_length(array).fill_null(0).to_pylist()
    return found
