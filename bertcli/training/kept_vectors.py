"""Vectors that a run has computed, in its folder, so that a run that is resumed need not.

OUT/.vectors    a line of JSON, which says what they are of; then float32, [n, D]
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.embedding.record_vectors import RecordVectors
from bertcli.files.atomic import whole_file
from bertcli.vectors.fingerprint import made_by

VECTORS = ".vectors"


def _header(made: RecordVectors, vectors: np.ndarray) -> bytes:
    """Return the line that says what decides vectors, and what they are."""
    digest = hashlib.sha256(json.dumps(made_by(made.embedder), sort_keys=True).encode())
    for record in made.records:
        digest.update(repr((record.text, record.pair)).encode())
    said = {
        "made_by": digest.hexdigest(),
        "shape": vectors.shape,
        "sha256": hashlib.sha256(vectors.tobytes()).hexdigest(),
    }
    return json.dumps(said).encode() + b"\n"


def write_vectors(folder: Path, made: RecordVectors) -> None:
    """Write vectors that are computed into the folder of a run; OSError."""
    vectors: Any = np.ascontiguousarray(made.vectors, np.float32)
    with whole_file(folder / VECTORS) as file:
        file.write(_header(made, vectors))
        file.write(vectors.tobytes())


def read_vectors(folder: Path, made: RecordVectors) -> bool:
    """Take the vectors from the folder of a run, if it has them all, made by the same model."""
    try:
        header, _, data = (folder / VECTORS).read_bytes().partition(b"\n")
    except OSError:
        return False
    width = made.embedder.nothing.shape[1]
    if len(data) != 4 * len(made.records) * width:
        return False
    vectors = np.frombuffer(data, np.float32).reshape(-1, width)
    if header + b"\n" != _header(made, vectors):
        return False
    made.vectors = vectors
    return True
