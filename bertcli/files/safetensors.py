"""The header of safetensors files: names, types, shapes and places of tensors.

    for tensor in read_header("model.safetensors"):
        print(tensor.name, tensor.shape)

The header is 8 bytes (its length, little-endian), then a JSON object, then the data without gaps.
Source: https://github.com/huggingface/safetensors, Format. A header that cannot be true of its
file is an error that says why.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertcli.errors import ModelError
from bertcli.files.typed_json import BadJsonError, kind_of, parse

if TYPE_CHECKING:
    import numpy as np

DIMENSIONS = 64  # more than any tensor has
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
NUMPY_OF = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip  # of BF16, which NumPy has not, the bits
NAMES = {code: name for name, code in NUMPY_OF.items() if name != "BF16"}
AGAIN = "download or write the file again"


class TensorInfo(NamedTuple):
    """A tensor in a file: what it is and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    start: int  # of its first byte, from the start of the file
    strides: tuple[int, ...] | None = None  # in numbers; None where each row follows the last


def read_header(path: Path) -> list[TensorInfo]:
    """Return the tensors of a safetensors file in the order of their bytes.

    ModelError when the file is truncated, or its header contradicts the file or itself.
    """
    try:
        return tensors_in(path)
    except ValueError as broken:
        raise ModelError(f"{path}: {broken}", AGAIN) from None
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}") from None


def tensors_in(path: str | Path) -> list[TensorInfo]:
    """Return the same as `read_header`. Raises ValueError, or OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"the header has {length:,} bytes, and the file {size:,}")
        raw = file.read(length)
    try:
        entries = parse(raw)
    except BadJsonError as bad:
        raise ValueError(f"the header is not valid JSON: {bad}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"the header: expected a JSON object, found {kind_of(entries)}")
    entries.pop("__metadata__", None)
    at = 8 + length
    tensors = [_tensor(name, entry, at) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.nbytes))
    for tensor in tensors:
        if tensor.start != at:
            raise ValueError(f"{tensor.name} does not begin where the one before it ends")
        at += tensor.nbytes
    if at != size:
        raise ValueError(f"the header describes {at:,} bytes, and the file has {size:,}")
    return tensors


def _tensor(name: str, entry: Any, data: int) -> TensorInfo:
    """Check one entry of the header; `data` is where the file's data begin."""
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        valid = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    except (KeyError, TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(f"{name}: dtype, shape and two data_offsets are expected")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{name}: unknown dtype {dtype!r}; known: {', '.join(BITS)}")
    needed = prod(shape) * BITS[dtype] // 8
    if end - start != needed:
        raise ValueError(
            f"{name}: {dtype} {list(shape)} needs {needed:,} bytes, not {end - start:,}"
        )
    return TensorInfo(name, dtype, tuple(shape), needed, data + start)


def float32_of(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16, which NumPy lacks, as float32, of which its bits are the upper half."""
    import numpy as np

    wide: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide


def write_arrays(
    file: IO[bytes], arrays: Mapping[str, np.ndarray], bfloat16: Collection[str] = ()
) -> None:
    """Write arrays, the widest numbers first, so that all are aligned; ``bfloat16`` names bits."""
    import numpy as np

    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    kinds = {name: "BF16" if name in bfloat16 else NAMES[arrays[name].dtype.str] for name in order}
    shapes = {name: (kinds[name], arrays[name].shape) for name in order}
    file.write(header_of(shapes, {"format": "pt"}))  # which transformers asks for
    for name in order:
        file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)


def header_of(
    tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] = {}
) -> bytes:
    """Return the header of a file with tensors of these types (F32) and shapes, in this order."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
