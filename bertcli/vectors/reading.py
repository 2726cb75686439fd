"""Vectors back from files, a block of rows at a time: whatever the size, in the memory of a block.

    for block in stored("out.npy"):           # [n, D], of the file's own type
    for block in floats("out.int8.parquet"):  # float32, through the ranges in its manifest

NPY, NPZ and safetensors: the array `embeddings`, or the only one. JSONL, CSV and Parquet: the field
`embedding`; a line of JSONL may be a bare list. Every block has ROWS rows but the last, or
fewer of very long vectors, so the blocks of two files of one width lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bertcli.errors import InputError
from bertcli.files.jsonl import array_of, read_arrays
from bertcli.files.npy import rows_at_once
from bertcli.files.side_files import manifest_beside
from bertcli.files.stored_arrays import open_array
from bertcli.files.streams import unreadable
from bertcli.files.typed_json import JsonObject, kind_of, read_value
from bertcli.records.reader import Reader
from bertcli.records.source import FORMATS, Source
from bertcli.vectors.precision import PRECISIONS, RANGED, restore

Array = NDArray[Any]

ROWS = 2048  # of a block
ARRAY, FIELD = "embeddings", "embedding"
MAKE_AGAIN = "make the vectors again"


def stored(path: str) -> Iterator[Array]:
    """Yield the vectors of a file in blocks [n, D...]; ``-`` is JSONL from stdin.

    Raises InputError for a file that cannot be read, or holds no vectors of one length.
    """
    form = form_of(path)
    try:
        yield from _even(path, READERS[form](path))
    except OSError as failed:
        raise unreadable(path, failed) from None


def floats(path: str, dim: int | None = None) -> Iterator[Array]:
    """Yield vectors in float32, those of a lower precision restored as its manifest says.

    ``dim`` is the number of dimensions of vectors packed into bits. Raises InputError when there
    are bytes, and no manifest says what they mean.
    """
    precision, ranges = precision_of(path), _ranges(path)
    for block in stored(path):
        if block.dtype.kind == "f":
            yield block.astype(np.float32, copy=False)
        elif precision in ("int8", "uint8", "binary", "ubinary"):
            if precision in RANGED and (ranges is None or ranges.shape[1:] != block.shape[1:]):
                raise _manifest(path).bad("ranges", f"min and max of shape {block.shape[1:]}")
            kind = np.int8 if precision in ("int8", "binary") else np.uint8
            yield restore(block.astype(kind), str(precision), ranges, dim or 0)
        else:
            raise InputError(
                f"{path}: holds {block.dtype}, which cannot be converted without its manifest",
                f"keep {manifest_beside(Path(path)).name} next to it, or write float32",
            )


def put_aside(blocks: Iterable[Array], file: IO[bytes]) -> Array | None:
    """Write vectors to a file, in float32, where they can be read in any order; None for none."""
    count, shape = 0, ()
    for block in blocks:
        count, shape = count + len(block), block.shape[1:]
        file.write(block.astype(np.float32, copy=False).tobytes())
    file.flush()
    return np.memmap(file, np.float32, "r", shape=(count, *shape)) if count else None


def manifest_of(path: str) -> dict[str, Any] | None:
    """Return the manifest beside a file of vectors; None when there is none.

    Raises InputError for a broken one.
    """
    place = manifest_beside(Path(path))
    manifest = None if path == "-" else read_value(place, InputError, MAKE_AGAIN)
    if manifest is not None and not isinstance(manifest, dict):
        raise InputError(f"{place}: not a manifest, but {kind_of(manifest)}", MAKE_AGAIN)
    return manifest


def precision_of(path: str) -> str | None:
    """Return the precision that the manifest of a file names; None when there is none.

    Raises InputError when it is none.
    """
    found = _manifest(path).checked("precision", lambda value: value in PRECISIONS, "a precision")
    return None if found is None else str(found)


def _manifest(path: str) -> JsonObject:
    place = manifest_beside(Path(path))
    return JsonObject(manifest_of(path) or {}, str(place), InputError, MAKE_AGAIN)


def form_of(path: str) -> str:
    """Return the format that the suffix names. Raises InputError when it names none of vectors."""
    if path == "-":
        return "jsonl"
    inner = path.removesuffix(".gz").removesuffix(".zst")
    form = FORMATS.get(Path(inner).suffix.lower(), "")
    if form not in READERS:
        raise InputError(f"{path}: unknown format of vectors", f"known: {', '.join(READERS)}")
    return form


def _ranges(path: str) -> Array | None:
    """Return the least and greatest values [2, D...] that int8 is based on."""
    manifest = _manifest(path)
    ends = manifest.object("ranges")
    if not ends:
        return None
    try:
        ranges = np.array([ends["min"], ends["max"]], np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise manifest.bad("ranges", "min and max, lists of as many numbers") from None
    return ranges


def _even(path: str, parts: Iterator[Array]) -> Iterator[Array]:
    """Cut and join parts into blocks of ROWS rows, all of one shape."""
    held: list[Array] = []
    seen, shape = 0, None
    for part in parts:
        shape = part.shape[1:] if shape is None else shape
        if not shape or part.dtype.kind not in "fiu":
            raise InputError(f"{path}: holds {part.dtype} of shape {part.shape}, not vectors")
        if part.shape[1:] != shape:
            raise InputError(
                f"{path}: row {seen} is of shape {part.shape[1:]}, and those before it {shape}"
            )
        seen += len(part)
        held.append(part)
        most = rows_at_once(path, math.prod(shape), ROWS)
        while sum(map(len, held)) >= most:
            whole = np.concatenate(held) if len(held) > 1 else held[0]
            yield whole[:most]
            held = [whole[most:]] if len(whole) > most else []
    if held:
        yield np.concatenate(held)


def _array(path: str) -> Iterator[Array]:
    """Read the array of NPY, NPZ and safetensors files."""
    with open_array(path, path, form_of(path), ARRAY) as found:
        if len(found.shape) < 2 or found.by_columns or getattr(found.dtype, "hasobject", True):
            order = " in Fortran order" if found.by_columns else ""
            raise InputError(
                f"{path}: holds {found.dtype} of shape {found.shape}{order}, not vectors",
                "vectors are numbers of shape [rows, dimensions], row by row",
            )
        most = rows_at_once(path, math.prod(found.shape[1:]), ROWS)
        if not found.rows:
            yield np.zeros(found.shape, found.dtype)  # its width tells something
        for block in found.blocks(most):
            yield block if block.size else block[:0]


def _csv(path: str) -> Iterator[Array]:
    for records in Reader(Source(paths=(path,), text_field=FIELD)).blocks():
        if records:
            lines = [(record.line, str(record.text)) for record in records]
            yield array_of(lines, FIELD, path)


def _parquet(path: str) -> Iterator[Array]:
    from bertcli.files.parquet import opened

    with opened(path, path) as table:
        if FIELD not in table.names:
            there = ", ".join(table.names)
            raise InputError(f"{path}: column {FIELD!r} not found", f"available: {there}")
        yield from table.arrays(FIELD, ROWS)


READERS: Mapping[str, Callable[[str], Iterator[Array]]] = {
    "npy": _array,
    "npz": _array,
    "safetensors": _array,
    "jsonl": lambda path: read_arrays(path, FIELD, ROWS),
    "csv": _csv,
    "parquet": _parquet,
}
