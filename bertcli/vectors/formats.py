"""A file of vectors from all its rows, one function a format, in the memory of one chunk.

- NPY, NPZ and safetensors hold the array ``embeddings`` [N, D...], rows in the order of the input.
  Ids, where the input has any, are in the array ``ids`` of NPZ, strings [N], and for the others in
  an index beside the file. Where a record has several rows, the index says which.
- JSONL, CSV and Parquet hold the other fields as well: those are in `rows`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bertcli.errors import OutputError
from bertcli.files import safetensors
from bertcli.files.npy import header_of
from bertcli.files.streams import packed
from bertcli.files.system_calls import opener, sync
from bertcli.files.writers import writer_of
from bertcli.files.zips import npz_archive
from bertcli.vectors.journal import Files
from bertcli.vectors.precision import RANGED, quantize, ranges_of
from bertcli.vectors.refusals import refuse_stream
from bertcli.vectors.rows import cells, csv, jsonl, lines, parquet
from bertcli.vectors.spool import ID, STOP, Convert, Row, Rows, Vectors

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames

WriteVectors = Callable[[Sequence[Row], Vectors], None]

NAME, IDS = "embeddings", "ids"  # of the arrays
LONGEST_ID = 1024  # characters of an id in NPZ, where every id takes the room of the longest
SAFE = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}


def at_precision(rows: Rows, precision: str) -> tuple[Rows, dict[str, list[Any]] | None]:
    """Return the rows to be written in this precision, and the ranges that int8 is based on."""
    if precision not in RANGED:
        return replace(rows, convert=converter(precision)), None
    ranges = ranges_of(rows.raw()) if rows.count else np.zeros((2, *rows.shape), np.float32)
    low, high = ranges.tolist()
    return replace(rows, convert=converter(precision, ranges)), {"min": low, "max": high}


def converter(precision: str, ranges: np.ndarray | None = None) -> Convert:
    """Return what turns float32 vectors [n, D...] into those of a precision."""
    if precision == "float32":
        return lambda vectors: vectors
    return lambda vectors: quantize(vectors, precision, ranges)


def is_spool(files: Files, form: str, precision: str) -> bool:
    """Whether the spool becomes the output by writing its header."""
    return form == "npy" == files.output.suffix.lower()[1:] and precision == "float32"


def make(rows: Rows, form: str, mode: int | None = None) -> Iterator[int]:
    """Make the whole file beside its name, and put it on the disk; yield the rows on the way."""
    files = rows.files
    try:
        with open(files.whole, "wb", opener=opener(mode)) as file:
            with packed(files.output, file) as inner:
                yield from WRITERS[form](inner, rows)
            sync(file)
    except BaseException:
        files.whole.unlink(missing_ok=True)  # makes room for a second attempt
        raise


def put_header(rows: Rows) -> None:
    """Make the spool an NPY file."""
    with open(rows.files.vectors, "r+b") as file:
        file.write(_head(rows))
        sync(file)


def _head(rows: Rows) -> bytes:
    shape, dtype = rows.kind()
    return header_of(dtype.str, shape)


def _npy(file: IO[bytes], rows: Rows) -> Iterator[int]:
    file.write(_head(rows))
    yield from _data(file, rows)


def _data(file: IO[bytes], rows: Rows) -> Iterator[int]:
    for vectors in rows.vectors():
        file.write(vectors.tobytes())
        yield len(vectors)


def _npz(file: IO[bytes], rows: Rows) -> Iterator[int]:
    if rows.terms:
        yield from _csr(file, rows)
        return
    with npz_archive(file) as member:
        with member(NAME) as array:
            yield from _npy(array, rows)
        if rows.ids:
            with member(IDS) as array:
                _ids(array, rows, rows.count)


def _csr(file: IO[bytes], rows: Rows) -> Iterator[int]:
    """Write terms as a sparse matrix [n, V] in compressed rows, as `scipy.sparse.save_npz` does."""
    shape, _ = rows.kind()
    with npz_archive(file) as member:
        for name, at, kind in (("indices", 0, "<i4"), ("data", 1, "<f4")):
            with member(name) as array:
                array.write(header_of(kind, (rows.count,)))
                for some in rows.vectors():
                    array.write(some[:, at].astype(kind).tobytes())
        with member("indptr") as array:
            array.write(header_of("<i8", (shape[0] + 1,)) + bytes(8))
            for metas in rows.metas():
                array.write(np.array([meta[STOP] for meta in metas], "<i8").tobytes())
        for name, value in (("shape", np.array(shape, "<i8")), ("format", np.array(b"csr"))):
            with member(name) as array:
                array.write(header_of(value.dtype.str, value.shape) + value.tobytes())
        if any(ID in meta for metas in rows.metas() for meta in metas):
            with member(IDS) as array:
                _ids(array, rows, shape[0])
    yield rows.count


def _ids(file: IO[bytes], rows: Rows, count: int) -> None:
    """Write the ids as an array of strings, each in the room of the longest."""
    longest = max((len(id_text(meta)) for some in rows.metas() for meta in some), default=1)
    kind = np.dtype(f"<U{max(1, longest)}")
    file.write(header_of(kind.str, (count,)))
    for some in rows.metas():
        file.write(np.array([id_text(meta) for meta in some], kind).tobytes())


def id_text(meta: Row) -> str:
    """Return the id of a row as a string: a number as JSON writes it, and none as ""."""
    value = "" if meta.get(ID) is None else meta[ID]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def refuse_long_ids(metas: Sequence[Row], first: int) -> None:
    """Raise OutputError for an id that an array of strings has no room for."""
    for row, meta in enumerate(metas, first):
        if ID not in meta:
            continue
        text = id_text(meta)
        if len(text) > LONGEST_ID or text.endswith("\0"):
            what = "ends in NUL, which NPZ cannot hold"
            if len(text) > LONGEST_ID:
                what = f"has {len(text):,} characters, and NPZ holds ids of at most {LONGEST_ID:,}"
            raise OutputError(
                f"record {row + 1}: its id {what}",
                "write NPY, with the ids in an index next to it, or Parquet",
            )


def _safetensors(file: IO[bytes], rows: Rows) -> Iterator[int]:
    shape, dtype = rows.kind()
    file.write(safetensors.header_of({NAME: (SAFE[dtype.name], shape)}))
    yield from _data(file, rows)


# Each yields how many rows it has written since.
WRITERS: dict[str, Callable[[IO[bytes], Rows], Iterator[int]]] = {
    "jsonl": jsonl,
    "csv": csv,
    "npy": _npy,
    "npz": _npz,
    "safetensors": _safetensors,
    "parquet": parquet,
}
WITH_FIELDS = ("jsonl", "csv", "parquet")  # formats that hold more than the vectors


@contextmanager
def vector_writer(
    file: IO[bytes], form: str, precision: str = "float32", terms: TermNames | None = None
) -> Iterator[WriteVectors]:
    """Yield a function that streams rows as JSONL or CSV, the same as those of a file.

    Its vectors are [n, D...], or for JSONL a list of [k, D...], the several of each record, or the
    ``terms`` of that name. In CSV the first rows settle the columns. Raises OutputError for what
    cannot be streamed.
    """
    refuse_stream(form, precision)
    convert = converter(precision)

    def rows_of(metas: Sequence[Row], vectors: Vectors) -> list[Row]:
        if isinstance(vectors, Sequence):
            vectors = vectors if terms else [*map(convert, vectors)]
        else:
            vectors = convert(vectors)
        return cells(metas, vectors) if form == "csv" else lines(metas, vectors, terms)

    with writer_of(form)(file) as write:
        yield lambda metas, vectors: write(rows_of(metas, vectors))
