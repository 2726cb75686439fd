"""A tensor in the file of a checkpoint, whatever the format, and its numbers. No torch."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertcli.checkpoints.names import transposed
from bertcli.errors import ModelError, out_of_memory
from bertcli.files.safetensors import NUMPY_OF, float32_of
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


class MappedFiles(dict[Path, "np.ndarray"]):
    """The bytes of files, each mapped when it is first asked for; changes stay in this process."""

    def __missing__(self, path: Path) -> np.ndarray:
        import numpy as np

        self[path] = np.memmap(path, np.uint8, "c")
        return self[path]


def mapped(stored: StoredTensor) -> np.ndarray:
    """Return the numbers of a tensor, read where they are used. bfloat16 becomes float32.

    ModelError when the file has fewer bytes, or NumPy has no such numbers.
    """
    array = bits(stored, MappedFiles())
    return float32_of(array) if stored.dtype == "BF16" else array


def bits(stored: StoredTensor, files: MappedFiles) -> np.ndarray:
    """Return the same as `mapped` does, but of bfloat16 its bits."""
    import numpy as np

    code = NUMPY_OF.get(stored.dtype)
    if code is None:
        raise ModelError(f"{stored.file}: {stored.name} has the unsupported {stored.dtype}")
    kind = np.dtype(code)
    if not prod(stored.shape):
        return np.zeros(stored.shape, kind)
    steps = None
    if stored.strides is not None:
        steps = [step * kind.itemsize for step in stored.strides]
    try:
        return np.ndarray(stored.shape, kind, files[stored.file], stored.start, steps)
    except (OSError, ValueError, TypeError) as failed:  # TypeError: the file is too small
        if out_of_memory(failed):
            raise
        raise ModelError(f"{stored.file}: {stored.name} cannot be read: {failed}", AGAIN) from None
