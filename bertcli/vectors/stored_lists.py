"""Texts with several rows each back from files: weights of terms, or vectors of tokens.

for texts in stored_terms("out.npz", names):   # [k, 2] each: ids and weights
for texts in stored_tokens("out.npy"):         # [L, D] each
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.embedding.term_weights import TermNames
from bertcli.errors import InputError
from bertcli.files.jsonl import objects_of
from bertcli.files.stored_arrays import StoredArray, open_arrays
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.writers import TENSORS
from bertcli.vectors.journal import Files
from bertcli.vectors.reading import MAKE_AGAIN, ROWS, floats, form_of
from bertcli.vectors.rows import INDICES, TERMS, VALUES, VECTORS
from bertcli.vectors.spool import START, STOP

Lists = list[np.ndarray]

NUMBERS = 1 << 18  # of an array that are read at a time


def stored_terms(path: str, names: TermNames) -> Iterator[Lists]:
    """Yield the terms of texts, some at a time: [k, 2] each, as `bertcli embed --sparse` has them.

    Raises InputError for a file that holds none.
    """
    match form_of(path):
        case "npz":
            yield from _of_matrix(path)
        case "jsonl":
            for rows in objects_of(path):
                yield [_named(row, where, names) for where, row in rows]
        case "parquet":
            for ids, weights in _columns(path, (INDICES, VALUES)):
                yield [_terms(*pair, path) for pair in zip(ids, weights, strict=True)]
        case form:
            raise InputError(f"{path}: {form} holds no weights of terms")


def stored_tokens(path: str) -> Iterator[Lists]:
    """Yield the vectors of the tokens of texts, some texts at a time: [L, D] each.

    Raises InputError for a file that holds none.
    """
    match form_of(path):
        case "jsonl":
            for rows in objects_of(path):
                yield [_vectors(row.get(VECTORS), where) for where, row in rows]
        case "parquet":
            for (some,) in _columns(path, (VECTORS,)):
                yield [_vectors(one, path) for one in some]
        case form if form in TENSORS:
            counts = (row[STOP] - row[START] for row in index_of(path))
            yield from _cut(floats(path), counts, path)
        case form:
            raise InputError(f"{path}: {form} holds no vectors of tokens")


def index_of(path: str) -> list[dict[str, Any]]:
    """Return the index beside a file of arrays: the rows and the id of each text."""
    place = Files.of(Path(path)).row_index
    if not place.exists():
        raise InputError(f"{place}: file not found; it says which rows are whose", MAKE_AGAIN)
    found, end = [], 0
    for rows in objects_of(str(place)):
        for where, row in rows:
            start, stop = row.get(START), row.get(STOP)
            if start != end or not isinstance(stop, int) or stop < end:
                raise InputError(f"{where}: not the rows behind those of the text before")
            found.append({"id": row.get("id"), START: start, STOP: stop})
            end = stop
    return found


def _columns(path: str, names: tuple[str, ...]) -> Iterator[list[list[Any]]]:
    from bertcli.files.parquet import opened

    with opened(path, path) as table:
        for name in names:
            if name not in table.names:
                available = ", ".join(table.names)
                raise InputError(f"{path}: column {name!r} not found", f"available: {available}")
        for _, columns in table.columns(list(names), LARGEST_RECORD, lambda row: None):
            yield [list(columns[name]) for name in names]


def _named(row: Mapping[str, Any], where: str, names: TermNames) -> np.ndarray:
    """Return the terms of a line of JSON."""
    terms = row.get(TERMS)
    if not isinstance(terms, dict):
        raise InputError(f"{where}: no weights in the field {TERMS!r}")
    ids = [names.id_of(token) for token in terms]
    if None in ids:
        unknown = next(token for token in terms if names.id_of(token) is None)
        raise InputError(f"{where}: token {unknown!r} is not in the vocabulary of this model")
    return _terms(ids, list(terms.values()), where)


def _terms(ids: Any, weights: Any, where: str) -> np.ndarray:
    found = _floats([ids, weights]).T
    if found.ndim != 2 or found.shape[1] != 2 or not np.isfinite(found).all():
        raise InputError(f"{where}: not as many ids as weights, all of them numbers", MAKE_AGAIN)
    return found


def _vectors(value: Any, where: str) -> np.ndarray:
    found = _floats(value)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise InputError(f"{where}: no vectors of tokens in the field {VECTORS!r}", MAKE_AGAIN)
    return found


def _floats(value: Any) -> np.ndarray:
    """Return lists of numbers as an array, and what is none as a list of nothing."""
    try:
        return np.array(value, np.float32)
    except (TypeError, ValueError, OverflowError):
        return np.zeros(0, np.float32)


def _of_matrix(path: str) -> Iterator[Lists]:
    with open_arrays(path, path, "npz") as arrays:
        missing = [name for name in (INDICES, "data", "indptr") if name not in arrays]
        if missing:
            raise InputError(f"{path}: array {missing[0]!r} not found", "a CSR matrix has it")
        ends = np.concatenate([*_numbers(arrays["indptr"]())])
        if len(ends) == 0 or ends[0] != 0 or (np.diff(ends) < 0).any():
            raise InputError(f"{path}: indptr is not that of a CSR matrix", MAKE_AGAIN)
        parts = zip(_numbers(arrays[INDICES]()), _numbers(arrays["data"]()), strict=True)
        flat = (np.stack(pair, 1).astype(np.float32) for pair in parts)
        yield from _cut(flat, np.diff(ends).tolist(), path)


def _numbers(array: StoredArray) -> Iterator[np.ndarray]:
    """Yield a list of numbers, however long, in parts."""
    if len(array.shape) != 1:
        raise InputError(f"an array of shape {array.shape} is not a list of numbers", MAKE_AGAIN)
    yield np.zeros(0, array.dtype)
    for block in array.read(array.shape[0], 1, NUMBERS):
        yield block.reshape(-1)


def _cut(parts: Iterable[np.ndarray], counts: Iterable[int], path: str) -> Iterator[Lists]:
    """Yield the rows of each text, so many of each, from blocks of rows."""
    held, blocks = np.zeros((0, 2), np.float32), iter(parts)
    texts: Lists = []
    for count in counts:
        pieces = [held]
        while (missing := count - sum(map(len, pieces))) > 0:
            block = next(blocks, None)
            if block is None:
                raise InputError(f"{path}: has fewer rows than its texts", MAKE_AGAIN)
            pieces.append(block)
        whole = np.concatenate([one for one in pieces if len(one)] or [held])
        texts.append(whole[:count])
        held = whole[count:] if missing <= 0 else held
        if len(texts) == ROWS:
            yield texts
            texts = []
    if texts:
        yield texts
