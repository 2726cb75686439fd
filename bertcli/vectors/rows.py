"""Vectors beside the other fields of their records: JSONL, CSV and Parquet.

- JSONL and CSV hold a number in the fewest digits that read back to it in its own precision:
  float32 0.1 is ``0.1``, not ``0.10000000149011612``.
- A record with a vector for each of its tokens or words has them all in the field vectors: in JSONL
  behind what they belong to, in Parquet as a list of fixed-size lists. CSV does not hold them.
- CSV and Parquet have the columns id, n_tokens, truncated (0 where nothing was cut), the fields
  kept in any row, and embedding, which is a JSON list in CSV and a fixed-size list in Parquet.
- Parquet has row groups of one size. A column with objects, or values of several kinds, is text:
  JSON where a value is no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from bertcli.files.array_json import json_of
from bertcli.files.tables import NumbersText, TableHeader, fields_of
from bertcli.files.writers import writer_of
from bertcli.vectors.spool import START, STOP, Row, Rows

if TYPE_CHECKING:
    from bertcli.vectors.spool import Vectors

VECTOR, VECTORS = "embedding", "vectors"  # of a record with one, and with several
AT_ONCE = 256  # records that are made text together
FIRST = ("id", "n_tokens", "truncated")
PIECES = {  # what several vectors belong to; Arrow types that empty lists do not show
    "tokens": "list<string>",
    "words": "list<string>",
    "offsets": "list<list<int32>>",
    "sequence_ids": "list<int8>",
}
WRITTEN = (*FIRST, VECTOR)  # names that no carried field may have
WRITTEN_OF_MANY = (*FIRST, *PIECES, VECTORS, START, STOP)  # where a record has several vectors


def lines(metas: Sequence[Row], vectors: Vectors) -> list[Row]:
    """Return rows for JSONL: the vector comes after the id."""
    return [
        _line(meta, ("id",), VECTOR, NumbersText(text))
        for meta, text in zip(metas, json_of(vectors), strict=True)
    ]


def lines_of_many(metas: Sequence[Row], vectors: Vectors) -> list[Row]:
    """Return rows for JSONL: the vectors [k, D...] of a record come after what they belong to."""
    return [
        _line(without_place(meta), ("id", *PIECES), VECTORS, NumbersText(text))
        for meta, text in zip(metas, json_of(vectors), strict=True)
    ]


def _line(meta: Row, before: Sequence[str], name: str, text: NumbersText) -> Row:
    first = {key: meta[key] for key in before if key in meta}
    rest = {key: value for key, value in meta.items() if key not in (*before, name)}
    return {**first, name: text, **rest}


def without_place(meta: Row) -> Row:
    """Return the fields of a record less the rows that it has in a spool."""
    return {name: value for name, value in meta.items() if name not in (START, STOP)}


def cells(
    metas: Sequence[Row],
    vectors: Vectors,
    columns: Sequence[str] | None = None,
) -> list[Row]:
    """Return rows for CSV: every row has every column."""
    columns = columns or columns_of(metas)
    return [
        {**{name: cell(meta, name) for name in columns}, VECTOR: NumbersText(text)}
        for meta, text in zip(metas, json_of(vectors), strict=True)
    ]


def columns_of(metas: Sequence[Row]) -> list[str]:
    """Return the columns beside the vector, in the order of their first appearance."""
    return [name for name in dict.fromkeys([*FIRST, *fields_of(metas)]) if name != VECTOR]


def cell(meta: Row, name: str) -> Any:
    """Return the value of a column; nothing truncated is 0."""
    return meta.get(name, 0 if name == "truncated" else None)


def jsonl(file: IO[bytes], rows: Rows) -> Iterator[int]:
    """Write all records as JSON, one a line."""
    rows_of = lines_of_many if rows.many else lines
    with writer_of("jsonl")(file) as write:
        for metas, vectors in portions(rows):
            write(rows_of(metas, vectors))
            yield _count(vectors, rows)


def csv(file: IO[bytes], rows: Rows) -> Iterator[int]:
    """Write all records as a table in text."""
    columns = list(dict.fromkeys(name for metas in rows.metas() for name in columns_of(metas)))
    with writer_of("csv")(file) as write:
        if not rows.count:
            write([TableHeader.fromkeys([*columns_of([]), VECTOR])])
        for metas, vectors in portions(rows):
            write(cells(metas, vectors, columns))
            yield len(vectors)


def portions(rows: Rows) -> Iterator[tuple[list[Row], Vectors]]:
    """Yield some records at a time: numbers as text take three times their room, or more."""
    for metas, vectors in rows.records():
        for at in range(0, len(metas), AT_ONCE):
            yield metas[at : at + AT_ONCE], vectors[at : at + AT_ONCE]


def parquet(file: IO[bytes], rows: Rows) -> Iterator[int]:
    """Write all records as Parquet, a row group a chunk."""
    from bertcli.files.arrow import list_of, type_of_array
    from bertcli.files.parquet import vectors_writer

    shape, dtype = rows.kind()
    vector = type_of_array(shape[1:], dtype)
    name, kind = (VECTORS, list_of(vector)) if rows.many else (VECTOR, vector)
    columns = {key: kind for key, kind in column_types(rows).items() if key != name}
    with vectors_writer(file, columns, {name: kind}) as write:
        for metas, vectors in rows.records():
            found = {key: [cell(meta, key) for meta in metas] for key in columns}
            write(found, {name: vectors})
            yield _count(vectors, rows)


def _count(vectors: Vectors, rows: Rows) -> int:
    """Return the number of rows that these vectors of records are."""
    return sum(map(len, vectors)) if rows.many else len(vectors)


def column_types(rows: Rows) -> dict[str, Any]:
    """Return the type of every column of Parquet, from all its values."""
    from bertcli.files.parquet import ColumnTypes

    known = dict.fromkeys(columns_of([])) | {"n_tokens": "int64", "truncated": "int64"}
    types = ColumnTypes(known)
    for metas in rows.metas():
        metas = [without_place(meta) for meta in metas] if rows.many else metas
        for name in columns_of(metas):
            if rows.many and name in PIECES:
                types.set(name, PIECES[name])
            else:
                types.add(name, [cell(meta, name) for meta in metas])
    return types.settled()
