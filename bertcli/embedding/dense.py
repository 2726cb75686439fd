"""Dense layers behind the pooling, as sentence-transformers has them: LaBSE's, a trained head.

Each vector is multiplied on its own: its bits do not depend on the others. Source:
sentence-transformers, sentence_transformer/modules/dense.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertcli.errors import ModelError
from bertcli.files.typed_json import read_object

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MODULES = {  # as sentence-transformers names them
    "Identity": "torch.nn.modules.linear.Identity",
    "Tanh": "torch.nn.modules.activation.Tanh",
    "ReLU": "torch.nn.modules.activation.ReLU",
    "Sigmoid": "torch.nn.modules.activation.Sigmoid",
}
ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@dataclass(frozen=True)
class Dense:
    """A linear layer and its activation; vectors are [..., in], or [..., out] after it."""

    weight: np.ndarray  # [out, in]
    bias: np.ndarray | None  # [out]
    activation: str = "Identity"

    @property
    def width(self) -> int:
        """The number of dimensions of its vectors."""
        return int(self.weight.shape[0])

    @property
    def digest(self) -> str:
        """The sha256 of its numbers."""
        bias = b"" if self.bias is None else self.bias.tobytes()
        return hashlib.sha256(self.weight.tobytes() + bias).hexdigest()

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the vectors that it makes of these."""
        found = np.einsum("...i,oi->...o", vectors, self.weight)
        return ACTIVATIONS[self.activation](found if self.bias is None else found + self.bias)


def read_dense(folder: Path) -> Dense:
    """Read the layer in a folder; ModelError when it is incomplete, or of another kind."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = read_object(folder / CONFIG)
    name = (config.text("activation_function") or "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ModelError(
            f"{folder / CONFIG}: unsupported activation {name}", f"bertcli has {known}"
        )
    if config.switch("use_residual"):
        raise ModelError(f"{folder / CONFIG}: unsupported use_residual")
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as failed:
        raise ModelError(f"{path}: cannot be read: {failed}", "bertcli reads safetensors") from None
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise ModelError(f"{path}: not the weights of a Dense layer")
    return Dense(weight.astype(np.float32), None if bias is None else bias.astype(np.float32), name)


def write_dense(folder: Path, layer: Dense) -> None:
    """Write a layer that sentence-transformers reads as well."""
    from safetensors.numpy import save_file

    config = {
        "in_features": layer.weight.shape[1],
        "out_features": layer.width,
        "bias": layer.bias is not None,
        "activation_function": MODULES[layer.activation],
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tensors = {"linear.weight": layer.weight}
    if layer.bias is not None:
        tensors["linear.bias"] = layer.bias
    save_file(tensors, folder / WEIGHTS)
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors' are for their owner alone
