"""The header of safetensors files: names, types, shapes and offsets of tensors.

    for tensor in read_header("model.safetensors"):
        print(tensor.name, tensor.shape)

The header is 8 bytes (its length, little-endian), then a JSON object, then the data without gaps.
Source: https://github.com/huggingface/safetensors, Format. The safetensors library validates it,
but does not return the offsets of tensors, nor write tensors in parts.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from mmap import mmap
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertcli.errors import ModelError
from bertcli.io.typed_json import parse

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import ReadableBuffer

NUMPY_DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip  # BF16 as its bits: NumPy has no bfloat16
BYTES_PER_NUMBER = {name: int(code[-1]) for name, code in NUMPY_DTYPES.items()}
DTYPE_NAMES = {code: name for name, code in NUMPY_DTYPES.items() if name != "BF16"}
GET_AGAIN = "download or write the file again"


class StoredTensor(NamedTuple):
    """A tensor in a file of any format: its type, shape and location."""

    name: str
    dtype: str  # in safetensors' spelling: F32
    shape: tuple[int, ...]  # in a model
    nbytes: int
    file: Path
    start: int  # byte offset of the first number in the file
    strides: tuple[int, ...] | None = None  # in numbers; None for contiguous rows

    @property
    def numbers(self) -> int:
        """The number of values."""
        return prod(self.shape)

    def stacked_tensor(self, index: int, count: int) -> StoredTensor:
        """Return tensor ``index`` of ``count`` tensors that are stacked along the first axis."""
        if count == 1 or not self.shape:
            return self
        rows = self.shape[0] // count
        inner = self.shape[1:]
        step = self.strides[0] if self.strides else prod(inner)
        start = self.start + index * rows * step * BYTES_PER_NUMBER.get(self.dtype, 0)
        return self._replace(shape=(rows, *inner), nbytes=self.nbytes // count, start=start)


def read_header(path: Path, file: IO[bytes] | mmap | None = None) -> list[StoredTensor]:
    """Return the tensors of a safetensors file, in the order of their bytes.

    ``file`` is the same file, if it is already open.

    Raises ModelError if the file is truncated, or its header contradicts the file or itself.
    """
    try:
        return tensors_in(path, file)
    except ValueError as broken:
        raise ModelError(f"{path}: {broken}", GET_AGAIN) from None
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}") from None


def tensors_in(
    source: str | Path | IO[bytes], opened: IO[bytes] | mmap | None = None
) -> list[StoredTensor]:
    """Return the same as `read_header`, for a path or an open file. Raises ValueError, OSError."""
    if isinstance(source, str | Path):
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(source, "numpy"):  # validates the header
                pass
        except SafetensorError as broken:
            raise ValueError(broken) from None
        if opened is not None:
            opened.seek(0)
            return _tensors_of(opened, Path(source))
        with open(source, "rb") as file:
            return _tensors_of(file, Path(source))
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    position = 8 + int.from_bytes(source.read(8), "little")
    if position > size:
        raise ValueError("the header is longer than the file")
    source.seek(0)
    try:
        tensors = _tensors_of(source, Path())
        for tensor in tensors:
            if (
                tensor.start != position
                or tensor.nbytes != tensor.numbers * BYTES_PER_NUMBER[tensor.dtype]
            ):
                raise ValueError(f"tensor {tensor.name!r} is not where its header says")
            position += tensor.nbytes
    except (AttributeError, KeyError, TypeError) as broken:
        raise ValueError(f"a header that is none: {broken}") from None
    if position != size:
        raise ValueError("the file is longer or shorter than its header says")
    return tensors


def _tensors_of(file: IO[bytes] | mmap, path: Path) -> list[StoredTensor]:
    """Return the tensors of an open file from its header, in the order of their bytes."""
    data_start = 8 + int.from_bytes(file.read(8), "little")
    header = parse(file.read(data_start - 8))
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        dtype = entry["dtype"]
        shape = tuple(entry["shape"])
        tensors.append(StoredTensor(name, dtype, shape, end - start, path, data_start + start))
    return sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes))


def float32_of(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 bits as float32, whose upper half they are (NumPy has no bfloat16)."""
    import numpy as np

    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_arrays(
    file: IO[bytes], arrays: Mapping[str, np.ndarray], bfloat16: Collection[str] = ()
) -> None:
    """Write arrays, with the metadata that transformers requires.

    ``bfloat16`` has the names of arrays of bfloat16 bits.
    """
    import numpy as np

    parts = {
        name: (
            "BF16" if name in bfloat16 else DTYPE_NAMES[array.dtype.str],
            array.shape,
            [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data],
        )
        for name, array in arrays.items()
    }
    write_tensors(file, parts, {"__metadata__": {"format": "pt"}})


def write_tensors(
    file: IO[bytes],
    tensors: Mapping[str, tuple[str, Sequence[int], Iterable[ReadableBuffer]]],
    metadata: Mapping[str, Any] = {},
) -> None:
    """Write tensors, each given as dtype (F32), shape and bytes.

    The widest dtype comes first, so that all tensors are aligned.
    """
    order = sorted(tensors, key=lambda name: -BYTES_PER_NUMBER[tensors[name][0]])
    header = dict(metadata)
    offset = 0
    for name in order:
        dtype, shape, _ = tensors[name]
        end = offset + prod(shape) * BYTES_PER_NUMBER[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        file.writelines(tensors[name][2])
