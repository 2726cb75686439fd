"""The tensors of a checkpoint, under the names that its files give them; without torch.

    for tensor in read_tensors(find_weights(Path("bert-base-uncased"))):
        print(tensor.name, tensor.dtype, tensor.shape, tensor.file, tensor.start)

Only headers, indexes and the descriptions in pickles are read, and nothing in a pickle is run;
`tensor_reader` reads the numbers. A file that is truncated, or contradicts itself, is a ModelError.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from pathlib import Path

from bertcli.checkpoints.names import NESTED
from bertcli.checkpoints.scan import WeightFiles, refuse_placeholder
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.checkpoints.tensorflow import read_index
from bertcli.errors import ModelError
from bertcli.files.pickles import Tensor
from bertcli.files.safetensors import read_header
from bertcli.files.torch_save import BYTES, read_torch
from bertcli.files.typed_json import AGAIN, is_regular


def read_tensors(weights: WeightFiles) -> list[StoredTensor]:
    """Return the tensors of a checkpoint, file by file. ModelError when a file is broken.

    Every tensor of an index must be in the file that it names; tensors that it leaves out are read
    as well, as in transformers.
    """
    if weights.format == "tensorflow":
        refuse_placeholder(weights.files[0])
        return read_index(weights.files[0])
    read = _read_safetensors if weights.format == "safetensors" else _read_pickled
    if weights.index_file is None:
        return [tensor for path in weights.files for tensor in read(path)]
    return _read_shards(weights.index_file, weights, read)


def _read_shards(
    index: Path, weights: WeightFiles, read: Callable[[Path], list[StoredTensor]]
) -> list[StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for path in weights.files:
        if not is_regular(path, hint=AGAIN, most=inf):
            raise ModelError(f"{path}: missing, but {index.name} lists it", AGAIN)
        found |= {
            tensor.name: tensor
            for tensor in read(path)
            if weights.shards.get(tensor.name, path.name) == path.name
        }
    for name, shard in weights.shards.items():
        if name not in found:
            raise ModelError(f"{index}: {name} is not in {shard}", AGAIN)
    return [*found.values()]


def _read_safetensors(path: Path) -> list[StoredTensor]:
    refuse_placeholder(path)
    return [
        StoredTensor(one.name, one.dtype, one.shape, one.nbytes, path, one.start)
        for one in read_header(path)
    ]


def _read_pickled(path: Path) -> list[StoredTensor]:
    """Return the tensors of a pytorch_model.bin, new or old."""
    refuse_placeholder(path)
    saved = read_torch(path)
    found = []
    for name, one in saved.tensors(NESTED).items():
        storage = saved.place(name, one)
        assert isinstance(one, Tensor)  # `place` refuses anything else
        width = BYTES[one.storage.dtype]
        found.append(
            StoredTensor(
                name=name,
                dtype=one.storage.dtype,
                shape=one.shape,
                nbytes=prod(one.shape) * width,
                file=path,
                start=storage + one.offset * width,
                strides=one.strides,
            )
        )
    return found
