"""Read vectors from files, in blocks of rows.

    for block in read_vectors("out.npy"): ...  # [n, D], of the file's own dtype
    for block in read_float_vectors("out.parquet"): ...  # float32, also if they are stored as int8

NPY, NPZ and safetensors: the array `embeddings`, or the only array. JSONL, CSV and Parquet: the
field `embedding`; a line of JSONL may also be a list. A block has at most ROWS_PER_BLOCK rows, and
memory is limited to one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertcli.errors import InputError, option
from bertcli.formats.arrays import array_in, open_arrays
from bertcli.formats.delimited import open_csv
from bertcli.formats.jsonl import array_of, located_objects, read_arrays
from bertcli.formats.precision import OF_BYTES, PRECISIONS, RANGED, restore
from bertcli.formats.registry import (
    FORMATS,
    INPUT_SUFFIXES,
    JSONL,
    OUTPUT_SUFFIXES,
    Holds,
    load,
)
from bertcli.formats.registry import VECTORS as VECTOR_FORMATS
from bertcli.io.output_files import OutputFiles
from bertcli.io.paths import manifest_beside
from bertcli.io.printable import listed
from bertcli.io.publish import FREE_TEMP_SPACE, unwritable
from bertcli.io.streams import on_disk, suffix_of, unreadable
from bertcli.io.typed_json import NOTHING, JsonObject, is_regular, read_object

if TYPE_CHECKING:
    from bertcli.formats.parquet import ParquetTable

Array = NDArray[Any]

ROWS_PER_BLOCK = 2048

# Array names.
ARRAY = "embeddings"
IDS = "ids"

# Field names.
VECTOR = "embedding"  # of a record with one vector
VECTORS = "vectors"  # of a record with several vectors
TERMS = "terms"
INDICES = "indices"
VALUES = "values"

# Names in an index beside a vector file.
ROW = "row"  # of a record with one row
START = "start"  # of the rows of a record
STOP = "stop"
ID = "id"
DIGEST = "digest"

MAKE_AGAIN = "make the vectors again"
SAME_MODEL = (
    f"both must come from one {option('model')}, with the same {option('dim')}, "
    f"{option('layers')} and {option('pooling')}"
)


def read_vectors(path: str) -> Iterator[Array]:
    """Yield the vectors of a file in blocks [<= n, D...] of one dtype; ``-`` is JSONL from stdin.

    Raises InputError for a file that cannot be read, or contains no vectors of equal length.
    """
    seen = 0
    shape = None
    try:
        for block in load(FORMATS[vector_format_of(path)].vector_reader)(path):
            shape = shape or block.shape[1:]
            if not shape or block.dtype.kind not in "fiu":
                raise InputError(
                    f"{path}: holds {block.dtype} of shape {block.shape[1:]} a row, not vectors",
                    "vectors are numbers of shape [rows, dimensions]",
                )
            if block.shape[1:] != shape:
                raise InputError(
                    f"{path}: row {seen} is of shape {block.shape[1:]}, and those before it {shape}"
                )
            seen += len(block)
            yield block
    except OSError as failed:
        raise unreadable(path, failed) from None


def read_float_vectors(path: str, dim: int = 0) -> Iterator[Array]:
    """Yield vectors as float32. Vectors of lower precision are restored with their manifest.

    ``dim`` is the number of dimensions packed into bits. Raises InputError for byte vectors without
    a manifest.
    """
    manifest = manifest_of(path)
    ranges = None
    precision = manifest.choice("precision", PRECISIONS)
    limits = manifest.object("ranges")
    with suppress(KeyError, TypeError, ValueError, OverflowError):  # rejected below, if needed
        ranges = np.array([limits["min"], limits["max"]], np.float32)
    for block in read_vectors(path):
        if block.dtype.kind == "f":
            yield block.astype(np.float32, copy=False)
        elif precision in OF_BYTES:
            if precision in RANGED and (ranges is None or ranges.shape[1:] != block.shape[1:]):
                raise manifest.bad("ranges", f"min and max of shape {block.shape[1:]}")
            yield restore(block, str(precision), ranges, dim)
        else:
            raise InputError(
                f"{path}: holds {block.dtype}, which cannot be converted without its manifest",
                f"keep {manifest_beside(Path(path)).name} next to it, or write float32",
            )


def read_text_vectors(path: str, dim: int, *, any_model: bool = False) -> Iterator[Array]:
    """Yield vectors as `read_float_vectors` does, one per text: [<= n, dim].

    Raises InputError for another number of dimensions, unless vectors of ``any_model`` are allowed.
    """
    for block in read_float_vectors(path, dim):
        if block.ndim != 2 or not (any_model or block.shape[1] == dim):
            sizes = " x ".join(map(str, block.shape[1:]))
            raise InputError(f"{path}: has {sizes} dimensions, and the model {dim}", SAME_MODEL)
        yield block


def memory_mapped(blocks: Iterable[Array], dtype: Any = np.float32) -> Array:
    """Return all rows [n, D...] in a memory-mapped temporary file, for random access.

    The file has no name, so a kill leaves nothing behind. Raises OutputError if the disk is full.
    """
    count = 0
    shape = tuple[int, ...]()
    try:
        with TemporaryFile() as file:
            for block in blocks:
                count += len(block)
                shape = block.shape[1:]
                file.write(block.astype(dtype, copy=False).tobytes())
            file.flush()
            if count * math.prod(shape):
                return np.memmap(file, dtype, "r", shape=(count, *shape))
    except OSError as failed:
        raise unwritable(gettempdir(), failed, FREE_TEMP_SPACE) from None
    return np.zeros((count, *shape), dtype)


def manifest_of(path: str) -> JsonObject:
    """Return the manifest of a vector file, or an empty one.

    Raises InputError for a damaged manifest.
    """
    return NOTHING if path == "-" else read_object(manifest_beside(Path(path)), InputError)


def vector_format_of(path: str) -> str:
    """Return the format of a file by its suffix. Raises InputError if it cannot hold vectors."""
    if path == "-":
        return JSONL
    file_format = (INPUT_SUFFIXES | OUTPUT_SUFFIXES).get(suffix_of(path), "")
    if file_format not in VECTOR_FORMATS:
        known = ", ".join(VECTOR_FORMATS)
        raise InputError(f"{path}: unknown format of vectors", f"known: {known}")
    return file_format


def array_vectors(path: str) -> Iterator[Array]:
    """Yield the rows of the array of an NPY, NPZ or safetensors file."""
    with open_arrays(path, path, vector_format_of(path)) as arrays:
        array = array_in(arrays, path, ARRAY)
        yield np.zeros((0, *array.shape[1:]), array.dtype)  # width and type, even without rows
        for block in array.blocks(ROWS_PER_BLOCK):
            yield block if block.size else block[:0]


def json_vectors(path: str) -> Iterator[Array]:
    """Yield the vectors in lines of JSON."""
    return read_arrays(path, VECTOR, ROWS_PER_BLOCK)


def csv_vectors(path: str) -> Iterator[Array]:
    """Yield the vectors in a column of CSV, where each is a JSON list."""
    with open_csv(path) as table:
        if not table.columns:
            return
        _require_column(VECTOR, table.columns, f"{path}: field")
        index = table.columns.index(VECTOR)
        for rows in table.blocks():
            yield array_of([(number, cells[index]) for number, cells in rows], VECTOR, path)


def parquet_vectors(path: str) -> Iterator[Array]:
    """Yield the vectors in a column of Parquet."""
    with open_parquet_columns(path, VECTOR) as table:
        yield from table.arrays(VECTOR, ROWS_PER_BLOCK)


@contextmanager
def open_parquet_columns(path: str, *columns: str) -> Iterator[ParquetTable]:
    """Open a Parquet file. Raises InputError unless it has one column of each of these names."""
    from bertcli.formats.parquet import open_parquet

    with on_disk(path) as path_or_file, open_parquet(path_or_file, path) as table:
        for name in columns:
            _require_column(name, table.names, f"{path}: column")
        yield table


def _require_column(name: str, columns: Sequence[str], location: str) -> None:
    """Raise InputError unless exactly one column has this name. ``location`` begins the message."""
    if name not in columns:
        raise InputError(f"{location} {name!r} not found", f"available: {listed(columns)}")
    if (count := [*columns].count(name)) > 1:
        raise InputError(
            f"{location} {name!r} is there {count} times", "give each column its own name"
        )


# --- several vectors of a text, or its terms ---

CSR_ARRAYS = (INDICES, "data", "indptr")  # of a sparse matrix

Lists = list[np.ndarray]


class TermReader(Protocol):
    """A vocabulary, as needed to read terms, which are its tokens."""

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if it is not in the vocabulary."""


