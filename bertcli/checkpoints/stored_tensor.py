"""A tensor in the file of a checkpoint, whatever the format, and its numbers. No torch."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.checkpoints.names import transposed
from bertcli.errors import ModelError
from bertcli.files.safetensors import NUMPY_OF
from bertcli.files.typed_json import AGAIN

if TYPE_CHECKING:
    import numpy as np


class StoredTensor(NamedTuple):
    """A tensor in a file: what it is and where its numbers are."""

    name: str
    dtype: str  # as safetensors calls it: F32
    shape: tuple[int, ...]
    nbytes: int
    file: Path
    start: int = 0  # of its first number, in bytes from the start of the file
    strides: tuple[int, ...] | None = None  # in numbers; None where each row follows the last
    part: tuple[int, int] = (0, 1)  # of several that are stacked: which, and how many there are

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return prod(self.model_shape)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Its shape in a model: that of its part; matrices of TensorFlow are transposed there."""
        if transposed(self.name):
            return self.shape[::-1]
        if self.part[1] == 1 or not self.shape:
            return self.shape
        return (self.shape[0] // self.part[1], *self.shape[1:])


def mapped(stored: StoredTensor) -> np.ndarray:
    """Return the numbers of a tensor, read where they are used. bfloat16 becomes float32.

    ModelError when the file has fewer bytes, or NumPy has no such numbers.
    """
    import numpy as np

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
    import numpy as np

    if stored.strides is None:
        return np.memmap(stored.file, kind, "r", stored.start, stored.shape)
    steps = zip(stored.shape, stored.strides, strict=True)
    reach = 1 + sum((count - 1) * step for count, step in steps)
    flat = np.memmap(stored.file, kind, "r", stored.start, (reach,))
    strides = [step * kind.itemsize for step in stored.strides]
    return np.lib.stride_tricks.as_strided(flat, stored.shape, strides, writeable=False)
