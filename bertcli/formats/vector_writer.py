"""Write a vector file from all its rows, with one function per file layout.

- NPY, NPZ and safetensors contain the array ``embeddings`` [N, D...], with rows in input order.
  Ids, if the input has any, are in the array ``ids`` of NPZ, strings [N], and otherwise in an index
  beside the file. The index also maps records to rows if a record has several.
- JSONL, CSV and Parquet contain the other fields as well. JSONL and CSV write a number with the
  fewest digits that read back to it as float32, also for float16: float32 0.1 is ``0.1``.
- The vectors of a record's tokens or words are in the field vectors: in JSONL after the tokens or
  words, in Parquet as a list of fixed-size lists. CSV does not support them.
- Weights of terms are in the field terms in JSONL: tokens and their weights, in descending order.
  Parquet has the columns indices and values, lists of equal length. In `Rows`, a text has one row
  per term: token id and weight.
- CSV and Parquet have the columns id, n_tokens, truncated (0 if nothing was truncated), all carried
  fields, and embedding, which is a JSON list in CSV and a fixed-size list in Parquet.
- Parquet has row groups of at least 16 MB. A column with objects, or with values of several types,
  is text: values other than text become JSON.

Memory is limited to one chunk of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice, repeat
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertcli.formats.arrays import ArrayParts, write_arrays
from bertcli.formats.jsonl import json_of, to_lines
from bertcli.formats.precision import RANGED, quantize, ranges_of
from bertcli.formats.registry import FORMATS, Holds
from bertcli.formats.tables import NumbersText, TableHeader, compact, fields_of
from bertcli.formats.vector_files import (
    ARRAY,
    DIGEST,
    ID,
    IDS,
    INDICES,
    ROW,
    START,
    STOP,
    TERMS,
    VALUES,
    VECTOR,
    VECTORS,
)
from bertcli.formats.writers import writer_of
from bertcli.io.output_files import FIELDS, RAW_VECTORS
from bertcli.io.system_calls import opener, sync
from bertcli.io.typed_json import parse

Vectors = Sequence[np.ndarray] | np.ndarray  # per record: one vector, or several
Row = dict[str, Any]
Floats = NDArray[np.float32]

CHUNK_BYTES = 8 << 20  # of vectors, read at once
MAX_CHUNK_ROWS = 8192
TERM_TYPES = {INDICES: "list<int32>", VALUES: "list<float32>"}  # of the rows of a text
RECORDS_PER_WRITE = 256  # encoded as text together, which needs 3 times their memory
FIRST = ("id", "n_tokens", "truncated")
PIECES = {  # the units of several vectors -> Arrow types, which empty lists do not show
    "tokens": "list<string>",
    "words": "list<string>",
    "offsets": "list<list<int32>>",
    "sequence_ids": "list<int8>",
}
WRITTEN = (*FIRST, VECTOR)  # output fields, which no carried field may be called
WRITTEN_OF_MANY = (*FIRST, *PIECES, VECTORS, START, STOP)  # for several vectors per record
WRITTEN_OF_TERMS = (*FIRST, TERMS, INDICES, VALUES, START, STOP)


class TermWriter(Protocol):
    """The vocabulary whose tokens are terms."""

    @property
    def width(self) -> int:
        """The size of the vocabulary."""

    def of(self, terms: np.ndarray) -> Mapping[str, Any]:
        """Return token -> weight for the terms [k, 2] of a text."""


@dataclass(frozen=True)
class Fields:
    """The output fields of some records besides their vectors, as columns; None: no values."""

    count: int  # of records
    id: Sequence[Any] | None = None
    n_tokens: Sequence[int] | None = None
    truncated: Sequence[int] | None = None
    others: Sequence[Row | None] | None = None  # units of the vectors, and carried fields
    sizes: Sequence[int] | None = None  # numbers of vectors per record, if not always one
    digests: Sequence[str] | None = None  # of the texts of an update

    @property
    def names(self) -> list[str]:
        """The column names in tables, in the order of first appearance."""
        return [*FIRST, *fields_of(filter(None, self.others or ()))]

    def column(self, name: str) -> Any:
        """Return the values of a column; 0 if nothing was truncated."""
        if name in FIRST:
            return getattr(self, name)
        return [(row or {}).get(name) for row in self.others or repeat(None, self.count)]

    def rows(self, name: str = "", values: Iterable[Any] = repeat(None)) -> Iterator[Row]:
        """Yield the fields of each record, with its result as field ``name``, if given.

        The result follows the id and, for several vectors, their units.
        """
        cells = (
            repeat(None, self.count) if column is None else column
            for column in (self.id, values, self.n_tokens, self.truncated, self.others)
        )
        for key, value, length, cut, other in zip(*cells, strict=False):
            row: Row = {} if key is None else {ID: key}
            if name in ("", VECTORS) and other:
                row |= {piece: other[piece] for piece in PIECES if piece in other}
            if name:
                row[name] = value
            if length is not None:
                row["n_tokens"] = length
            if cut:
                row["truncated"] = cut
            yield row | other if other else row


@dataclass(frozen=True)
class Rows:
    """All rows of a run, which can be read several times.

    The number of rows in a chunk depends only on their shape, so that the output does not depend on
    how they were written.
    """

    folder: Path
    count: int
    records: int
    shape: tuple[int, ...]
    precision: str
    many: bool = False  # True: a record may have several rows
    ids: bool = False  # True: an archive has the ids of records
    terms: TermWriter | None = None  # the vocabulary, if rows are terms of texts

    @cached_property
    def step(self) -> int:
        """The number of rows in a chunk."""
        return min(MAX_CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, 4 * math.prod(self.shape))))

    @cached_property
    def ranges(self) -> Floats | None:
        """The minimum and maximum of each dimension for int8 [2, D]; None if not needed."""
        if self.precision not in RANGED:
            return None
        return ranges_of(self.raw()) if self.count else np.zeros((2, *self.shape), np.float32)

    def raw(self) -> Iterator[np.ndarray]:
        """Yield the computed vectors: float32 [<= step, D...]."""
        with open(self.folder / RAW_VECTORS, "rb") as file:
            for start in range(0, self.count, self.step):
                yield self._read(file, min(self.step, self.count - start))

    def vectors(self) -> Iterator[np.ndarray]:
        """Yield the vectors in output precision: [<= step, D...]."""
        return map(self._converted, self.raw())

    def fields(self) -> Iterator[Fields]:
        """Yield the other fields of some records, in the order written."""
        with open(self.folder / FIELDS, "rb") as lines:
            for line in lines:
                yield Fields(**parse(line))

    def texts_of_ids(self) -> Iterator[list[str]]:
        """Yield lists of record ids as strings: numbers as in JSON, missing ids as ""."""
        for fields in self.fields():
            ids = ("" if key is None else key for key in fields.id or [None] * fields.count)
            yield [key if isinstance(key, str) else compact(key) for key in ids]

    def portions(self) -> Iterator[tuple[Fields, Vectors]]:
        """Yield the other fields of records, and the vectors of each: [D...], or [k, D...]."""
        with open(self.folder / RAW_VECTORS, "rb") as file:
            for fields in self.fields():
                sizes = fields.sizes or [1] * fields.count
                vectors = self._converted(self._read(file, sum(sizes)))
                yield fields, _split(vectors, sizes) if self.many else vectors

    def _converted(self, vectors: np.ndarray) -> np.ndarray:
        return quantize(vectors, self.precision, self.ranges)

    def _read(self, file: IO[bytes], rows: int) -> np.ndarray:
        flat = np.fromfile(file, "<f4", rows * math.prod(self.shape))
        return flat.reshape(rows, *self.shape)

    def shape_and_dtype(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and dtype of all output vectors together."""
        if self.terms:
            return (self.records, self.terms.width), np.dtype(np.float32)
        sample = self._converted(np.zeros((1, *self.shape), np.float32))
        return (self.count, *sample.shape[1:]), sample.dtype


