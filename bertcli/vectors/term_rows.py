"""Weights of terms beside the other fields of their texts: JSONL and Parquet.

JSONL has the field terms: tokens and their weights, the largest first. Parquet has the columns
indices and values, lists of as many numbers. In a spool, a text has a row for each of its terms:
the id of the token, and the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

from bertcli.files.writers import writer_of
from bertcli.vectors.rows import cell, column_types, portions, without_place
from bertcli.vectors.spool import START, STOP, Row, Rows

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames
    from bertcli.vectors.spool import Vectors

TERMS, INDICES, VALUES = "terms", "indices", "values"
WRITTEN_OF_TERMS = ("id", "n_tokens", "truncated", TERMS, INDICES, VALUES, START, STOP)


def term_lines(metas: Sequence[Row], terms: Vectors, names: TermNames) -> list[Row]:
    """Return rows for JSONL: the terms come after the id."""
    found = []
    for meta, some in zip(metas, terms, strict=True):
        rest = without_place(meta)
        first = {"id": rest.pop("id")} if "id" in rest else {}
        found.append({**first, TERMS: names.of(some), **rest})
    return found


def terms_jsonl(file: IO[bytes], rows: Rows) -> Iterator[int]:
    """Write all texts as JSON, one a line."""
    if rows.terms is None:
        raise ValueError("rows of vectors")
    with writer_of("jsonl")(file) as write:
        for metas, terms in portions(rows):
            write(term_lines(metas, terms, rows.terms))
            yield sum(map(len, terms))


def terms_parquet(file: IO[bytes], rows: Rows) -> Iterator[int]:
    """Write all texts as Parquet, a row group a chunk."""
    import numpy as np

    from bertcli.files.arrow import type_of
    from bertcli.files.parquet import vectors_writer

    types = {key: kind for key, kind in column_types(rows).items() if key not in (INDICES, VALUES)}
    lists = {INDICES: type_of("list<int32>"), VALUES: type_of("list<float32>")}
    with vectors_writer(file, types, lists) as write:
        for metas, terms in rows.records():
            ids = [some[:, 0].astype(np.int32) for some in terms]
            weights = [some[:, 1] for some in terms]
            columns = {key: [cell(meta, key) for meta in metas] for key in types}
            write(columns, {INDICES: ids, VALUES: weights})
            yield sum(map(len, terms))
