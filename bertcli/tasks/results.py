"""The result of a task for a record, and its output rows. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertcli.formats.plain_text import ended_text
from bertcli.formats.tables import TableHeader, rounded
from bertcli.records.reader import Reader
from bertcli.records.record import Record


class Result(NamedTuple):
    """The result of a task for one record. At most one field is a list (of mappings)."""

    record: Record
    sample: int  # index of the record in the run, from 0
    fields: Mapping[str, Any]
    dropped_tokens: int = 0  # by truncation

    @property
    def id(self) -> Any:
        """The id of the record; without one, its index in the run."""
        return self.sample if self.record.id is None else self.record.id


def row(result: Result) -> dict[str, Any]:
    """Return the JSON object of a result: id, the task's fields, dropped tokens, carried fields."""
    fields = {"id": result.id, **rounded(result.fields)}
    if result.dropped_tokens:
        fields["truncated"] = result.dropped_tokens
    return fields | (result.record.extra or {})


def plain_row(result: Result, name: str, *, null: bool) -> bytes:
    """Return the field of a result that plain text holds, with its end, as UTF-8."""
    return ended_text(result.fields[name], result.record.where, "text", null=null)


def flat_rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the table rows of a result, with the same columns: one per item of its list, or one.

    A mapping becomes one column per key.
    """
    shared: dict[str, Any] = {"id": result.id}
    items: list[Mapping[str, Any]] = [{}]
    for name, value in rounded(result.fields).items():
        match value:
            case list():
                items = value
            case Mapping():
                shared |= {f"{name}.{key}": number for key, number in value.items()}
            case _:
                shared[name] = value
    for item in items:
        fields = {**shared, **item, "truncated": result.dropped_tokens}
        yield fields | (result.record.extra or {})


def tabular(
    batches: Iterable[Sequence[Result]],
    blank: Mapping[str, Any],
    reader: Reader,
    consumed: frozenset[str] = frozenset(),
) -> Iterator[list[dict[str, Any]]]:
    """Yield the table rows of each batch. If there are none, yield the header of the table.

    ``blank`` are the fields of an example result, with one item in its list; fields ``consumed`` by
    the task are not carried.
    """
    first_result = None
    is_empty = True
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for result in batch:
            rows += flat_rows(result)
        first_result = first_result or batch[0]
        is_empty = is_empty and not rows
        yield rows
    if is_empty:
        carried = reader.fields.carried if reader.fields else ()
        fields = {name: None for name in carried if name not in consumed}
        record = first_result.record if first_result else Record("", extra=fields)
        yield [TableHeader(row) for row in flat_rows(Result(record, 0, blank))]


def fields_written(blank: Mapping[str, Any], *, flat: bool) -> frozenset[str]:
    """Return the fields of the output, whose names no carried field may have.

    ``blank`` are the fields of an example result; ``flat`` is True for tables.
    """
    result = Result(Record(""), 0, blank, dropped_tokens=1)
    return frozenset({"id"}.union(*(flat_rows(result) if flat else [row(result)])))
