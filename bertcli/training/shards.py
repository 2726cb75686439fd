"""Instances on disk: a folder with an index, the tokenizer's files and shards.

instances.json               the index: lengths, counts, options, files with their sha256
instances-00000.safetensors  or .parquet, as `instance_rows` has them

stored = Instances.open(Path("instances"))
batch = stored.rows([3, 17, 4])["input_ids"]  # int32 [3, L]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.files.digests import sha256
from bertcli.files.typed_json import BadJsonError, JsonObject, is_regular, parse, read_bytes
from bertcli.hub import TOKENIZER_FILES
from bertcli.training.instance_rows import (
    AGAIN,
    ParquetRows,
    SafetensorsRows,
    columns,
    open_rows,
    row_type,
)

if TYPE_CHECKING:
    from bertcli.training.instance_rows import Array

INDEX, FORMAT, VERSION = "instances.json", "bertcli-pretrain", 1
SHARD = "instances-{number:05d}.{format}"
NUMBERS = ("max_length", "max_predictions", "vocab_size", "pad_token_id")


class Instances:
    """The rows of a folder, read on request; memory is that of the rows requested."""

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

        Raises IndexError for a number out of range.
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
        """Check the sha256 of every file. Raises InputError when one was changed."""
        written = {shard["file"]: shard["sha256"] for shard in self.index["shards"]}
        for name, wanted in {**self.index["tokenizer_sha256"], **written}.items():
            path = self.folder / name
            try:
                found = sha256(path) if is_regular(path, InputError, AGAIN, inf) else None
            except OSError as failed:  # what is no file may look like one
                raise InputError(f"{path}: {failed.strerror or failed}", AGAIN) from None
            if found != wanted:
                raise InputError(f"{path}: changed since the index was written", AGAIN)


def _read_index(path: Path) -> dict[str, Any]:
    """Return a valid index, or raise InputError."""
    raw = read_bytes(path, InputError, AGAIN)
    if raw is None:
        raise InputError(f"{path}: no instances found", "create them with bertcli pretrain prepare")
    where = f"{path}: not an index of instances"
    try:
        found = parse(raw)
    except BadJsonError as bad:
        raise InputError(f"{where}: {bad}", AGAIN) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(where, AGAIN)
    index = JsonObject(found, where, InputError, AGAIN)
    if (version := _needed(index, "version")) != VERSION:
        raise InputError(f"{path}: version {version} is not supported, only {VERSION}", AGAIN)
    for name in NUMBERS:
        _needed(index, name)
    for shard in index.list_of_objects("shards"):
        _needed(shard, "rows")
        file = shard.text("file") or ""
        if Path(file).name != file or "\0" in file or not file or shard.text("sha256") is None:
            raise shard.bad("file", "a file name, and its sha256")
    options = index.object("options")
    options.whole("dupe_factor")
    hashes = index.object("tokenizer_sha256")
    known = {name: hashes.text(name) for name in TOKENIZER_FILES if name in hashes}
    shards = found.get("shards") or []
    return {**found, "shards": shards, "options": dict(options), "tokenizer_sha256": known}


def _needed(index: JsonObject, name: str) -> int:
    number = index.whole(name)
    if number is None:
        raise index.bad(name, "a whole number")
    return number
