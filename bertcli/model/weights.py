"""The tensors of a model folder, under the names that its files give them; not yet BERT.

Tensors are memory-mapped where the format allows it: until somebody looks at one, it costs
nothing. A pickle is read by torch's weights-only reader, which makes tensors and runs nothing.
"""

from __future__ import annotations

import os
import pickle
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertcli.errors import ModelError
from bertcli.hub.files import TENSORFLOW, WEIGHTS, read_json
from bertcli.model.names import NESTED
from bertcli.model.stored import AGAIN, Stored, check
from bertcli.model.tensorflow import read_checkpoint

FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ZIP = b"PK\x03\x04"  # how torch.save has begun its files since torch 1.6

# What torch.load raises about a file that is no checkpoint, by what was found with broken files.
BROKEN = (
    pickle.UnpicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


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
    shards = _weight_map(index)
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


def _weight_map(index: Path) -> Mapping[str, str]:
    kind = Path(index.name.removesuffix(".index.json")).suffix
    try:
        shards = read_json(index)["weight_map"]
        ours = all(s == Path(s).name and s.endswith(kind) for s in shards.values())
    except OSError as error:
        raise ModelError(f"{index}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{index}: not JSON: {error}", AGAIN) from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: a weight_map of names to files is expected", AGAIN) from error
    if not shards or not ours:
        raise ModelError(f"{index}: its weight_map has to name {kind} files beside it")
    return shards


def _safetensors(path: Path) -> dict[str, Stored]:
    try:
        file: Any = safe_open(path, framework="pt")
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
    found = {}
    for name, tensor in _named(path, _unpickled(path)):
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ModelError(f"{path}: {name} is a {type(tensor).__name__}, not a plain tensor")
        dtype = str(tensor.dtype).removeprefix("torch.")
        found[name] = Stored(path, tuple(tensor.shape), dtype, tensor.detach)
    return found


def _unpickled(path: Path) -> Any:
    with path.open("rb") as file:
        mapped = file.read(len(ZIP)) == ZIP
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is refused in the next moment
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except BROKEN as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: BaseException) -> ModelError:
    """Say in one line what torch says in twenty."""
    safer = f"""if you trust where it comes from: load it in Python with
        torch.load({path.name!r}, weights_only=False) and save its tensors as model.safetensors"""
    if found := re.search(r"GLOBAL (\S+)", str(error)):
        return ModelError(f"{path}: asks to run {found[1]}: refused, and nothing was run", safer)
    if found := re.search(r"TorchScript|legacy \.tar", str(error)):
        return ModelError(f"{path}: {found[0]} files can run code: refused, nothing was run", safer)
    return ModelError(f"{path}: not a whole file of tensors that torch.save wrote", AGAIN)


def _named(path: Path, content: Any) -> Iterator[tuple[str, Any]]:
    """Give names and tensors, which some training loops put beside their own state."""
    while isinstance(content, dict):
        inner = next((content[k] for k in NESTED if isinstance(content.get(k), dict)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ModelError(f"{path}: names and their tensors are expected in it")
    yield from content.items()
