"""Dense layers of sentence models, as sentence-transformers has them: LaBSE's, a trained head.

Each vector is multiplied on its own: its bits do not depend on the others. Source:
sentence-transformers, base/modules/dense.py.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertcli.embedding.activations import ACTIVATIONS

CONFIG, WEIGHTS = "config.json", "model.safetensors"
IDENTITY = "torch.nn.modules.linear.Identity"


@dataclass(frozen=True)
class Dense:
    """A linear layer and its activation; vectors are [..., in], or [..., out] after it."""

    weight: np.ndarray  # [out, in]
    bias: np.ndarray | None = None  # [out]
    activation: str = "Identity"
    residual: np.ndarray | None = None  # [out, in], added behind the activation
    kind = "Dense"

    @property
    def takes(self) -> int:
        """The number of dimensions of the vectors that it takes."""
        return int(self.weight.shape[1])

    @property
    def width(self) -> int:
        """The number of dimensions of its vectors."""
        return int(self.weight.shape[0])

    @property
    def numbers(self) -> list[np.ndarray]:
        """What it was trained to be."""
        return [one for one in (self.weight, self.bias, self.residual) if one is not None]

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the vectors that it makes of these."""
        made = _product(vectors, self.weight)
        made = ACTIVATIONS[self.activation](made if self.bias is None else made + self.bias)
        if self.residual is not None:
            made = made + _product(vectors, self.residual)
        return np.asarray(made, np.float32)


def _product(vectors: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return [..., out] of [..., in]. A product of matrices would depend on the number of rows."""
    found: np.ndarray = np.einsum("...i,oi->...o", np.ascontiguousarray(vectors), weight)
    return found


def write_dense(folder: Path, layer: Dense) -> None:
    """Write a layer without an activation that sentence-transformers reads as well."""
    from safetensors.numpy import save_file

    config = {
        "in_features": layer.takes,
        "out_features": layer.width,
        "bias": layer.bias is not None,
        "activation_function": IDENTITY,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tensors = {"linear.weight": layer.weight}
    if layer.bias is not None:
        tensors["linear.bias"] = layer.bias
    save_file(tensors, folder / WEIGHTS)
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors' are for their owner alone
