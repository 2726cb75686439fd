"""The modules after the pooling of a sentence model (Dense, Normalize, LayerNorm), in NumPy.

Each module takes token or text vectors [..., D]. The result for a vector is bit-identical whatever
other vectors are in the array. `divide` does the same for a vector that is the sum of the
contributions of its tokens, [L, D] in float64. `options` reads which modules a folder has;
`write_sentence_files` writes the files of a sentence model that sentence-transformers can read.
Source: sentence-transformers 6.2, Dense, Normalize, LayerNorm; activations are the classes of
torch.nn with their default arguments.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bertcli.embedding.options import (
    LEGACY_POOLING_KEYS,
    POOLING_NAMES,
    SENTENCE_CONFIG,
    EmbedOptions,
    SentenceSettings,
)
from bertcli.embedding.pooling import SHORTEST, truncate_and_normalize
from bertcli.errors import ModelError, UsageError, option
from bertcli.formats.safetensors import write_arrays
from bertcli.io.typed_json import DOWNLOAD_AGAIN, read_object, write_json
from bertcli.model_folder.files import SentenceModule, WeightFiles
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.activations import TORCH_CLASSES, array_function

MODULE_CONFIG = "config.json"  # of a module, beside its weights
LAYER_NORM_EPSILON = 1e-5  # default of torch.nn.LayerNorm
LINEAR = "Identity"  # activation of a linear layer


@dataclass(frozen=True)
class Dense:
    """A linear layer with an activation: vectors [..., in] to [..., out].

    Source: sentence-transformers, base/modules/dense.py.
    """

    weight: np.ndarray  # [out, in]
    bias: np.ndarray | None = None  # [out]
    activation: str = LINEAR
    residual: np.ndarray | None = None  # [out, in], added after the activation
    kind = "Dense"

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the outputs [..., out] of the layer for vectors [..., in]."""
        linear = _stable_product(vectors, self.weight)
        if self.bias is not None:
            linear = linear + self.bias
        outputs = array_function(self.activation)(linear)
        if self.residual is not None:
            outputs = outputs + _stable_product(vectors, self.residual)
        return np.asarray(outputs, np.float32)

    def refuse_activation(self) -> None:
        """Raise UsageError for an activation, which is not linear."""
        if self.activation != LINEAR:
            raise UsageError(
                f"{option('explain')} needs vectors that are sums over tokens, and this model has "
                f"a {self.kind} module with {self.activation}",
                f"{option('token_vectors')} compares token by token",
            )

    def divide(self, contributions: np.ndarray) -> np.ndarray:
        """Return the contributions to the output [L, out] for those to the input [L, in].

        The layer has no activation; its bias is shared equally.
        """
        outputs = contributions @ self.weight.T.astype(np.float64)
        if self.bias is not None:
            outputs += self.bias / len(contributions)
        if self.residual is not None:
            outputs += contributions @ self.residual.T.astype(np.float64)
        return outputs


