"""Vectors, or weights of terms, beside the other fields of records: JSONL, CSV and Parquet.

- JSONL and CSV hold a number in the fewest digits that read back to it in its own precision:
  float32 0.1 is ``0.1``, not ``0.10000000149011612``.
- A record with a vector for each of its tokens or words has them all in the field vectors: in JSONL
  behind what they belong to, in Parquet as a list of fixed-size lists. CSV does not hold them.
- Weights of terms are in the field terms in JSONL: tokens and their weights, the largest first.
  Parquet has the columns indices and values, lists of as many numbers. In a spool, a text has a row
  for each of its terms: the id of the token, and the weight.
- CSV and Parquet have the columns id, n_tokens, truncated (0 where nothing was cut), the fields
  kept in any row, and embedding, which is a JSON list in CSV and a fixed-size list in Parquet.
- Parquet has row groups of one size. A column with objects, or values of several kinds, is text:
  JSON where a value is no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bertcli.files.array_json import json_of
from bertcli.files.tables import NumbersText, TableHeader, fields_of
from bertcli.files.writers import writer_of
from bertcli.vectors.spool import START, STOP, Row, Rows, Vectors

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames

VECTOR, VECTORS = "embedding", "vectors"  # of a record with one, and with several
TERMS, INDICES, VALUES = "terms", "indices", "values"
TERM_COLUMNS = ((0, np.int32), (1, np.float32))  # of the rows of a text in a spool
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
WRITTEN_OF_TERMS = (*FIRST, TERMS, INDICES, VALUES, START, STOP)


def lines(metas: Sequence[Row], vectors: Vectors, terms: TermNames | None = None) -> list[Row]:
    """Return rows for JSONL: what is made of a record comes after its id and what it belongs to.

    Records have a vector each, or several, [k, D...], or the weights of ``terms``, [k, 2].
    """
    if terms:
        first, name = ["id"], TERMS
        values: Iterable[Any] = map(terms.of, vectors)
    else:
        values = map(NumbersText, json_of(vectors))
        first, name = ["id"], VECTOR
        if isinstance(vectors, list):
            first, name = ["id", *PIECES], VECTORS
    if isinstance(vectors, list):
        metas = [without_place(meta) for meta in metas]
    return [
        {
            **{key: meta[key] for key in first if key in meta},
            name: value,
            **{key: meta[key] for key in meta if key not in (*first, name)},
        }
        for meta, value in zip(metas, values, strict=True)
    ]


def without_place(meta: Row) -> Row:
    """Return the fields of a record less the rows that it has in a spool."""
    return {name: value for name, value in meta.items() if name not in (START, STOP)}


def cells(
    metas: Sequence[Row], vectors: Vectors, columns: Sequence[str] | None = None
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
    with writer_of("jsonl")(file) as write:
        for metas, vectors in portions(rows):
            write(lines(metas, vectors, rows.terms))
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
    from bertcli.files.parquet import vectors_writer

    made = _made_types(rows)
    columns = {key: kind for key, kind in column_types(rows).items() if key not in made}
    with vectors_writer(file, columns, made) as write:
        for metas, vectors in rows.records():
            found = {key: [cell(meta, key) for meta in metas] for key in columns}
            parts: Sequence[Vectors] = [vectors]
            if rows.terms:
                parts = [[one[:, at].astype(kind) for one in vectors] for at, kind in TERM_COLUMNS]
            write(found, dict(zip(made, parts, strict=True)))
            yield _count(vectors, rows)


def _made_types(rows: Rows) -> dict[str, Any]:
    """Return the columns of what is made of a record, and their types."""
    from bertcli.files.arrow import list_of, type_of, type_of_array

    if rows.terms:
        return {INDICES: type_of("list<int32>"), VALUES: type_of("list<float32>")}
    shape, dtype = rows.kind()
    vector = type_of_array(shape[1:], dtype)
    return {VECTORS: list_of(vector)} if rows.many else {VECTOR: vector}


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
