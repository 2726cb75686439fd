"""The numbers of stored tensors as NumPy arrays, memory-mapped; without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.errors import ModelError
from bertcli.files.safetensors import NUMPY_OF
from bertcli.files.typed_json import AGAIN


def mapped(stored: StoredTensor) -> np.ndarray:
    """Return the numbers of a tensor, read where they are used. bfloat16 becomes float32.

    ModelError when the file has fewer bytes, or NumPy has no such numbers.
    """
    kind = NUMPY_OF.get(stored.dtype)
    if kind is None:
        raise ModelError(f"{stored.file}: {stored.name} has the unsupported {stored.dtype}")
    if not stored.numbers:
        return np.zeros(stored.shape, kind)
    try:
        array = _view(stored, np.dtype(kind))
    except (OSError, ValueError) as failed:
        raise ModelError(f"{stored.file}: {stored.name} cannot be read: {failed}", AGAIN) from None
    if stored.dtype != "BF16":
        return array
    wide: np.ndarray = (array.astype(np.uint32) << 16).view(np.float32)
    return wide


def _view(stored: StoredTensor, kind: np.dtype[Any]) -> np.ndarray:
    if stored.strides is None:
        return np.memmap(stored.file, kind, "r", stored.start, stored.shape)
    steps = zip(stored.shape, stored.strides, strict=True)
    reach = 1 + sum((count - 1) * step for count, step in steps)
    flat = np.memmap(stored.file, kind, "r", stored.start, (reach,))
    strides = [step * kind.itemsize for step in stored.strides]
    return np.lib.stride_tricks.as_strided(flat, stored.shape, strides, writeable=False)
