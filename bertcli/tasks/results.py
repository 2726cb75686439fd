"""The result of a task for a record, and its output rows. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertcli.formats.tables import TableHeader, rounded
from bertcli.records.reader import Reader
from bertcli.records.record import Record


class Result(NamedTuple):
    """The result of a task for one record. At most one field is a list (of mappings)."""

    record: Record
    sample: int  # index of the record in the run, from 0
    fields: Mapping[str, Any]
    cut: int = 0  # tokens dropped by truncation

    @property
    def id(self) -> Any:
        """The id of the record; without one, its index in the run."""
        return self.sample if self.record.id is None else self.record.id


def row(result: Result) -> dict[str, Any]:
    """Return the JSON object of a result: id, the task's fields, dropped tokens, carried fields."""
    fields = {"id": result.id, **rounded(result.fields)}
    if result.cut:
        fields["truncated"] = result.cut
    return fields | (result.record.extra or {})


def flat_rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the table rows of a result: one per item of its list, or one.

    All have the same columns.

    A mapping becomes one column per key.
    """
    single: dict[str, Any] = {"id": result.id}
    items: list[Mapping[str, Any]] = [{}]
    for name, value in rounded(result.fields).items():
        match value:
            case list():
                items = value
            case Mapping():
                single |= {f"{name}.{inner}": number for inner, number in value.items()}
            case _:
                single[name] = value
    for item in items:
        fields = {**single, **item, "truncated": result.cut}
        yield fields | (result.record.extra or {})


def tabular(
    batches: Iterable[Sequence[Result]],
    blank: Mapping[str, Any],
    reader: Reader,
    consumed: frozenset[str] = frozenset(),
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each batch. If no result has any, yield the header of the table.

    ``blank`` are the fields of an example result, with one item in its list; fields ``consumed`` by
    the task are not carried.
    """
    first = None
    empty = True
    for batch in batches:
        rows = [line for result in batch for line in flat_rows(result)]
        first = first or batch[0]
        empty = empty and not rows
        yield rows
    if empty:
        others = reader.fields.carried if reader.fields else ()
        extra = {name: None for name in others if name not in consumed}
        record = first.record if first else Record("", extra=extra)
        yield [TableHeader(line) for line in flat_rows(Result(record, 0, blank))]


def fields_written(blank: Mapping[str, Any], *, flat: bool) -> frozenset[str]:
    """Return the names of the output fields of such results, which no carried field may have."""
    result = Result(Record(""), 0, blank, cut=1)
    return frozenset({"id"}.union(*(flat_rows(result) if flat else [row(result)])))
