"""Write a vector file from all its rows, with one function per file layout.

- NPY, NPZ and safetensors contain the array ``embeddings`` [N, D...], with rows in input order.
  Ids, if the input has any, are in the array ``ids`` of NPZ, strings [N], and otherwise in an index
  beside the file. The index also maps records to rows if a record has several.
- JSONL, CSV and Parquet contain the other fields as well. JSONL and CSV write a number with the
  fewest digits that read back to it as float32, also for float16: float32 0.1 is ``0.1``.
- The vectors of a record's tokens or words are in the field vectors: in JSONL after the tokens or
  words, in Parquet as a list of fixed-size lists. CSV does not support them.
- Weights of terms are in the field terms in JSONL: tokens and their weights, in descending order.
  Parquet has the columns indices and values, lists of equal length. In `StoredRows`, a text has one
  row per term: token id and weight.
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

from bertcli.formats.arrays import ArrayToWrite, write_arrays
from bertcli.formats.jsonl import json_of, to_lines
from bertcli.formats.precision import RANGED, quantize, ranges_of
from bertcli.formats.registry import FORMATS, Holds
from bertcli.formats.tables import NumbersText, TableHeader, fields_of, to_compact_json
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
RECORD_COLUMNS = ("id", "n_tokens", "truncated")
UNIT_COLUMNS = {  # the units of several vectors -> Arrow types, which empty lists do not show
    "tokens": "list<string>",
    "words": "list<string>",
    "offsets": "list<list<int32>>",
    "sequence_ids": "list<int8>",
}
# Output fields, which no carried field may be called.
VECTOR_FIELDS = (*RECORD_COLUMNS, VECTOR)
SEVERAL_VECTORS_FIELDS = (*RECORD_COLUMNS, *UNIT_COLUMNS, VECTORS, START, STOP)
TERM_FIELDS = (*RECORD_COLUMNS, TERMS, INDICES, VALUES, START, STOP)


class TermWriter(Protocol):
    """A vocabulary, as needed to write terms, which are its tokens."""

    @property
    def width(self) -> int:
        """The size of the vocabulary."""

    def of(self, terms: np.ndarray) -> Mapping[str, Any]:
        """Return token -> weight for the terms [k, 2] of a text."""


@dataclass(frozen=True)
class OutputFields:
    """What is written of a block of records beside their vectors, as columns; None: no values.

    A run appends its attributes as a line of JSON to the run folder with each block of vectors. It
    is not a `Table`, whose columns all have values: the formats show missing ones differently.
    """

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
        return [*RECORD_COLUMNS, *fields_of(filter(None, self.others or ()))]

    def column(self, name: str) -> Any:
        """Return the values of a column; 0 if nothing was truncated."""
        if name in RECORD_COLUMNS:
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
        for key, value, n_tokens, truncated, other in zip(*cells, strict=False):
            row: Row = {} if key is None else {ID: key}
            if name in ("", VECTORS) and other:
                row |= {unit: other[unit] for unit in UNIT_COLUMNS if unit in other}
            if name:
                row[name] = value
            if n_tokens is not None:
                row["n_tokens"] = n_tokens
            if truncated:
                row["truncated"] = truncated
            yield row | other if other else row


@dataclass(frozen=True)
class StoredRows:
    """The vectors and `OutputFields` of all records of a run, which are read from its run folder.

    They are files and not a `Table`, because they may be larger than memory, and are read several
    times: for the ranges of int8, for column types, and to write them. The number of rows in a
    chunk depends only on their shape, so the output does not depend on how they were stored.
    """

    folder: Path
    count: int
    records: int
    shape: tuple[int, ...]
    precision: str
    has_several_rows: bool = False  # a record may have several rows
    with_ids: bool = False  # an archive has the ids of records
    vocabulary: TermWriter | None = None  # of the terms, if rows are terms of texts

    @cached_property
    def rows_per_chunk(self) -> int:
        """The number of rows in a chunk."""
        return min(MAX_CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, 4 * math.prod(self.shape))))

    @cached_property
    def ranges(self) -> Floats | None:
        """The minimum and maximum of each dimension for int8 [2, D]; None if not needed."""
        if self.precision not in RANGED:
            return None
        return (
            ranges_of(self.float_chunks()) if self.count else np.zeros((2, *self.shape), np.float32)
        )

    def float_chunks(self) -> Iterator[np.ndarray]:
        """Yield the computed vectors: float32 [<= rows_per_chunk, D...]."""
        with open(self.folder / RAW_VECTORS, "rb") as file:
            for start in range(0, self.count, self.rows_per_chunk):
                yield self._read_rows(file, min(self.rows_per_chunk, self.count - start))

    def vector_chunks(self) -> Iterator[np.ndarray]:
        """Yield the vectors in output precision: [<= rows_per_chunk, D...]."""
        return map(self._quantized, self.float_chunks())

    def fields(self) -> Iterator[OutputFields]:
        """Yield the other fields of some records, in the order written."""
        with open(self.folder / FIELDS, "rb") as lines:
            for line in lines:
                yield OutputFields(**parse(line))

    def ids_as_text(self) -> Iterator[list[str]]:
        """Yield lists of record ids as strings: numbers as in JSON, missing ids as ""."""
        for fields in self.fields():
            ids = ("" if key is None else key for key in fields.id or [None] * fields.count)
            yield [key if isinstance(key, str) else to_compact_json(key) for key in ids]

    def blocks(self) -> Iterator[tuple[OutputFields, Vectors]]:
        """Yield the fields and vectors ([D...] or [k, D...] each) of blocks of records."""
        with open(self.folder / RAW_VECTORS, "rb") as file:
            for fields in self.fields():
                sizes = fields.sizes or [1] * fields.count
                vectors = self._quantized(self._read_rows(file, sum(sizes)))
                yield fields, _split_by_record(vectors, sizes) if self.has_several_rows else vectors

    def _quantized(self, vectors: np.ndarray) -> np.ndarray:
        return quantize(vectors, self.precision, self.ranges)

    def _read_rows(self, file: IO[bytes], rows: int) -> np.ndarray:
        flat = np.fromfile(file, "<f4", rows * math.prod(self.shape))
        return flat.reshape(rows, *self.shape)

    def shape_and_dtype(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and dtype of all output vectors together."""
        if self.vocabulary:
            return (self.records, self.vocabulary.width), np.dtype(np.float32)
        sample = self._quantized(np.zeros((1, *self.shape), np.float32))
        return (self.count, *sample.shape[1:]), sample.dtype


