"""A folder of prepared instances, as the training reads it: rows by number, mapped, not loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.errors import InputError, ModelError
from bertcli.inspection.headers import read_header

INDEX = "instances.json"
AGAIN = "bertcli pretrain prepare CORPUS -o DIR makes such a folder"
FIELDS = (
    "input_ids",
    "token_type_ids",
    "lengths",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_counts",
    "next_sentence_labels",
)
TYPES = {"I32": np.int32, "U8": np.uint8}
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Instances:
    """The rows of all shards, and what the index says of them."""

    folder: Path
    index: Mapping[str, Any]
    digest: str  # sha256 of the index, which holds those of the shards
    shards: tuple[Arrays, ...]

    @classmethod
    def open(cls, folder: Path) -> Instances:
        """Map a folder; InputError when it is not one of prepared instances."""
        path = folder / INDEX
        try:
            raw = path.read_bytes()
            index = json.loads(raw)
            if (index["format"], index["version"]) != ("bertcli-pretrain", 1):
                raise ValueError
            shards = tuple(_shard(folder, index, entry) for entry in index["shards"])
        except OSError as failed:
            why = "there are no prepared instances here" if not path.exists() else failed.strerror
            raise InputError(f"{folder}: {why}", AGAIN) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: not an index of prepared instances", AGAIN) from None
        made = cls(folder, index, hashlib.sha256(raw).hexdigest(), shards)
        if not len(made):
            raise InputError(f"{folder}: there is no instance in it", AGAIN)
        return made

    def __len__(self) -> int:
        """Count the rows."""
        return sum(len(shard["lengths"]) for shard in self.shards)

    @property
    def max_length(self) -> int:
        """The longest row, in tokens."""
        return int(self.index["max_length"])

    @property
    def vocab_size(self) -> int:
        """How many tokens the tokenizer knows."""
        return int(self.index["vocab_size"])

    def take(self, rows: Any, names: tuple[str, ...] = FIELDS) -> dict[str, Any]:
        """Return these rows, in this order, as arrays [n, ...]."""
        starts = np.cumsum([0, *(len(shard["lengths"]) for shard in self.shards)])
        which = np.searchsorted(starts, rows, side="right") - 1
        found = {}
        for name in names:
            like = self.shards[0][name]
            found[name] = np.empty((len(rows), *like.shape[1:]), like.dtype)
            for number in np.unique(which):
                here = which == number
                found[name][here] = self.shards[number][name][rows[here] - starts[number]]
        return found


def _shard(folder: Path, index: Mapping[str, Any], entry: Mapping[str, Any]) -> Arrays:
    path = folder / entry["file"]
    rows, length, most = (
        entry["rows"],
        index["max_length"],
        index["max_predictions"],
    )
    wide = {"input_ids": length, "token_type_ids": length}
    wide |= {"masked_lm_positions": most, "masked_lm_ids": most}
    shapes = {name: (rows, wide[name]) if name in wide else (rows,) for name in FIELDS}
    try:
        found = {tensor.name: tensor for tensor in read_header(path)}
    except ModelError as broken:
        raise InputError(str(broken), AGAIN) from None
    for name, shape in shapes.items():
        if name not in found or found[name].shape != shape or found[name].dtype not in TYPES:
            raise InputError(f"{path}: {name} is not as {INDEX} says", AGAIN)
    return {
        name: np.memmap(path, TYPES[found[name].dtype], "r", found[name].start, shape)
        for name, shape in shapes.items()
    }
