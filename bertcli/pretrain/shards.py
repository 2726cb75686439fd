"""Instances on the disk: a folder with an index, the tokenizer's files and shards.

instances.json               the index: lengths, counts, options, files with their sha256
instances-00000.safetensors  or .parquet, as `rows` describes them

stored = Instances.open(Path("instances"))
batch = stored.rows([3, 17, 4])["input_ids"]  # int32 [3, L]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.hub import sha256
from bertcli.pretrain.rows import AGAIN, ParquetRows, SafetensorsRows, columns, open_rows, row_type

if TYPE_CHECKING:
    from bertcli.pretrain.rows import Array

INDEX, FORMAT, VERSION = "instances.json", "bertcli-pretrain", 1
SHARD = "instances-{number:05d}.{format}"
NUMBERS = ("max_length", "max_predictions", "vocab_size", "pad_token_id")


class Instances:
    """The rows of a folder, read where they are asked for: the memory is that of the rows."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder, self.index = folder, index
        self.max_length: int = index["max_length"]
        self.max_predictions: int = index["max_predictions"]
        self.vocab_size: int = index["vocab_size"]
        self.pad_token_id: int = index["pad_token_id"]
        self.kind = row_type(self.max_length, self.max_predictions)
        self.files: list[SafetensorsRows | ParquetRows] = [
            open_rows(folder / shard["file"], shard["rows"], self.kind) for shard in index["shards"]
        ]
        self.starts: list[int] = [0, *accumulate(shard["rows"] for shard in index["shards"])]

    @classmethod
    def open(cls, folder: Path) -> Instances:
        """Return the instances in a folder.

        Raises InputError or ModelError when they are not there, of another version, or a file has
        not the shapes that the index says. What the files hold is checked by ``verify`` only.
        """
        return cls(folder, _read_index(folder / INDEX))

    def __len__(self) -> int:
        return self.starts[-1]

    def rows(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return rows by their numbers, in that order, as one array a column.

        Raises IndexError for a number that is not there.
        """
        import numpy as np

        wanted = np.asarray(numbers, np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {len(self)}")
        found = np.zeros(len(wanted), self.kind)
        shards = np.searchsorted(self.starts, wanted, side="right") - 1
        for shard in np.unique(shards).tolist():
            here = shards == shard
            self.files[shard].fill(found, here, wanted[here] - self.starts[shard])
        return columns(found)

    def verify(self) -> None:
        """Read every file. Raises InputError when one is not what was written."""
        for shard in self.index["shards"]:
            path = self.folder / shard["file"]
            if sha256(path) != shard["sha256"]:
                raise InputError(f"{path}: is not the file that the index speaks of", AGAIN)


def _read_index(path: Path) -> dict[str, Any]:
    """Return an index that can be worked with, or raise InputError."""
    try:
        index = json.loads(path.read_bytes())
        same = index["format"] == FORMAT
        numbers = [index["version"], *(index[name] for name in NUMBERS)]
        numbers += [shard["rows"] for shard in index["shards"]]
        names = [Path(shard["file"]).name == shard["file"] for shard in index["shards"]]
    except OSError as failed:
        why = "there are no instances here" if isinstance(failed, FileNotFoundError) else failed
        raise InputError(f"{path}: {why}", "make them with bertcli pretrain prepare") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f"{path}: not an index of instances", AGAIN) from None
    if not same or not all(names) or not all(type(n) is int and n >= 0 for n in numbers):
        raise InputError(f"{path}: not an index of instances", AGAIN)
    if index["version"] != VERSION:
        raise InputError(f"{path}: version {index['version']}, and this one reads {VERSION}", AGAIN)
    found: dict[str, Any] = index
    return found
