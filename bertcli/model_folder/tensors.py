"""The tensors of a checkpoint, under their names in the files. Does not import torch.

    for tensor in read_tensors(ModelFolder.open("bert-base-uncased").weights):
        print(tensor.name, tensor.dtype, tensor.shape, tensor.file, tensor.start)

Only headers, indexes and pickled descriptions are read, and no pickle is executed; `map_tensor` and
`map_bits` map the numbers into memory. A file that is truncated, or contradicts itself, raises
ModelError.

TensorFlow checkpoints (`bert_model.ckpt.index` and `.data-*`) are read without TensorFlow. The
index is a sorted table in LevelDB format: a footer locates an index block, which locates blocks of
keys and values. Keys are names of variables; values are protocol buffers with the data file, byte
offset, shape and type of the numbers, which are stored raw in little-endian order. Sources:
tensorflow/core/util/tensor_bundle/tensor_bundle.h, tensor_bundle.proto, and doc/table_format.md of
LevelDB.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from bertcli.errors import ModelError, out_of_memory
from bertcli.formats.safetensors import (
    BYTES_PER_NUMBER,
    NUMPY_DTYPES,
    StoredTensor,
    float32_of,
    read_header,
)
from bertcli.formats.torch_save import read_torch
from bertcli.io.protobuf import Fields, fields, messages, number, varint
from bertcli.io.system_calls import BusErrors
from bertcli.io.typed_json import DOWNLOAD_AGAIN, is_regular, read_bytes
from bertcli.model_folder.files import (
    GRAPH_FORMATS,
    LFS_POINTER,
    WeightFiles,
    refuse_placeholder,
)

if TYPE_CHECKING:
    import numpy as np


def read_tensors(
    weights: WeightFiles, mapped_files: MappedFiles | None = None
) -> list[StoredTensor]:
    """Return the tensors of a checkpoint, file by file. Raises ModelError if a file is broken.

    ``mapped_files`` keeps safetensors files mapped, for `map_bits`. Every tensor of an index must
    be in the file that the index states; tensors that are missing in the index are read as well, as
    in transformers.
    """
    if weights.format in GRAPH_FORMATS:
        owner = "OpenVINO" if weights.format == "openvino" else "ONNX"
        raise ModelError(
            f"{weights.files[0]}: a graph of {owner} without the model's weights",
            "use the model that it was exported from",
        )
    if weights.format == "tensorflow":
        refuse_placeholder(weights.files[0])
        return read_tensorflow_index(weights.files[0])
    tensors: dict[str, StoredTensor] = {}
    files = MappedFiles() if mapped_files is None else mapped_files
    for path in weights.files:
        if path.suffix == ".safetensors":
            file_tensors = read_header(path, files[path])
        else:
            refuse_placeholder(path)
            file_tensors = read_torch(path)
        for tensor in file_tensors:
            if weights.shards.get(tensor.name, path.name) == path.name:
                tensors[tensor.name] = tensor
    for name, shard in weights.shards.items():
        if name not in tensors:
            raise ModelError(f"{weights.index_file}: {name} is not in {shard}", DOWNLOAD_AGAIN)
    return [*tensors.values()]


class MappedFiles(dict[Path, mmap.mmap]):
    """Memory-mapped files, each mapped at its first use; changes stay in this process.

    Raises ModelError for an empty or missing file, or one that cannot be mapped.
    """

    def __missing__(self, path: Path) -> mmap.mmap:
        if not is_regular(path, hint=DOWNLOAD_AGAIN):
            raise ModelError(f"{path}: file not found", DOWNLOAD_AGAIN)
        BusErrors.expect()
        try:
            with path.open("rb") as file:
                start = file.read(len(LFS_POINTER))
                refuse_placeholder(path, start)
                self[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as failed:
            if out_of_memory(failed):
                raise
            raise ModelError(f"{path}: {failed.strerror or failed}", DOWNLOAD_AGAIN) from None
        return self[path]


def map_tensor(stored: StoredTensor) -> np.ndarray:
    """Return the numbers of a tensor, memory-mapped; bfloat16 is converted to float32.

    Raises ModelError if the file is too short, or NumPy has no such dtype.
    """
    array = map_bits(stored, MappedFiles())
    return float32_of(array) if stored.dtype == "BF16" else array


def map_bits(stored: StoredTensor, files: MappedFiles) -> np.ndarray:
    """Return the numbers of a tensor, memory-mapped; bfloat16 as uint16, its bits.

    Numbers in old torch files may be unaligned: callers that need alignment must copy them. Raises
    ModelError if the file is too short, or NumPy has no such dtype.
    """
    import numpy as np

    code = NUMPY_DTYPES.get(stored.dtype)
    if code is None:
        raise ModelError(f"{stored.file}: {stored.name} has the unsupported {stored.dtype}")
    dtype = np.dtype(code)
    if not stored.numbers:
        return np.zeros(stored.shape, dtype)
    byte_strides = stored.strides and [stride * dtype.itemsize for stride in stored.strides]
    try:
        return np.ndarray(stored.shape, dtype, files[stored.file], stored.start, byte_strides)
    except (OSError, ValueError, TypeError) as failed:  # TypeError: the file is too small
        if out_of_memory(failed):
            raise
        raise ModelError(
            f"{stored.file}: {stored.name} cannot be read: {failed}", DOWNLOAD_AGAIN
        ) from None


def as_float32(array: np.ndarray, stored: StoredTensor) -> np.ndarray:
    """Return the numbers of a tensor as float32. Raises ModelError if float64 numbers overflow."""
    import numpy as np

    try:
        with np.errstate(over="raise"):
            return np.require(array, np.float32, ("C", "A"))
    except FloatingPointError:
        raise ModelError(
            f"{stored.file}: {stored.name} has numbers beyond float32",
            "bertcli inspect --verify lists all such tensors",
        ) from None


# --- TensorFlow checkpoints ---

FOOTER = 48  # bytes: two handles, padding, MAGIC
MAGIC = bytes.fromhex("57fb808b247547db")
DTYPES = {1: "F32", 2: "F64", 14: "BF16", 19: "F16"}  # types.proto -> safetensors
CONVERT = """download it again, or convert it where TensorFlow and "transformers<5" are installed:
    transformers-cli convert --model_type bert --tf_checkpoint bert_model.ckpt
    --config bert_config.json --pytorch_dump_output pytorch_model.bin"""


def read_tensorflow_index(index: Path) -> list[StoredTensor]:
    """Return the variables of a checkpoint from its .index file.

    Raises ModelError if it is broken.
    """
    try:
        entries = dict(_table_entries(read_bytes(index, hint=CONVERT) or b""))
        header = fields(entries.pop(b"", b""))
        shard_count = number(header, 1)
        if number(header, 2):
            raise ValueError("big-endian numbers")
        variables = [
            _variable(index, shard_count, name.decode(), fields(entry))
            for name, entry in entries.items()
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise ModelError(
            f"{index}: not a complete index of a TensorFlow checkpoint, or compressed", CONVERT
        ) from error
    for file in {variable.file for variable in variables}:
        refuse_placeholder(file)
    return variables


def _variable(index: Path, shard_count: int, name: str, entry: Fields) -> StoredTensor:
    """Return the variable that an entry of the index describes (BundleEntryProto)."""
    sizes: list[Fields] = []
    for shape_message in messages(entry, 2):
        sizes += map(fields, messages(fields(shape_message), 2))
    shape = tuple(number(size, 1) for size in sizes)
    shard = number(entry, 3)
    offset = number(entry, 4)
    nbytes = number(entry, 5)
    file = index.with_name(f"{index.stem}.data-{shard:05}-of-{shard_count:05}")
    type_number = number(entry, 1)
    dtype = DTYPES.get(type_number)
    if dtype is None or 7 in entry:  # an integer, a string, or a sliced variable
        return StoredTensor(name, f"TensorFlow type {type_number}", shape, nbytes, file, offset)
    if prod(shape) * BYTES_PER_NUMBER[dtype] != nbytes:
        raise ValueError("the size is not that of the shape")
    if len(shape) == 2 and name.endswith("/kernel"):  # the transpose of the model's weight
        return StoredTensor(name, dtype, shape[::-1], nbytes, file, offset, (1, shape[1]))
    return StoredTensor(name, dtype, shape, nbytes, file, offset)


# --- the table ---


def _table_entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table. Raises ValueError if it is broken or compressed."""
    if len(table) < FOOTER or table[-8:] != MAGIC:
        raise ValueError("no footer")
    _, _, offset = _read_handle(table, len(table) - FOOTER)  # the handle of an unused block
    start, size, _ = _read_handle(table, offset)
    for _, handle in _block_entries(table, start, size):
        start, size, _ = _read_handle(handle, 0)
        yield from _block_entries(table, start, size)


def _block_entries(table: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block.

    Each key stores how many of its first bytes it shares with the previous key.
    """
    if table[start + size]:
        raise ValueError("a compressed block")
    restart_count = int.from_bytes(table[start + size - 4 : start + size], "little")
    offset = start
    end = start + size - 4 - 4 * restart_count
    key = b""
    while offset < end:
        shared_length, offset = varint(table, offset)
        suffix_length, offset = varint(table, offset)
        value_length, offset = varint(table, offset)
        key = key[:shared_length] + table[offset : offset + suffix_length]
        offset += suffix_length
        yield key, table[offset : offset + value_length]
        offset += value_length


def _read_handle(handles: bytes, offset: int) -> tuple[int, int, int]:
    """Return the start and the size of a block, and the offset after the handle."""
    start, offset = varint(handles, offset)
    size, offset = varint(handles, offset)
    return start, size, offset
