"""A tensor in the file of a checkpoint, whatever the file's format."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import NamedTuple

from bertcli.checkpoints.names import transposed


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
