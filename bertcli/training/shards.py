"""Instances on disk: a folder with an index, the tokenizer's files and shards.

instances.json               the index: lengths, counts, options, files with their sha256
instances-00000.safetensors  an array a column

stored = Instances.open(Path("instances"))
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

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.families.config_checks import CHECKS
from bertcli.files.paths import sha256
from bertcli.files.safetensors import read_header
from bertcli.files.typed_json import BadJsonError, JsonObject, is_regular, parse, read_bytes
from bertcli.hub import TOKENIZER_FILES
from bertcli.tokenizing.columns import EXTRA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]


AGAIN = "run bertcli pretrain prepare again"


def row_type(length: int, predictions: int, extra: Iterable[str] = ()) -> np.dtype[Any]:
    """Return the type of a row of these sizes, with these extra embeddings."""
    import numpy as np

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


class SafetensorsRows:
    """A memory-mapped safetensors file: only the pages that are read are loaded."""

    def __init__(self, path: Path, rows: int, kind: np.dtype[Any]) -> None:
        import numpy as np

        stored = {tensor.name: tensor for tensor in read_header(path)}
        self.columns: dict[str, Array] = {}
        for name, shape, dtype in _parts(rows, kind):
            tensor, size = stored.get(name), prod(shape) * dtype.itemsize
            if tensor is None or (tensor.shape, tensor.nbytes) != (shape, size):
                raise InputError(f"{path}: expected {name} as {dtype.name} {list(shape)}", AGAIN)
            if rows:
                self.columns[name] = np.memmap(path, dtype, "r", tensor.start, shape)

    def fill(self, rows: Array, selected: Array, numbers: Array) -> None:
        """Copy rows to those that the mask ``selected`` selects."""
        for name, column in self.columns.items():
            rows[name][selected] = column[numbers]


def _parts(rows: int, kind: np.dtype[Any]) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Return name, shape and type of every column."""
    fields: Mapping[str, Any] = kind.fields or {}
    return [(name, (rows, *fields[name][0].shape), fields[name][0].base) for name in fields]


INDEX, FORMAT = "instances.json", "bertcli-pretrain"
VERSION, WITH_EXTRA = 1, 2  # who reads the first alone knows no extra embeddings
SHARD = "instances-{number:05d}.safetensors"


class Instances:
    """The rows of a folder, read on request; memory is that of the rows requested.

    ``extra`` selects extra embeddings by name; None: all.
    """

    def __init__(
        self, folder: Path, index: dict[str, Any], extra: Collection[str] | None = None
    ) -> None:
        self.folder, self.index = folder, index
        self.max_length: int = index["max_length"]
        self.max_predictions: int = index["max_predictions"]
        self.vocab_size: int = index["vocab_size"]
        self.pad_token_id: int = index["pad_token_id"]
        sizes: dict[str, int] = index["extra_embeddings"]
        chosen = sizes if extra is None else extra
        self.extra_embeddings = {name: sizes[name] for name in sizes if name in chosen}
        self.extra_fields = {name: index["extra_fields"][name] for name in self.extra_embeddings}
        self.kind = row_type(self.max_length, self.max_predictions, sizes)
        left_out = {EXTRA + name for name in sizes if name not in chosen}
        self.names = [name for name in self.kind.names or () if name not in left_out]
        self.files: list[SafetensorsRows] = []
        for shard in index["shards"]:
            path = folder / shard["file"]
            if not path.is_file():
                raise InputError(f"{path}: not found, but listed in the index", AGAIN)
            if path.suffix != ".safetensors":
                raise InputError(f"{path}: not safetensors, in which instances are kept", AGAIN)
            self.files.append(SafetensorsRows(path, shard["rows"], self.kind))
        self.starts: list[int] = [0, *accumulate(shard["rows"] for shard in index["shards"])]

    @classmethod
    def open(cls, folder: Path, extra: Collection[str] | None = None) -> Instances:
        """Return the instances in a folder, with these extra embeddings; None: all.

        Raises InputError or ModelError when they are not there, of another version, have no such
        extra embedding, or a file has not the shapes that the index says. What the files hold is
        checked by ``verify`` only.
        """
        index = _read_index(folder / INDEX)
        sizes = index["extra_embeddings"]
        if missing := [name for name in extra or () if name not in sizes]:
            raise InputError(
                f"{folder}: the instances have no ids of the extra embedding {missing[0]}; "
                f"available: {', '.join(sizes) or 'none'}",
                f"prepare them with --extra {missing[0]}=FIELD",
            )
        return cls(folder, index, extra)

    def __len__(self) -> int:
        return self.starts[-1]

    def rows(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return rows by their numbers, in that order, as one array a column.

        Raises IndexError for a number out of range.
        """
        import numpy as np

        places = np.asarray(numbers, np.int64)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"rows {places.min()} to {places.max()} of {len(self)}")
        rows = np.zeros(len(places), self.kind)
        shards = np.searchsorted(self.starts, places, side="right") - 1
        for shard in np.unique(shards).tolist():
            selected = shards == shard
            self.files[shard].fill(rows, selected, places[selected] - self.starts[shard])
        return {name: rows[name] for name in self.names}

    def verify(self) -> None:
        """Check the sha256 of every file. Raises InputError when one was changed."""
        written = {shard["file"]: shard["sha256"] for shard in self.index["shards"]}
        for name, digest in {**self.index["tokenizer_sha256"], **written}.items():
            path = self.folder / name
            try:
                same = is_regular(path, InputError, AGAIN, inf) and sha256(path) == digest
            except OSError as failed:  # what is no file may look like one
                raise InputError(f"{path}: {failed.strerror or failed}", AGAIN) from None
            if not same:
                raise InputError(f"{path}: changed since the index was written", AGAIN)


def _read_index(path: Path) -> dict[str, Any]:
    """Return a valid index, or raise InputError."""
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
    shards = index.list_of_objects("shards")
    names = ("version", "max_length", "max_predictions", "vocab_size", "pad_token_id")
    for part, key in (*((index, name) for name in names), *((shard, "rows") for shard in shards)):
        if part.whole(key) is None:
            raise part.bad(key, "a whole number")
    if (version := index["version"]) not in (VERSION, WITH_EXTRA):
        ours = f"{VERSION} and {WITH_EXTRA}"
        raise InputError(f"{path}: version {version} is not supported, only {ours}", AGAIN)
    for shard in shards:
        file = shard.text("file") or ""
        if Path(file).name != file or "\0" in file or not file or shard.text("sha256") is None:
            raise shard.bad("file", "a file name, and its sha256")
    options, hashes = index.object("options"), index.object("tokenizer_sha256")
    options.whole("dupe_factor")
    sizes = index.checked("extra_embeddings", *CHECKS["extra_embeddings"]) or {}
    fields = index.checked("extra_fields", *CHECKS["extra_fields"]) or {}
    return {
        **values,
        "shards": values.get("shards") or [],
        "options": dict(options),
        "tokenizer_sha256": {name: hashes.text(name) for name in TOKENIZER_FILES if name in hashes},
        "extra_embeddings": sizes,
        "extra_fields": {name: fields.get(name, f"{name}_ids") for name in sizes},
    }
