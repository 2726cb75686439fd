"""What a task says of a record, and the rows that it is written as. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertcli.formats.tables import TableHeader, rounded
from bertcli.records.reader import Reader
from bertcli.records.record import Record


class Result(NamedTuple):
    """What a task says of one record. At most one of the fields is a list, of further fields."""

    record: Record
    sample: int  # the number of the record in the run, from 0
    fields: Mapping[str, Any]
    cut: int = 0  # tokens that truncation took away

    @property
    def id(self) -> Any:
        """The id of the record; one without has its number."""
        return self.sample if self.record.id is None else self.record.id


def row(result: Result) -> dict[str, Any]:
    """Return the JSON object of a result: id, the task's fields, dropped tokens, other fields."""
    fields = {"id": result.id, **rounded(result.fields)}
    if result.cut:
        fields["truncated"] = result.cut
    return fields | (result.record.extra or {})


def flat_rows(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table: one for each item of the list, or one; the same columns for all.

    A mapping becomes a column for each of its names.
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
    """Yield the rows of each batch. When no result has any, the header of the table comes alone.

    ``blank`` are the fields of a result, with one item in their list; fields ``consumed`` by the
    task are not carried.
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
    """Return the names that no carried field may have, of results with fields like these."""
    result = Result(Record(""), 0, blank, cut=1)
    return frozenset({"id"}.union(*(flat_rows(result) if flat else [row(result)])))
