"""Instances on disk: a folder with an index, the tokenizer's files and shards.

instances.json               the index: lengths, counts, options, files with their sha256
instances-00000.safetensors  an array a column

stored = Instances(Path("instances"))
batch = stored.rows([3, 17, 4])["input_ids"]  # int32 [3, L]

Letters: `n` rows, `L` the length, `P` the most predictions. A row is one instance:

    input_ids             int32 [n, L]  [CLS] A [SEP] B [SEP], masked, then padding
    token_type_ids        uint8 [n, L]  0 up to the first [SEP], 1 up to the second, then 0
    lengths               int32 [n]     tokens; the attention mask is arange(L) < length
    masked_lm_positions   int32 [n, P]  ascending, then 0
    masked_lm_ids         int32 [n, P]  the original tokens, then 0
    masked_lm_counts      int32 [n]     number of positions in use
    next_sentence_labels  uint8 [n]     0: B follows A, 1: B is from another document
    extra.NAME            int32 [n, L]  ids of an extra embedding, 0 for special tokens and padding
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertcli.errors import InputError
from bertcli.families.config_checks import CHECKS
from bertcli.files.paths import sha256
from bertcli.files.safetensors import NAMES, read_header
from bertcli.files.typed_json import (
    TEXT,
    BadJsonError,
    JsonObject,
    is_regular,
    is_text,
    parse,
    read_bytes,
    whole_number,
)
from bertcli.hub import TOKENIZER_FILES
from bertcli.tokenizing.columns import EXTRA

Array = NDArray[Any]
AGAIN = "run bertcli pretrain prepare again"


def row_type(length: int, predictions: int, extra: Iterable[str] = ()) -> np.dtype[Any]:
    """Return the type of a row of these sizes, with these extra embeddings."""
    return np.dtype(
        [
            ("input_ids", "<i4", (length,)),
            ("token_type_ids", "u1", (length,)),
            ("lengths", "<i4"),
            ("masked_lm_positions", "<i4", (predictions,)),
            ("masked_lm_ids", "<i4", (predictions,)),
            ("masked_lm_counts", "<i4"),
            ("next_sentence_labels", "u1"),
            *((EXTRA + name, "<i4", (length,)) for name in extra),
        ]
    )


INDEX, FORMAT = "instances.json", "bertcli-pretrain"
VERSION, WITH_EXTRA = 1, 2  # who reads the first alone knows no extra embeddings
SHARD = "instances-{number:05d}.safetensors"


class Instances:
    """The rows of a folder, read on request; memory is that of the rows requested.

    ``extra`` selects extra embeddings by name; None: all. Raises InputError or ModelError when they
    are not there, of another version, have no such extra embedding, or a file has not the shapes
    that the index says. What the files hold is checked by ``verify`` only.
    """

    def __init__(self, folder: Path, extra: Collection[str] | None = None) -> None:
        self.folder, self.index = folder, read_index(folder / INDEX)
        index = self.index
        self.max_length: int = index["max_length"]
        self.max_predictions: int = index["max_predictions"]
        self.vocab_size: int = index["vocab_size"]
        self.pad_token_id: int = index["pad_token_id"]
        sizes = index.checked("extra_embeddings", *CHECKS["extra_embeddings"]) or {}
        fields = index.checked("extra_fields", *CHECKS["extra_fields"]) or {}
        if missing := [name for name in extra or () if name not in sizes]:
            raise InputError(
                f"{folder}: the instances have no ids of the extra embedding {missing[0]}; "
                f"available: {', '.join(sizes) or 'none'}",
                f"prepare them with --extra {missing[0]}=FIELD",
            )
        chosen = sizes if extra is None else extra
        self.extra_embeddings = {name: sizes[name] for name in sizes if name in chosen}
        self.extra_fields = {
            name: fields.get(name, f"{name}_ids") for name in self.extra_embeddings
        }
        self.kind = row_type(self.max_length, self.max_predictions, self.extra_embeddings)
        shards = [*index.entries("shards").objects().values()]
        self.starts: list[int] = [0, *accumulate(shard["rows"] for shard in shards)]
        self.files = [self._mapped(folder / shard["file"], shard["rows"]) for shard in shards]

    def _mapped(self, path: Path, rows: int) -> dict[str, Array]:
        """Return the columns of a file, of which only the pages that are read are loaded."""
        if not path.is_file():
            raise InputError(f"{path}: not found, but listed in the index", AGAIN)
        stored = {tensor.name: tensor for tensor in read_header(path)}
        columns: dict[str, Array] = {}
        for name in self.kind.names or ():
            dtype, shape = self.kind[name].base, (rows, *self.kind[name].shape)
            tensor = stored.get(name)
            if tensor is None or (tensor.dtype, tensor.shape) != (NAMES[dtype.str], shape):
                raise InputError(f"{path}: expected {name} as {dtype.name} {list(shape)}", AGAIN)
            columns[name] = np.memmap(path, dtype, "r", tensor.start, shape)
        return columns

    def __len__(self) -> int:
        return self.starts[-1]

    def rows(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return rows by their numbers, in that order, as one array a column.

        Raises IndexError for a number out of range, InputError when an id is not in the
        vocabulary, or in an extra embedding.
        """
        places = np.asarray(numbers, np.int64)
        rows = np.zeros(len(places), self.kind)
        shards = np.searchsorted(self.starts, places, side="right") - 1
        for shard in np.unique(shards).tolist():
            selected = shards == shard
            for name, column in self.files[shard].items():
                rows[name][selected] = column[places[selected] - self.starts[shard]]
        extra = {EXTRA + name: size for name, size in self.extra_embeddings.items()}
        of_words = dict.fromkeys(("input_ids", "masked_lm_ids"), self.vocab_size)
        for name, size in (of_words | extra).items():
            for worst in (int(rows[name].max(initial=0)), int(rows[name].min(initial=0))):
                if not 0 <= worst < size:
                    of = "its embedding" if name in extra else "the vocabulary"
                    raise InputError(
                        f"{self.folder}: {name} contains {worst}, but {of} has {size} "
                        f"{'ids' if name in extra else 'tokens'}",
                        "prepare the instances again",
                    )
        return {name: rows[name] for name in self.kind.names or ()}

    def verify(self) -> None:
        """Check the sha256 of every file. Raises InputError when one was changed."""
        hashes = self.index.object("tokenizer_sha256")
        digests = {name: hashes.text(name) for name in TOKENIZER_FILES if name in hashes}
        digests |= {shard["file"]: shard["sha256"] for shard in self.index["shards"] or ()}
        for name, digest in digests.items():
            path = self.folder / name
            if not is_regular(path, InputError, AGAIN, inf) or sha256(path) != digest:
                raise InputError(f"{path}: changed since the index was written", AGAIN)


def read_index(path: Path) -> JsonObject:
    """Return an index, in which lengths, counts and names of files are checked."""
    raw = read_bytes(path, InputError, AGAIN)
    if raw is None:
        raise InputError(f"{path}: no instances found", "create them with bertcli pretrain prepare")
    where = f"{path}: not an index of instances"
    try:
        values = parse(raw)
    except BadJsonError as bad:
        raise InputError(f"{where}: {bad}", AGAIN) from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise InputError(where, AGAIN)
    index = JsonObject(values, where, InputError, AGAIN)
    for key in ("version", "max_length", "max_predictions", "vocab_size", "pad_token_id"):
        index.needed(key, *whole_number())
    if (version := index["version"]) not in (VERSION, WITH_EXTRA):
        ours = f"{VERSION} and {WITH_EXTRA}"
        raise InputError(f"{path}: version {version} is not supported, only {ours}", AGAIN)
    for shard in index.entries("shards").objects().values():
        shard.needed("rows", *whole_number(1))
        shard.needed("sha256", *TEXT)
        shard.needed("file", lambda name: is_text(name) and Path(name).name == name, "a file name")
    index.object("options").whole("dupe_factor")
    return index
