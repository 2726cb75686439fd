"""The header of safetensors files: names, types, shapes and places of tensors.

    for tensor in read_header("model.safetensors"):
        print(tensor.name, tensor.shape)

The header is 8 bytes (its length, little-endian), then a JSON object, then the data without gaps.
Source: https://github.com/huggingface/safetensors, Format. Their library checks it, and does not
say where the data of a tensor are, nor write what is made part by part.
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

NUMPY_OF = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip  # of BF16, which NumPy has not, the bits
BYTES = {name: int(code[-1]) for name, code in NUMPY_OF.items()}  # of a number
NAMES = {code: name for name, code in NUMPY_OF.items() if name != "BF16"}
AGAIN = "download or write the file again"


class StoredTensor(NamedTuple):
    """A tensor in a file, of whatever format: what it is and where its numbers are."""

    name: str
    dtype: str  # as safetensors calls it: F32
    shape: tuple[int, ...]  # as a model has it
    nbytes: int
    file: Path
    start: int  # of its first number, in bytes from the start of the file
    strides: tuple[int, ...] | None = None  # in numbers; None where each row follows the last

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    def part(self, place: int, count: int) -> StoredTensor:
        """Return the tensor at this place of several that are stacked here."""
        if count == 1 or not self.shape:
            return self
        rows = self.shape[0] // count
        inner = self.shape[1:]
        step = self.strides[0] if self.strides else prod(inner)
        start = self.start + place * rows * step * BYTES.get(self.dtype, 0)
        return self._replace(shape=(rows, *inner), nbytes=self.nbytes // count, start=start)


def read_header(path: Path, file: IO[bytes] | mmap | None = None) -> list[StoredTensor]:
    """Return the tensors of a safetensors file in the order of their bytes.

    ``file`` is the same file, where it is open already.

    ModelError when the file is truncated, or its header contradicts the file or itself.
    """
    try:
        return tensors_in(path, file)
    except ValueError as broken:
        raise ModelError(f"{path}: {broken}", AGAIN) from None
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}") from None


def tensors_in(
    source: str | Path | IO[bytes], opened: IO[bytes] | mmap | None = None
) -> list[StoredTensor]:
    """Return the same as `read_header`, of a path or an open file. Raises ValueError, OSError."""
    if isinstance(source, str | Path):
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(source, "numpy"):  # which checks all of the header
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
            if tensor.start != position or tensor.nbytes != tensor.numbers * BYTES[tensor.dtype]:
                raise ValueError(f"tensor {tensor.name!r} is not where its header says")
            position += tensor.nbytes
    except (AttributeError, KeyError, TypeError) as broken:
        raise ValueError(f"a header that is none: {broken}") from None
    if position != size:
        raise ValueError("the file is longer or shorter than its header says")
    return tensors


def _tensors_of(file: IO[bytes] | mmap, path: Path) -> list[StoredTensor]:
    """Return the tensors of an open file in the order of their bytes, as its header has them."""
    data = 8 + int.from_bytes(file.read(8), "little")
    header = parse(file.read(data - 8))
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        kind = entry["dtype"]
        shape = tuple(entry["shape"])
        tensors.append(StoredTensor(name, kind, shape, end - start, path, data + start))
    return sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes))


def float32_of(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16, which NumPy lacks, as float32, of which its bits are the upper half."""
    import numpy as np

    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_arrays(
    file: IO[bytes], arrays: Mapping[str, np.ndarray], bfloat16: Collection[str] = ()
) -> None:
    """Write arrays, as transformers asks for; ``bfloat16`` names those of bits."""
    import numpy as np

    parts = {
        name: (
            "BF16" if name in bfloat16 else NAMES[array.dtype.str],
            array.shape,
            [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data],
        )
        for name, array in arrays.items()
    }
    write_parts(file, parts, {"__metadata__": {"format": "pt"}})


def write_parts(
    file: IO[bytes],
    tensors: Mapping[str, tuple[str, Sequence[int], Iterable[ReadableBuffer]]],
    metadata: Mapping[str, Any] = {},
) -> None:
    """Write tensors: type (F32), shape and bytes of each; the widest first, so all are aligned."""
    order = sorted(tensors, key=lambda name: -BYTES[tensors[name][0]])
    header = dict(metadata)
    at = 0
    for name in order:
        dtype, shape, _ = tensors[name]
        end = at + prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in order:
        file.writelines(tensors[name][2])
