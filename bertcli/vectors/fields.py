"""Vectors beside the other fields of their records: JSONL, CSV and Parquet.

- JSONL and CSV hold a number in the fewest digits that read back to it in its own precision:
  float32 0.1 is ``0.1``, not ``0.10000000149011612``.
- CSV and Parquet have the columns id, n_tokens, truncated (0 where nothing was cut), the fields
  kept in any row, and embedding, which is a JSON list in CSV and a fixed-size list in Parquet.
- Parquet has row groups of one size. A column with objects, or values of several kinds, is text:
  JSON where a value is no text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from bertcli.encoding import Written
from bertcli.tables import fields_of
from bertcli.vectors.spool import Row, Rows
from bertcli.writers import writer_of

if TYPE_CHECKING:
    import numpy as np

VECTOR = "embedding"
FIRST = ("id", "n_tokens", "truncated")


class Text(Written):
    """A vector [D...] as JSON."""

    def __init__(self, vector: np.ndarray) -> None:
        self.json = _text(vector)

    @property
    def numbers(self) -> list[int]:
        """The numbers, read back."""
        found: list[int] = json.loads(self.json)
        return found

    def __len__(self) -> int:
        return len(self.numbers)


def _text(vector: np.ndarray) -> str:
    if vector.ndim > 1:
        return f"[{','.join(map(_text, vector))}]"
    return f"[{','.join(vector.astype('U32').tolist())}]"


def lines(metas: Sequence[Row], vectors: np.ndarray) -> list[Row]:
    """Return rows for JSONL: the vector stands behind the id."""
    return [
        {
            **({"id": meta["id"]} if "id" in meta else {}),
            VECTOR: Text(vector),
            **{name: value for name, value in meta.items() if name not in ("id", VECTOR)},
        }
        for meta, vector in zip(metas, vectors, strict=True)
    ]


def cells(
    metas: Sequence[Row], vectors: np.ndarray, columns: Sequence[str] | None = None
) -> list[Row]:
    """Return rows for CSV: every row has every column."""
    columns = columns or columns_of(metas)
    return [
        {**{name: _cell(meta, name) for name in columns}, VECTOR: Text(vector)}
        for meta, vector in zip(metas, vectors, strict=True)
    ]


def columns_of(metas: Sequence[Row]) -> list[str]:
    """Return the columns beside the vector, in the order of their first appearance."""
    return [name for name in dict.fromkeys([*FIRST, *fields_of(metas)]) if name != VECTOR]


def _cell(meta: Row, name: str) -> Any:
    return meta.get(name, 0 if name == "truncated" else None)


def jsonl(file: IO[bytes], rows: Rows) -> None:
    """Write all rows as JSON, one a line."""
    with writer_of("jsonl")(file) as write:
        for metas, vectors in zip(rows.metas(), rows.vectors(), strict=True):
            write(lines(metas, vectors))


def csv(file: IO[bytes], rows: Rows) -> None:
    """Write all rows as a table in text. There is no header without a row."""
    columns = list(dict.fromkeys(name for metas in rows.metas() for name in columns_of(metas)))
    with writer_of("csv")(file) as write:
        for metas, vectors in zip(rows.metas(), rows.vectors(), strict=True):
            write(cells(metas, vectors, columns))


def parquet(file: IO[bytes], rows: Rows) -> None:
    """Write all rows as Parquet, a row group a chunk."""
    import pyarrow as arrow
    from pyarrow.parquet import ParquetWriter

    shape, dtype = rows.kind()
    vector = arrow.from_numpy_dtype(dtype)
    for size in reversed(shape[1:]):
        vector = arrow.list_(vector, size)
    columns = _types(rows)
    schema = arrow.schema([*columns.items(), (VECTOR, vector)])
    with ParquetWriter(file, schema, use_dictionary=list(columns)) as writer:
        for metas, vectors in zip(rows.metas(), rows.vectors(), strict=True):
            values = arrow.array(vectors.reshape(-1))
            for size in reversed(shape[1:]):
                values = arrow.FixedSizeListArray.from_arrays(values, size)
            found = [_column(metas, name, kind) for name, kind in columns.items()]
            writer.write_table(arrow.table([*found, values], schema=schema))


def _types(rows: Rows) -> dict[str, Any]:
    """Return the Arrow type of every column, from all its values."""
    import pyarrow as arrow

    types: dict[str, Any] = dict.fromkeys(columns_of([]), arrow.null())
    types["n_tokens"] = types["truncated"] = arrow.int64()
    for metas in rows.metas():
        for name in columns_of(metas):
            values = [_cell(meta, name) for meta in metas]
            types[name] = _common(types.get(name, arrow.null()), values)
    empty = [name for name, kind in types.items() if kind == arrow.null()]
    return types | dict.fromkeys(empty, arrow.string())


def _common(kind: Any, values: Sequence[Any]) -> Any:
    """Return the type that holds values of this type and these values."""
    import pyarrow as arrow

    try:
        kinds = [kind, arrow.array(values).type]
        schemas = [arrow.schema([("", one)]) for one in kinds]
        kind = arrow.unify_schemas(schemas, promote_options="permissive").field(0).type
        return arrow.string() if "struct" in str(kind) else kind  # objects differ in their keys
    except (arrow.ArrowException, OverflowError):
        return arrow.string()


def _column(metas: Sequence[Row], name: str, kind: Any) -> Any:
    import pyarrow as arrow

    values = [_cell(meta, name) for meta in metas]
    if kind == arrow.string():
        values = [one if one is None or isinstance(one, str) else _dump(one) for one in values]
    elif kind == arrow.float64():  # which Arrow makes of no integer above 2**53
        values = [one if one is None else float(one) for one in values]
    return arrow.array(values, type=kind)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
