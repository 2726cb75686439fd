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

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Its shape in a model: matrices of TensorFlow are transposed there."""
        return self.shape[::-1] if transposed(self.name) else self.shape
