"""Read vectors from a file of `embed` with the library of its format."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
from front import rows_in
from safetensors.numpy import load_file


def normal(rows, *shape, seed=0):
    """Return random vectors, fixed by the seed."""
    return np.random.default_rng(seed).normal(size=(rows, *shape)).astype(np.float32)


def vectors_in(path):
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".npz":
            with np.load(path) as archive:
                return archive["embeddings"]
        case ".safetensors":
            return load_file(path)["embeddings"]
        case ".parquet":
            column = pq.read_table(path)["embedding"]
            return (
                np.array(column.to_pylist())
                if len(column)
                else np.zeros((0, column.type.list_size))
            )
        case ".jsonl":
            rows = rows_in(path)
            return np.array([row["embedding"] for row in rows])
        case ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                return np.array([json.loads(row["embedding"]) for row in csv.DictReader(file)])
    raise AssertionError(path)