def read_vector_lists(path: str, vocabulary: TermReader | None = None) -> Iterator[Lists]:
    """Yield lists of the token vectors [L, D] of texts.

    With a vocabulary, yield the terms [k, 2] that `bertcli embed --sparse` wrote: ids and weights.
    Raises InputError for a file that contains none.
    """
    entry = FORMATS[vector_format_of(path)]
    if not entry.can_hold(Holds.TERMS if vocabulary else Holds.SEVERAL_VECTORS):
        what = "weights of terms" if vocabulary else "vectors of tokens"
        raise InputError(f"{path}: {entry.name} holds no {what}")
    if entry.is_json:
        return _lists_of_json(path, vocabulary)
    if entry.is_columnar:
        return _terms_of_parquet(path) if vocabulary else _lists_of_parquet(path)
    return _terms_of_matrix(path) if vocabulary else _lists_of_array(path)


def _lists_of_json(path: str, vocabulary: TermReader | None) -> Iterator[Lists]:
    for objects in located_objects(path):
        if vocabulary:
            yield [_terms_of_object(row, where, vocabulary) for where, row in objects]
        else:
            yield [_matrix_of(row.get(VECTORS), where) for where, row in objects]


def _lists_of_parquet(path: str) -> Iterator[Lists]:
    with open_parquet_columns(path, VECTORS) as table:
        for _, columns in table.columns((VECTORS,)):
            yield [_matrix_of(vectors, path) for vectors in columns[VECTORS]]


