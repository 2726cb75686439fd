"""The numbers of stored tensors: memory-mapped, so that one that nobody looks at costs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertcli.checkpoints.names import transposed
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.errors import ModelError
from bertcli.files.typed_json import AGAIN

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class TensorReader:
    """Reads tensors from their files, each of which is opened once."""

    def __init__(self) -> None:
        self._archives: dict[Path, Any] = {}
        self._bytes: dict[Path, torch.UntypedStorage] = {}
        self._copies: dict[tuple[Path, int, int], torch.UntypedStorage] = {}

    def read(self, stored: StoredTensor) -> Tensor:
        """Return a tensor in its file's shape. ModelError when its file is damaged."""
        try:
            if stored.file.suffix == ".safetensors":
                if stored.file not in self._archives:
                    self._archives[stored.file] = safe_open(stored.file, framework="pt")
                tensor: Tensor = self._archives[stored.file].get_tensor(stored.name)
                return tensor
            return self._view(stored)
        except SafetensorError as error:
            raise ModelError(
                f"{stored.file}: not a complete safetensors file: {error}", AGAIN
            ) from error
        except OSError as error:
            raise ModelError(f"{stored.file}: {error.strerror or error}", AGAIN) from error

    def read_for_model(self, stored: StoredTensor) -> Tensor:
        """Return a tensor in the shape that a model has: see `StoredTensor.model_shape`."""
        tensor, (at, parts) = self.read(stored), stored.part
        if parts > 1:
            return tensor.narrow(0, at * stored.model_shape[0], stored.model_shape[0])
        return tensor.T if transposed(stored.name) else tensor

    def _view(self, stored: StoredTensor) -> Tensor:
        dtype = DTYPES.get(stored.dtype)
        if dtype is None:
            raise ModelError(f"{stored.file}: {stored.name} has the unsupported {stored.dtype}")
        if not stored.numbers:
            return torch.empty(stored.shape, dtype=dtype)
        if stored.file not in self._bytes:
            size = stored.file.stat().st_size
            mapped = torch.UntypedStorage.from_file(str(stored.file), False, size)
            self._bytes[stored.file] = cast("torch.UntypedStorage", mapped)
        whole, strides = self._bytes[stored.file], stored.strides
        if strides is None:
            strides = torch.empty(stored.shape, device="meta").stride()
        reach = 1 + sum((n - 1) * step for n, step in zip(stored.shape, strides, strict=True))
        end = stored.start + reach * dtype.itemsize
        if end > len(whole):
            raise ModelError(
                f"{stored.file}: {len(whole):,} bytes, expected at least {end:,}", AGAIN
            )
        part = whole[stored.start : end]
        if stored.start % dtype.itemsize:  # as in old files; torch wants multiples of the size
            part = self._copies.setdefault((stored.file, stored.start, end), part.clone())
        return torch.empty(0, dtype=dtype).set_(part, 0, stored.shape, strides)