def _split_by_record(vectors: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Return the vectors [T, D] split by record, [size, D] each."""
    ends = accumulate(sizes)
    return [vectors[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def write_index(rows: StoredRows, path: Path, *, with_fields: bool) -> None:
    """Write an index from records to their rows, with their fields unless the output has them."""
    row = 0
    with open(path, "wb", opener=opener(None)) as file:
        for fields in rows.fields():
            index = []
            digests = fields.digests or repeat("")
            sizes = fields.sizes or repeat(1)
            for record, size, digest in zip(fields.rows(), sizes, digests, strict=False):
                entry: Row = {ROW: row}
                if rows.has_several_rows and not with_fields:
                    entry = {ID: None, START: row, STOP: row + size} | record
                elif not with_fields:
                    entry = {ROW: row, ID: None} | record
                if digest:
                    entry[DIGEST] = digest
                index.append(entry)
                row += size
            file.write(to_lines(index).encode())
        sync(file)


def write_vectors(file: IO[bytes], file_format: str, rows: StoredRows) -> None:
    """Write vectors, or terms as a sparse matrix [n, V] like `scipy.sparse.save_npz`, and ids.

    The format is npy, npz or safetensors.
    """
    shape, dtype = rows.shape_and_dtype()
    arrays = {ARRAY: _array_to_write(dtype.str, shape, rows.vector_chunks())}
    if rows.vocabulary:
        token_ids = (terms[:, 0] for terms in rows.vector_chunks())
        weights = (terms[:, 1] for terms in rows.vector_chunks())
        counts = chain.from_iterable(fields.sizes or () for fields in rows.fields())
        ends = accumulate(counts, initial=0)
        arrays = {
            "indices": _array_to_write("<i4", (rows.count,), token_ids),
            "data": _array_to_write("<f4", (rows.count,), weights),
            "indptr": _array_to_write("<i8", (shape[0] + 1,), ends),
            "shape": _array_to_write("<i8", (len(shape),), [shape]),
            "format": _array_to_write("|S3", (), [b"csr"]),
        }
    if rows.with_ids and FORMATS[file_format].can_hold(Holds.IDS):
        longest = max(map(len, chain.from_iterable(rows.ids_as_text())), default=0)
        arrays[IDS] = _array_to_write(f"<U{max(1, longest)}", shape[:1], rows.ids_as_text())
    write_arrays(file, file_format, arrays)


def _array_to_write(dtype: str, shape: tuple[int, ...], blocks: Iterable[Any]) -> ArrayToWrite:
    """Return an array to write, from blocks of its numbers."""
    return ArrayToWrite(dtype, shape, (np.asarray(block, dtype).tobytes() for block in blocks))


def text_rows(
    file_format: str,
    fields: OutputFields,
    vectors: Vectors,
    vocabulary: TermWriter | None = None,
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield rows for JSONL or CSV of records with one vector each, or several, [k, D...].

    With a vocabulary, the vectors are terms [k, 2], for JSONL. In CSV every row has all
    ``columns``, by default those of any row.
    """
    if FORMATS[file_format].has_header:
        columns = (*(columns or fields.names), VECTOR)
        cells = map(fields.column, columns[:-1])
        rows = zip(*cells, map(NumbersText, json_of(vectors)), strict=True)
        return (dict(zip(columns, row, strict=True)) for row in rows)
    if vocabulary:
        return fields.rows(TERMS, map(vocabulary.of, vectors))
    name = VECTORS if isinstance(vectors, list) else VECTOR
    return fields.rows(name, map(NumbersText, json_of(vectors)))


def write_text(file: IO[bytes], file_format: str, rows: StoredRows) -> None:
    """Write all records as JSON Lines or, for formats with a header, as a text table."""
    is_table = FORMATS[file_format].has_header
    names = (fields.names for fields in rows.fields()) if is_table else ()
    columns = [*dict.fromkeys(chain(RECORD_COLUMNS, *names))]
    with writer_of(file_format)(file) as write:
        if is_table and not rows.count:
            write([TableHeader.fromkeys([*columns, VECTOR])])
        for fields, vectors in rows.blocks():
            records = text_rows(file_format, fields, vectors, rows.vocabulary, columns)
            while block := [*islice(records, RECORDS_PER_WRITE)]:
                write(block)


def write_parquet(file: IO[bytes], file_format: str, rows: StoredRows) -> None:
    """Write all records as Parquet, with column types that hold all values."""
    from bertcli.formats import parquet

    field_types = _types_of_fields(rows)
    if rows.vocabulary:
        vector_types = {name: parquet.type_of(type_) for name, type_ in TERM_TYPES.items()}
    else:
        shape, dtype = rows.shape_and_dtype()
        vector = parquet.type_of_array(shape[1:], dtype)
        vector_types = (
            {VECTORS: parquet.pyarrow.list_(vector)} if rows.has_several_rows else {VECTOR: vector}
        )
    column_types = field_types | vector_types
    with parquet.columns_writer(file, column_types, dictionary_columns=[*field_types]) as write:
        for fields, vectors in rows.blocks():
            columns: dict[str, Any] = {name: fields.column(name) for name in field_types}
            if rows.vocabulary:
                columns[INDICES] = [terms[:, 0] for terms in vectors]
                columns[VALUES] = [terms[:, 1] for terms in vectors]
            else:
                columns[VECTORS if rows.has_several_rows else VECTOR] = vectors
            write(columns)


def _types_of_fields(rows: StoredRows) -> dict[str, Any]:
    """Return the Arrow types of the columns besides the vectors, which hold the values of all rows.

    Columns with objects, or without any value, are text.
    """
    from bertcli.formats import parquet

    types: dict[str, Any] = dict.fromkeys(RECORD_COLUMNS)
    types |= dict.fromkeys(RECORD_COLUMNS[1:], parquet.type_of("int64"))
    for fields in rows.fields():
        for name in fields.names:
            if rows.has_several_rows and name in UNIT_COLUMNS:
                types[name] = parquet.type_of(UNIT_COLUMNS[name])
            else:
                types[name] = parquet.common_type(types.get(name), fields.column(name))
    text = parquet.type_of("string")
    return {
        name: text if type_ is None or "struct" in str(type_) else type_
        for name, type_ in types.items()
    }
