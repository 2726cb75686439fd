"""Embedded records as rows of vector files or of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from bertcli.formats.precision import quantize
from bertcli.formats.vector_writer import OutputFields, Vectors, text_rows
from bertcli.formats.writers import open_output, writer_of

if TYPE_CHECKING:
    from bertcli.embedding.pooling import EmbeddedBlock
    from bertcli.embedding.sparse import TermNames


def fields_of_block(block: EmbeddedBlock) -> OutputFields:
    """Return the fields that are written beside the vectors, in formats with fields."""
    records = block.records
    batch = block.batch
    carried = records.extras
    ids_and_numbers = zip(records.ids or batch.samples, batch.samples, strict=True)
    ids = [number if key is None else key for key, number in ids_and_numbers]
    if block.token_fields:
        carried = [
            token_fields.as_fields(pair=record.pair is not None) | (record.extra or {})
            for record, token_fields in zip(records, block.token_fields, strict=True)
        ]
    return OutputFields(len(ids), ids, batch.lengths, batch.dropped_tokens, carried)


@contextmanager
def stdout_writer(
    file_format: str, precision: str = "float32", vocabulary: TermNames | None = None
) -> Iterator[Callable[[EmbeddedBlock], None]]:
    """Yield a function that streams records to stdout, with the same bytes as in a file.

    The first rows determine the columns of CSV. `refuse_stream` rejects formats that cannot be
    streamed.
    """
    with open_output(None) as file, writer_of(file_format)(file) as write:

        def write_block(block: EmbeddedBlock) -> None:
            vectors: Vectors = block.vectors
            if isinstance(vectors, np.ndarray):
                vectors = quantize(vectors, precision)
            else:
                vectors = [quantize(of_text, precision) for of_text in vectors]
            write([*text_rows(file_format, fields_of_block(block), vectors, vocabulary)])

        yield write_block
