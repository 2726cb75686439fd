"""The tensors of a model folder, under the names that its files give them; not yet BERT.

Tensors are memory-mapped where the format allows it: until somebody looks at one, it costs
nothing. A pickle is read by our own reader (files/pickles.py): nothing in it is run.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from torch import Tensor

from bertcli.checkpoints.names import NESTED
from bertcli.checkpoints.stored_tensor import AGAIN, Stored, check
from bertcli.checkpoints.tensorflow import read_checkpoint
from bertcli.errors import ModelError
from bertcli.files.pickles import Tensor as Described
from bertcli.files.safetensors import open_safetensors
from bertcli.files.torch_save import BYTES, read_torch
from bertcli.hub.files import TENSORFLOW, WEIGHTS, weight_map

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
TORCH = FLOATS | {
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def weights_in(folder: Path) -> dict[str, Stored]:
    """Find the weights of a folder, the best of its files first; ModelError without any."""
    name = next((name for name in WEIGHTS if os.path.lexists(folder / name)), None)
    if name is not None:
        return _read(folder / name)
    checkpoints = [path.with_suffix("") for path in sorted(folder.glob(TENSORFLOW))]
    if len(checkpoints) > 1:
        names = ", ".join(path.name for path in checkpoints)
        raise ModelError(f"{folder}: several checkpoints: {names}", "keep one in the folder")
    return read_checkpoint(checkpoints[0]) if checkpoints else _nothing(folder)


def _nothing(folder: Path) -> NoReturn:
    """Refuse, and say what the weights could be made from, where there is something like that."""
    hint = f"one of {', '.join(WEIGHTS)} is needed"
    old = next((n for n in ("tf_model.h5", "flax_model.msgpack") if (folder / n).exists()), None)
    if old is not None:
        source = "from_tf" if old.startswith("tf") else "from_flax"
        hint = f"""{old} is of another library: with `transformers<5` and that library installed,
            AutoModelForPreTraining.from_pretrained(folder, {source}=True).save_pretrained(new)"""
    raise ModelError(f"{folder}: there are no weights in this folder", hint)


def _read(path: Path) -> dict[str, Stored]:
    check(path)
    if path.name.endswith(".index.json"):
        return _sharded(path)
    return _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)


# --- formats ---


def _sharded(index: Path) -> dict[str, Stored]:
    shards = weight_map(index)
    found: dict[str, Stored] = {}
    for shard in sorted(set(shards.values())):
        if not os.path.lexists(index.parent / shard):
            raise ModelError(f"{index.parent / shard}: missing, and {index.name} needs it", AGAIN)
        inside = _read(index.parent / shard)
        found |= {name: one for name, one in inside.items() if shards.get(name, shard) == shard}
    for name, shard in shards.items():
        if name not in found:
            raise ModelError(f"{index}: {name} is not in {shard}", AGAIN)
    return found


def _safetensors(path: Path) -> dict[str, Stored]:
    try:
        file = open_safetensors(path, "pt")
        return {name: _slice(path, file, name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ModelError(f"{path}: not a whole safetensors file: {error}", AGAIN) from error
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error


def _slice(path: Path, file: Any, name: str) -> Stored:
    part = file.get_slice(name)
    dtype: str = part.get_dtype()
    return Stored(
        path, tuple(part.get_shape()), FLOATS.get(dtype, dtype), partial(file.get_tensor, name)
    )


def _pickled(path: Path) -> dict[str, Stored]:
    saved = read_torch(path)
    mapped = Mapped(path)
    found = {}
    for name, tensor in saved.tensors(NESTED).items():
        start = saved.place(name, tensor)
        dtype = TORCH[tensor.storage.dtype]
        found[name] = Stored(path, tensor.shape, dtype, partial(mapped.read, tensor, start))
    return found


class Mapped:
    """The storages of a file, mapped into memory: what is not looked at costs nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
        self.storages: dict[int, torch.UntypedStorage] = {}  # tensors may share one

    def read(self, tensor: Described, start: int) -> Tensor:
        """Return a tensor, whose storage begins there in the file."""
        storage, offset, shape, strides = tensor
        size = BYTES[storage.dtype]
        if start not in self.storages:
            part = self.bytes[start : start + storage.numbers * size]
            self.storages[start] = part if start % size == 0 else part.clone()  # of an old file
        dtype = getattr(torch, TORCH[storage.dtype])
        return torch.empty(0, dtype=dtype).set_(self.storages[start], offset, shape, strides)
