"""The tensors of a checkpoint, under the names that its files give them; without torch.

    for tensor in read_tensors(find_weights(Path("bert-base-uncased"))):
        print(tensor.name, tensor.dtype, tensor.shape, tensor.file, tensor.start)

Only headers, indexes and the descriptions in pickles are read, and nothing in a pickle is run;
`stored_tensor` maps the numbers. A file that is truncated, or contradicts itself, is a ModelError.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

from bertcli.checkpoints.names import NESTED
from bertcli.checkpoints.scan import WeightFiles, refuse_placeholder
from bertcli.checkpoints.stored_tensor import StoredTensor
from bertcli.checkpoints.tensorflow import read_index
from bertcli.errors import ModelError
from bertcli.files.safetensors import read_header
from bertcli.files.torch_save import read_torch
from bertcli.files.typed_json import AGAIN, is_regular


def read_tensors(weights: WeightFiles) -> list[StoredTensor]:
    """Return the tensors of a checkpoint, file by file. ModelError when a file is broken.

    Every tensor of an index must be in the file that it names; tensors that it leaves out are read
    as well, as in transformers.
    """
    if weights.format == "openvino":
        raise ModelError(
            f"{weights.files[0].parent.parent}: a graph of OpenVINO without the model's weights",
            "use the model that it was exported from",
        )
    if weights.format == "tensorflow":
        refuse_placeholder(weights.files[0])
        return read_index(weights.files[0])
    if weights.index_file is None:
        return [tensor for path in weights.files for tensor in _read_file(path)]
    tensors: dict[str, StoredTensor] = {}
    for path in weights.files:
        if not is_regular(path, hint=AGAIN, most=inf):
            raise ModelError(f"{path}: missing, but {weights.index_file.name} lists it", AGAIN)
        tensors |= {
            tensor.name: tensor
            for tensor in _read_file(path)
            if weights.shards.get(tensor.name, path.name) == path.name
        }
    for name, shard in weights.shards.items():
        if name not in tensors:
            raise ModelError(f"{weights.index_file}: {name} is not in {shard}", AGAIN)
    return [*tensors.values()]


def _read_file(path: Path) -> list[StoredTensor]:
    """Return the tensors of a model.safetensors or a pytorch_model.bin."""
    refuse_placeholder(path)
    pickled = path.suffix != ".safetensors"
    return [
        StoredTensor(info.name, info.dtype, info.shape, info.nbytes, path, info.start, info.strides)
        for info in (read_torch(path, NESTED) if pickled else read_header(path))
    ]
