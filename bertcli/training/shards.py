"""Instances on disk: a folder with an index, the tokenizer's files and shards.

instances.json               the index: lengths, counts, options, files with their sha256
instances-00000.safetensors  an array a column; or .parquet, a list a cell

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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf, prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.files.digests import sha256
from bertcli.files.safetensors import read_header
from bertcli.files.typed_json import BadJsonError, JsonObject, is_regular, parse, read_bytes
from bertcli.hub import TOKENIZER_FILES
from bertcli.models.config_checks import CHECKS
from bertcli.tokenizing.columns import EXTRA

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]


GROUP = 4096  # rows of a Parquet file that are unpacked together
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


def columns(rows: Array) -> dict[str, Array]:
    """Return rows of ``row_type`` by column: views, which share their memory."""
    return {name: rows[name] for name in rows.dtype.names or ()}


def write_safetensors(file: IO[bytes], rows: Array) -> None:
    """Write rows of ``row_type`` as one array a column."""
    from numpy import ascontiguousarray
    from safetensors.numpy import save

    file.write(save({name: ascontiguousarray(column) for name, column in columns(rows).items()}))


def write_parquet(file: IO[bytes], rows: Array) -> None:
    """Write rows of ``row_type`` as a table with lists of fixed size."""
    from bertcli.files.parquet import write_arrays

    write_arrays(file, columns(rows), GROUP)


WRITERS: dict[str, Callable[[IO[bytes], Array], None]] = {
    "safetensors": write_safetensors,
    "parquet": write_parquet,
}


class SafetensorsRows:
    """A memory-mapped safetensors file: only the pages that are read are loaded."""

    def __init__(self, path: Path, rows: int, kind: np.dtype[Any]) -> None:
        import numpy as np

        stored = {tensor.name: tensor for tensor in read_header(path)}
        self.columns: dict[str, Array] = {}
        for name, shape, dtype in _parts(rows, kind):
            tensor, size = stored.get(name), prod(shape) * dtype.itemsize
            if tensor is None or (tensor.shape, tensor.nbytes) != (shape, size):
                raise _unlike(path, name, shape, dtype)
            if not rows:
                continue
            self.columns[name] = np.memmap(path, dtype, "r", tensor.start, shape)

    def fill(self, found: Array, here: Array, numbers: Array) -> None:
        """Copy rows to those of ``found`` that the mask ``here`` selects."""
        for name, column in self.columns.items():
            found[name][here] = column[numbers]


class ParquetRows:
    """A Parquet file; the last group of rows read is cached."""

    def __init__(self, path: Path, rows: int, kind: np.dtype[Any]) -> None:
        from bertcli.files.parquet import opened

        self.path, self.kind = path, kind
        self.group: tuple[int, Array] | None = None
        with opened(str(path), str(path), AGAIN) as table:
            there, names = table.count, table.names
        if there != rows or names != list(kind.names or ()):
            raise InputError(f"{path}: {there} rows of {', '.join(names)}, not {rows}", AGAIN)

    def fill(self, found: Array, here: Array, numbers: Array) -> None:
        """Copy rows to those of ``found`` that the mask ``here`` selects."""
        import numpy as np

        places = np.flatnonzero(here)
        for group in np.unique(numbers // GROUP).tolist():
            inside = numbers // GROUP == group
            found[places[inside]] = self._group(group)[numbers[inside] - group * GROUP]

    def _group(self, number: int) -> Array:
        import numpy as np

        from bertcli.files.parquet import opened

        if self.group is None or self.group[0] != number:
            with opened(str(self.path), str(self.path), AGAIN) as table:
                found = table.group(number)
            rows = np.zeros(len(next(iter(found.values()))), self.kind)
            for name, shape, _ in _parts(len(rows), self.kind):
                if found[name].shape != shape:
                    raise _unlike(self.path, name, shape, rows[name].dtype)
                rows[name] = found[name]
            self.group = number, rows
        return self.group[1]


def open_rows(path: Path, rows: int, kind: np.dtype[Any]) -> SafetensorsRows | ParquetRows:
    """Open a file by its suffix. Raises InputError unless it has these rows of this type."""
    if not path.is_file():
        raise InputError(f"{path}: not found, but listed in the index", AGAIN)
    return (ParquetRows if path.suffix == ".parquet" else SafetensorsRows)(path, rows, kind)


def _parts(rows: int, kind: np.dtype[Any]) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """Return name, shape and type of every column."""
    fields: Mapping[str, Any] = kind.fields or {}
    return [(name, (rows, *fields[name][0].shape), fields[name][0].base) for name in fields]


def _unlike(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> InputError:
    return InputError(f"{path}: expected {name} as {dtype.name} {list(shape)}", AGAIN)


INDEX, FORMAT = "instances.json", "bertcli-pretrain"
VERSION, WITH_EXTRA = 1, 2  # who reads the first alone knows no extra embeddings
SHARD = "instances-{number:05d}.{format}"
NUMBERS = ("max_length", "max_predictions", "vocab_size", "pad_token_id")


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
        self.left_out = {EXTRA + name for name in sizes if name not in chosen}
        self.kind = row_type(self.max_length, self.max_predictions, sizes)
        self.files: list[SafetensorsRows | ParquetRows] = [
            open_rows(folder / shard["file"], shard["rows"], self.kind) for shard in index["shards"]
        ]
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

        wanted = np.asarray(numbers, np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} of {len(self)}")
        found = np.zeros(len(wanted), self.kind)
        shards = np.searchsorted(self.starts, wanted, side="right") - 1
        for shard in np.unique(shards).tolist():
            here = shards == shard
            self.files[shard].fill(found, here, wanted[here] - self.starts[shard])
        return {name: it for name, it in columns(found).items() if name not in self.left_out}

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
    if (version := _needed(index, "version")) not in (VERSION, WITH_EXTRA):
        ours = f"{VERSION} and {WITH_EXTRA}"
        raise InputError(f"{path}: version {version} is not supported, only {ours}", AGAIN)
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
    sizes = index.checked("extra_embeddings", *CHECKS["extra_embeddings"]) or {}
    fields = index.checked("extra_fields", *CHECKS["extra_fields"]) or {}
    return {
        **found,
        "shards": found.get("shards") or [],
        "options": dict(options),
        "tokenizer_sha256": known,
        "extra_embeddings": sizes,
        "extra_fields": {name: fields.get(name, f"{name}_ids") for name in sizes},
    }


def _needed(index: JsonObject, name: str) -> int:
    number = index.whole(name)
    if number is None:
        raise index.bad(name, "a whole number")
    return number