def _split(vectors: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Return the vectors [T, D] split by record, [size, D] each."""
    ends = accumulate(sizes)
    return [vectors[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def write_index(rows: Rows, path: Path, *, with_fields: bool) -> None:
    """Write an index from records to their rows, with their fields unless the output has them."""
    row = 0
    with open(path, "wb", opener=opener(None)) as file:
        for fields in rows.fields():
            index = []
            digests = fields.digests or repeat("")
            sizes = fields.sizes or repeat(1)
            for record, size, digest in zip(fields.rows(), sizes, digests, strict=False):
                entry: Row = {ROW: row}
                if rows.many and not with_fields:
                    entry = {ID: None, START: row, STOP: row + size} | record
                elif not with_fields:
                    entry = {ROW: row, ID: None} | record
                if digest:
                    entry[DIGEST] = digest
                index.append(entry)
                row += size
            file.write(to_lines(index).encode())
        sync(file)


def write_vectors(file: IO[bytes], form: str, rows: Rows) -> None:
    """Write vectors, or terms as a sparse matrix [n, V] like `scipy.sparse.save_npz`, and ids."""
    shape, dtype = rows.shape_and_dtype()
    arrays = {ARRAY: _array(dtype.str, shape, rows.vectors())}
    if rows.terms:
        counts = chain.from_iterable(fields.sizes or () for fields in rows.fields())
        ends = accumulate(counts, initial=0)
        arrays = {
            "indices": _array("<i4", (rows.count,), (terms[:, 0] for terms in rows.vectors())),
            "data": _array("<f4", (rows.count,), (terms[:, 1] for terms in rows.vectors())),
            "indptr": _array("<i8", (shape[0] + 1,), ends),
            "shape": _array("<i8", (len(shape),), [shape]),
            "format": _array("|S3", (), [b"csr"]),
        }
    if rows.ids and FORMATS[form].can_hold(Holds.IDS):
        longest = max(map(len, chain.from_iterable(rows.texts_of_ids())), default=0)
        arrays[IDS] = _array(f"<U{max(1, longest)}", shape[:1], rows.texts_of_ids())
    write_arrays(file, form, arrays)


def _array(kind: str, shape: tuple[int, ...], parts: Iterable[Any]) -> ArrayParts:
    return ArrayParts(kind, shape, (np.asarray(part, kind).tobytes() for part in parts))


def text_rows(
    form: str,
    fields: Fields,
    vectors: Vectors,
    terms: TermWriter | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield rows for JSONL or CSV of records with one vector each, or several, [k, D...].

    In JSONL, a record may have weights of ``terms``, [k, 2], instead. In CSV every row has all
    ``columns``, by default those of any row.
    """
    if FORMATS[form].has_header:
        columns = (*(columns or fields.names), VECTOR)
        cells = map(fields.column, columns[:-1])
        rows = zip(*cells, map(NumbersText, json_of(vectors)), strict=True)
        return (dict(zip(columns, row, strict=True)) for row in rows)
    values: Iterable[Any] = map(terms.of, vectors) if terms else map(NumbersText, json_of(vectors))
    return fields.rows(TERMS if terms else VECTORS if isinstance(vectors, list) else VECTOR, values)


def write_text(file: IO[bytes], form: str, rows: Rows) -> None:
    """Write all records as JSON, one per line, or as a text table."""
    is_table = FORMATS[form].has_header
    names = (fields.names for fields in rows.fields()) if is_table else ()
    columns = [*dict.fromkeys(chain(FIRST, *names))]
    with writer_of(form)(file) as write:
        if is_table and not rows.count:
            write([TableHeader.fromkeys([*columns, VECTOR])])
        for fields, vectors in rows.portions():
            records = text_rows(form, fields, vectors, rows.terms, columns)
            while some := [*islice(records, RECORDS_PER_WRITE)]:
                write(some)


def write_parquet(file: IO[bytes], form: str, rows: Rows) -> None:
    """Write all records as Parquet, with column types that hold all values."""
    from bertcli.formats import parquet

    fields_types = _types_of_fields(rows)
    if rows.terms:
        vector_types = {name: parquet.type_of(type_) for name, type_ in TERM_TYPES.items()}
    else:
        shape, dtype = rows.shape_and_dtype()
        vector = parquet.type_of_array(shape[1:], dtype)
        vector_types = {VECTORS: parquet.pyarrow.list_(vector)} if rows.many else {VECTOR: vector}
    with parquet.columns_writer(file, fields_types | vector_types, [*fields_types]) as write:
        for fields, vectors in rows.portions():
            columns: dict[str, Any] = {name: fields.column(name) for name in fields_types}
            if rows.terms:
                columns[INDICES] = [terms[:, 0] for terms in vectors]
                columns[VALUES] = [terms[:, 1] for terms in vectors]
            else:
                columns[VECTORS if rows.many else VECTOR] = vectors
            write(columns)


def _types_of_fields(rows: Rows) -> dict[str, Any]:
    """Return the Arrow types of the columns besides the vectors, which hold the values of all rows.

    Columns with objects, or without any value, are text.
    """
    from bertcli.formats import parquet

    types: dict[str, Any] = dict.fromkeys(FIRST)
    types |= dict.fromkeys(FIRST[1:], parquet.type_of("int64"))
    for fields in rows.fields():
        for name in fields.names:
            if rows.many and name in PIECES:
                types[name] = parquet.type_of(PIECES[name])
            else:
                types[name] = parquet.common_type(types.get(name), fields.column(name))
    text = parquet.type_of("string")
    return {
        name: text if type_ is None or "struct" in str(type_) else type_
        for name, type_ in types.items()
    }
