"""The names, types and shapes in a pytorch_model.bin, without torch; nothing in it is run."""

from __future__ import annotations

from math import prod
from pathlib import Path

from bertcli.checkpoints.names import NESTED
from bertcli.checkpoints.safetensors_header import AGAIN, TensorInfo
from bertcli.errors import ModelError
from bertcli.files.pickles import Tensor
from bertcli.files.torch_save import BYTES, read_torch


def read_pickled(path: Path) -> list[TensorInfo]:
    """Return the tensors of a pytorch_model.bin, new or old.

    ModelError when the file is broken, or its pickle wants more than tensors.
    """
    try:
        size = path.stat().st_size
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}", AGAIN) from None
    if size == 0:
        raise ModelError(f"{path}: the file is empty", AGAIN)
    file = read_torch(path)
    found = []
    for name, one in file.tensors(NESTED).items():
        if isinstance(one, Tensor):
            start, dtype = file.place(name, one), one.storage.dtype
            width = BYTES[dtype]
            start += one.offset * width
            found.append(TensorInfo(name, dtype, one.shape, prod(one.shape) * width, path, start))
    return found