def _stable_product(vectors: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the product [..., out] of vectors [..., in] and a weight [out, in].

    Unlike a matrix product, the bits of a row do not depend on the number of rows.
    """
    return np.einsum("...i,oi->...o", np.ascontiguousarray(vectors), weight)


@dataclass(frozen=True)
class UnitLength:
    """The module Normalize: scales vectors to length 1."""

    kind = "Normalize"

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the vectors scaled to length 1."""
        return truncate_and_normalize(vectors, normalize=True)

    def divide(self, contributions: np.ndarray) -> np.ndarray:
        """Return the contributions to the output for those to the input, [L, D]."""
        return contributions / max(float(np.linalg.norm(contributions.sum(0))), SHORTEST)


@dataclass(frozen=True)
class VectorNorm:
    """The module LayerNorm: mean 0 and variance 1 per vector, then a scale and a bias."""

    weight: np.ndarray  # [D]
    bias: np.ndarray  # [D]
    kind = "LayerNorm"

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the normalized vectors [..., D]."""
        centred = vectors - vectors.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON))
        return np.asarray(scaled * self.weight + self.bias, np.float32)

    def divide(self, contributions: np.ndarray) -> np.ndarray:
        """Return the contributions to the output for those to the input, [L, D].

        The deviation is that of their sum, so the rest is linear.
        """
        centred = contributions - contributions.mean(-1, keepdims=True)
        variance = np.square(centred.sum(0)).mean()
        scaled = centred / np.sqrt(variance + LAYER_NORM_EPSILON)
        return scaled * self.weight + self.bias / len(contributions)


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [n, D] scaled to length 1, in float64; a zero vector is unchanged."""
    doubles = vectors.astype(np.float64)
    lengths = np.linalg.norm(doubles, axis=1, keepdims=True)
    return np.divide(doubles, lengths, out=np.zeros_like(doubles), where=lengths > 0)


VectorModule: TypeAlias = Dense | UnitLength | VectorNorm  # a module after the pooling


def read_modules(
    folder: ModelFolder, modules: Iterable[SentenceModule]
) -> tuple[VectorModule, ...]:
    """Return the modules, read from their folders, in order.

    Raises ModelError for a module with missing or misshapen weights or an unsupported activation.
    """
    return tuple(
        MODULE_READERS[module.class_name](folder.subfolder(module.path)) for module in modules
    )


def output_width(modules: Iterable[VectorModule], width: int, folder: ModelFolder) -> int:
    """Return the width of vectors after modules, from their ``width`` before them.

    Raises ModelError, with the folder, if the widths do not match.
    """
    for module in modules:
        if isinstance(module, UnitLength):
            continue
        input_width = module.weight.shape[-1]
        if input_width != width:
            raise ModelError(
                f"{folder}: {module.kind} takes vectors of {input_width} dimensions, "
                f"and those before it have {width}",
                f"give {option('pooling')} (mean, cls, ...) to take the vectors of the "
                "encoder inside",
            )
        width = len(module.weight)
    return width


def describe_modules(modules: Sequence[VectorModule]) -> list[dict[str, Any]]:
    """Return the name and the sha256 of the arrays of each module, for manifests."""
    import hashlib  # only runs that write a manifest need it

    descriptions = []
    for module in modules:
        digest = hashlib.sha256(getattr(module, "activation", "").encode())
        for array in vars(module).values():
            if isinstance(array, np.ndarray):
                digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        descriptions.append({"kind": module.kind, "sha256": digest.hexdigest()})
    return descriptions


# --- reading ---


def _read_dense(folder: ModelFolder) -> Dense:
    config = folder.json_object(MODULE_CONFIG)
    # Tanh is the default of sentence-transformers.
    function = config.text("activation_function") or "torch.nn.modules.activation.Tanh"
    activation = function.rpartition(".")[2]
    files = folder.require_weights()
    if activation not in TORCH_CLASSES or not function.startswith("torch.nn."):
        raise ModelError(
            f"{config.source}: unsupported activation {function}",
            f"bertcli has {', '.join(TORCH_CLASSES)}",
        )
    layer = read_linear(files, folder, "linear.")
    residual = None
    if config.switch("use_residual"):
        tensors = read_float_arrays(files, "residual.")
        shape = layer.weight.shape
        if shape[0] == shape[1]:
            tensors.setdefault("residual.weight", np.eye(shape[0], dtype=np.float32))
        residual = _checked_tensor(tensors, "residual.weight", folder, shape)
    return replace(layer, activation=activation, residual=residual)


def _checked_tensor(
    tensors: Mapping[str, np.ndarray], name: str, location: object, shape: int | tuple[int, ...]
) -> np.ndarray:
    """Return the tensor of this name. Raises ModelError if it is missing or misshapen.

    ``shape`` is the expected shape, or the expected number of axes. ``location`` is for messages.
    """
    tensor = tensors.get(name)
    if tensor is None:
        raise ModelError(f"{location}: {name} is missing in its weights", DOWNLOAD_AGAIN)
    if shape not in (tensor.ndim, tensor.shape) or not tensor.size:
        raise ModelError(
            f"{location}: {name} has the unexpected shape {list(tensor.shape)}", DOWNLOAD_AGAIN
        )
    return tensor


def _read_vector_norm(folder: ModelFolder) -> VectorNorm:
    tensors = read_float_arrays(folder.require_weights())
    weight = _checked_tensor(tensors, "norm.weight", folder, 1)
    return VectorNorm(weight, _checked_tensor(tensors, "norm.bias", folder, weight.shape))


def read_linear(files: WeightFiles, location: object, prefix: str = "") -> Dense:
    """Return the linear layer whose tensor names start with ``prefix``.

    Raises ModelError, with the location, if there is none.
    """
    tensors = read_float_arrays(files, prefix)
    weight = _checked_tensor(tensors, f"{prefix}weight", location, 2)
    bias = None
    if f"{prefix}bias" in tensors:
        bias = _checked_tensor(tensors, f"{prefix}bias", location, weight.shape[:1])
    return Dense(weight, bias)


def read_float_arrays(files: WeightFiles, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the tensors whose names start with ``prefix``, as float32, by name."""
    # Imported here because few models have such modules.
    from bertcli.model_folder.tensors import as_float32, map_tensor, read_tensors

    return {
        tensor.name: as_float32(map_tensor(tensor), tensor).copy()
        for tensor in read_tensors(files)
        if tensor.name.startswith(prefix)
    }


MODULE_READERS: Mapping[str, Callable[[ModelFolder], VectorModule]] = {
    "Dense": _read_dense,
    "Normalize": lambda folder: UnitLength(),
    "LayerNorm": _read_vector_norm,
}


# --- writing ---

IDENTITY = "torch.nn.modules.linear.Identity"  # activation of a Dense module


def write_sentence_files(
    folder: Path,
    options: EmbedOptions,
    base: ModelFolder,
    sentence: SentenceSettings,
    *,
    max_length: int,
    width: int,
    layer: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Write the files that turn a folder with a BERT into a sentence model.

    ``options`` set the pooling of states of this ``width``. ``base`` is the model from which
    prompts and further modules are copied, ``sentence`` its settings. ``layer`` is an optional last
    Dense module: weight [out, in], bias [out].
    """
    pooling: dict[str, Any] = {"word_embedding_dimension": width}
    pooling |= {
        key: POOLING_NAMES[name] in options.modes for key, name in LEGACY_POOLING_KEYS.items()
    }
    pooling["include_prompt"] = sentence.include_prompt
    # Name of each module, and its config or the folder that it is copied from.
    modules: list[tuple[str, ModelFolder | dict[str, Any]]] = [("Pooling", pooling)]
    modules += [(module.class_name, base.subfolder(module.path)) for module in sentence.of_texts]
    if options.normalize:
        modules.append(("Normalize", {}))
    if layer:
        weight, bias = layer
        outputs, inputs = weight.shape
        dense = {"in_features": inputs, "out_features": outputs, "bias": True}
        modules.append(("Dense", dense | {"activation_function": IDENTITY}))
    names = {"": "Transformer"}
    for number, (name, content) in enumerate(modules, 1):
        module_folder = folder / f"{number}_{name}"
        names[module_folder.name] = name
        module_folder.mkdir()
        if isinstance(content, dict):
            write_json(module_folder / MODULE_CONFIG, content)
        else:
            for path in (content / MODULE_CONFIG, *content.weights.all_files):
                if path.is_file():
                    shutil.copyfile(path, module_folder / path.name)
    if layer:  # `module_folder` is that of the last module, the Dense layer
        with (module_folder / "model.safetensors").open("wb") as file:
            write_arrays(file, {"linear.weight": weight, "linear.bias": bias})
    write_modules_file(folder, names)
    limits = {"max_seq_length": max_length, "do_lower_case": sentence.lower_case}
    write_json(folder / "sentence_bert_config.json", limits)
    if (base / SENTENCE_CONFIG).is_file():
        shutil.copyfile(base / SENTENCE_CONFIG, folder / SENTENCE_CONFIG)
    if layer and sentence.dim:  # truncate_dim is for the vectors before the layer
        config = read_object(folder / SENTENCE_CONFIG)
        write_json(
            folder / SENTENCE_CONFIG, {key: config[key] for key in config if key != "truncate_dim"}
        )


def write_modules_file(folder: Path, names: Mapping[str, str]) -> None:
    """Write modules.json. ``names`` maps the path of each module to its class name, in order."""
    entries = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for index, (path, name) in enumerate(names.items())
    ]
    write_json(folder / "modules.json", entries)