def _terms_of_parquet(path: str) -> Iterator[Lists]:
    with open_parquet_columns(path, INDICES, VALUES) as table:
        for _, columns in table.columns((INDICES, VALUES)):
            texts = zip(columns[INDICES], columns[VALUES], strict=True)
            yield [_matrix_of(terms, path).T for terms in texts]


def _lists_of_array(path: str) -> Iterator[Lists]:
    vectors = np.asarray(memory_mapped(read_float_vectors(path)))
    offsets = _row_offsets_in_index(path)
    if offsets[-1] > len(vectors):
        raise InputError(f"{path}: has fewer rows than its texts", MAKE_AGAIN)
    yield from _split_by_text(vectors, offsets)


def _row_offsets_in_index(path: str) -> list[int]:
    """Return the row offsets of texts [n + 1], from the index beside an array file.

    Raises InputError if the index does not contain them.
    """
    index = OutputFiles(Path(path)).index
    if not is_regular(index, InputError, MAKE_AGAIN):
        raise InputError(f"{index}: file not found; it says which rows are whose", MAKE_AGAIN)
    offsets = [0]
    for rows in located_objects(str(index)):
        for where, row in rows:
            start = row.get(START)
            stop = row.get(STOP)
            if start != offsets[-1] or not isinstance(stop, int) or stop < start:
                raise InputError(f"{where}: not the rows behind those of the text before")
            offsets.append(stop)
    return offsets


def _split_by_text(rows: Array, offsets: Sequence[int]) -> Iterator[Lists]:
    """Yield lists of the rows of each text; ``offsets`` [n + 1] are those of the texts' rows."""
    for start in range(0, len(offsets) - 1, ROWS_PER_BLOCK):
        first, *stops = offsets[start : start + ROWS_PER_BLOCK + 1]
        yield np.split(rows[first : stops[-1]], np.array(stops[:-1], int) - first)


def _terms_of_object(row: Mapping[str, Any], where: str, vocabulary: TermReader) -> np.ndarray:
    """Return the terms of a JSON object."""
    terms = row.get(TERMS)
    if not isinstance(terms, dict):
        raise InputError(f"{where}: no weights in the field {TERMS!r}")
    ids = [vocabulary.id_of(token) for token in terms]
    if None in ids:
        raise InputError(f"{where}: terms that are not in the vocabulary of this model")
    return _matrix_of([ids, list(terms.values())], where).T


def _matrix_of(value: Any, where: str) -> np.ndarray:
    """Return lists of numbers, all of equal length, as an array."""
    try:
        rows = np.array(value, np.float32)
    except (TypeError, ValueError, OverflowError):
        rows = np.zeros(0, np.float32)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"{where}: no lists of numbers, all of one length", MAKE_AGAIN)
    return rows


def _terms_of_matrix(path: str) -> Iterator[Lists]:
    """Yield the rows of a sparse matrix, as `scipy.sparse.save_npz` writes it."""
    with open_arrays(path, path, vector_format_of(path)) as arrays:
        for name in CSR_ARRAYS:
            if name not in arrays:
                raise InputError(f"{path}: array {name!r} not found", "a CSR matrix has it")
        stored = [arrays[name]() for name in CSR_ARRAYS]
        ids, weights, offsets = (
            np.concatenate([np.zeros(0, array.dtype), *array.blocks()]) for array in stored
        )
    is_complete = len(offsets) and offsets[0] == 0 and offsets[-1] == len(ids)
    if not is_complete or len(ids) != len(weights) or (np.diff(offsets) < 0).any():
        raise InputError(f"{path}: its arrays are not those of a CSR matrix", MAKE_AGAIN)
    terms = np.stack([ids, weights], 1).astype(np.float32)
    yield from _split_by_text(terms, offsets.astype(int).tolist())
