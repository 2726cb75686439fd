"""The modules after the pooling of a sentence model (Dense, Normalize, LayerNorm), in NumPy.

Each module takes token or text vectors [..., D]. The result for a vector is bit-identical whatever
other vectors are in the array. `options` reads which modules a folder has; `write_sentence_parts`
writes the files of a sentence model that sentence-transformers can read. Source:
sentence-transformers 6.2, Dense, Normalize, LayerNorm; activations are the classes of torch.nn with
their default arguments.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bertcli.embedding.options import CONFIG, LEGACY, MODES, EmbedOptions, Sentence
from bertcli.embedding.pooling import finish
from bertcli.errors import ModelError, option
from bertcli.formats.safetensors import write_arrays
from bertcli.io.typed_json import AGAIN, read_object, write_json
from bertcli.model_folder.files import SentenceModule, WeightFiles
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.activations import TORCH_CLASSES, array_function

MODULE = "config.json"  # config of a module, beside its weights
EPSILON = 1e-5  # default of torch.nn.LayerNorm


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of scores [..., D] over the last axis."""
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Dense:
    """A linear layer with an activation: vectors [..., in] to [..., out].

    Source: sentence-transformers, base/modules/dense.py.
    """

    weight: np.ndarray  # [out, in]
    bias: np.ndarray | None = None  # [out]
    activation: str = "Identity"
    residual: np.ndarray | None = None  # [out, in], added after the activation
    kind = "Dense"

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the outputs [..., out] of the layer for vectors [..., in]."""
        linear = _product(vectors, self.weight)
        linear = linear if self.bias is None else linear + self.bias
        result = array_function(self.activation)(linear)
        if self.residual is not None:
            result = result + _product(vectors, self.residual)
        return np.asarray(result, np.float32)


def _product(vectors: np.ndarray, weight: np.ndarray) -> np.ndarray:
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
        return finish(vectors, normalize=True)


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
        scaled = centred / np.sqrt(variance + np.float32(EPSILON))
        return np.asarray(scaled * self.weight + self.bias, np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [n, D] scaled to length 1, in float64; a zero vector is unchanged."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)


VectorModule: TypeAlias = Dense | UnitLength | VectorNorm  # a module after the pooling


def read_chain(folder: ModelFolder, modules: Iterable[SentenceModule]) -> tuple[VectorModule, ...]:
    """Return the modules, read from their folders, in order.

    Raises ModelError for a module with missing or misshapen weights or an unsupported activation.
    """
    return tuple(READERS[module.class_name](folder.subfolder(module.path)) for module in modules)


def width_after(chain: Iterable[VectorModule], width: int, where: ModelFolder) -> int:
    """Return the width of vectors after modules. Raises ModelError if the widths do not match."""
    for module in chain:
        if isinstance(module, UnitLength):
            continue
        if (takes := module.weight.shape[-1]) != width:
            raise ModelError(
                f"{where}: {module.kind} takes vectors of {takes} dimensions, "
                f"and those before it have {width}",
                f"give {option('pooling')} (mean, cls, ...) to take the vectors of the "
                "encoder inside",
            )
        width = len(module.weight)
    return width


def described(chain: Sequence[VectorModule]) -> list[dict[str, Any]]:
    """Return the kinds of modules and the sha256 of their arrays, for manifests."""
    import hashlib  # only runs that write a manifest need it

    rows = []
    for module in chain:
        digest = hashlib.sha256(getattr(module, "activation", "").encode())
        for array in vars(module).values():
            if isinstance(array, np.ndarray):
                digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        rows.append({"kind": module.kind, "sha256": digest.hexdigest()})
    return rows


# --- reading ---


def _dense(folder: ModelFolder) -> Dense:
    config = folder.json_object(MODULE)
    # Tanh is the default of sentence-transformers.
    named = config.text("activation_function") or "torch.nn.modules.activation.Tanh"
    name = named.rpartition(".")[2]
    files = folder.require_weights()
    if name not in TORCH_CLASSES or not named.startswith("torch.nn."):
        problem = f"{config.source}: unsupported activation {named}"
        raise ModelError(problem, f"bertcli has {', '.join(TORCH_CLASSES)}")
    layer = linear_in(files, folder, "linear.")
    residual = None
    if config.switch("use_residual"):
        tensors = arrays_in(files, "residual.")
        shape = layer.weight.shape
        if shape[0] == shape[1]:
            tensors.setdefault("residual.weight", np.eye(shape[0], dtype=np.float32))
        residual = _shaped(tensors, "residual.weight", folder, shape)
    return replace(layer, activation=name, residual=residual)


def _shaped(
    tensors: Mapping[str, np.ndarray], name: str, location: object, shape: int | tuple[int, ...]
) -> np.ndarray:
    """Return the tensor of this name. Raises ModelError if it is missing or misshapen.

    ``shape`` is the expected shape, or the expected number of axes. ``location`` is for messages.
    """
    tensor = tensors.get(name)
    if tensor is None:
        raise ModelError(f"{location}: {name} is missing in its weights", AGAIN)
    if shape not in (tensor.ndim, tensor.shape) or not tensor.size:
        raise ModelError(f"{location}: {name} has the unexpected shape {list(tensor.shape)}", AGAIN)
    return tensor


def _vector_norm(folder: ModelFolder) -> VectorNorm:
    tensors = arrays_in(folder.require_weights())
    weight = _shaped(tensors, "norm.weight", folder, 1)
    return VectorNorm(weight, _shaped(tensors, "norm.bias", folder, weight.shape))


def linear_in(files: WeightFiles, where: object, before: str = "") -> Dense:
    """Return the linear layer whose tensor names start with ``before``.

    Raises ModelError if there is none.
    """
    tensors = arrays_in(files, before)
    weight = _shaped(tensors, f"{before}weight", where, 2)
    bias = None
    if f"{before}bias" in tensors:
        bias = _shaped(tensors, f"{before}bias", where, weight.shape[:1])
    return Dense(weight, bias)


def arrays_in(files: WeightFiles, before: str = "") -> dict[str, np.ndarray]:
    """Return the tensors whose names start with ``before``, as float32, by name."""
    # Imported here because few models have such modules.
    from bertcli.model_folder.tensors import as_float32, map_tensor, read_tensors

    return {
        tensor.name: as_float32(map_tensor(tensor), tensor).copy()
        for tensor in read_tensors(files)
        if tensor.name.startswith(before)
    }


READERS: Mapping[str, Callable[[ModelFolder], VectorModule]] = {
    "Dense": _dense,
    "Normalize": lambda folder: UnitLength(),
    "LayerNorm": _vector_norm,
}


IDENTITY = "torch.nn.modules.linear.Identity"


def write_sentence_parts(
    folder: Path,
    options: EmbedOptions,
    base: ModelFolder,
    sentence: Sentence,
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
    pooling |= {key: MODES[name] in options.modes for key, name in LEGACY.items()}
    pooling["include_prompt"] = sentence.include_prompt
    chain: list[tuple[str, ModelFolder | dict[str, Any]]] = [("Pooling", pooling)]
    chain += [(module.class_name, base.subfolder(module.path)) for module in sentence.of_texts]
    chain += [("Normalize", {})] * bool(options.normalize)
    if layer:
        weight, bias = layer
        outputs, inputs = weight.shape
        dense = {"in_features": inputs, "out_features": outputs, "bias": True}
        chain.append(("Dense", dense | {"activation_function": IDENTITY}))
    kinds = {"": "Transformer"}
    for at, (kind, content) in enumerate(chain, 1):
        place = folder / f"{at}_{kind}"
        kinds[place.name] = kind
        place.mkdir()
        if isinstance(content, dict):
            write_json(place / "config.json", content)
        else:
            for path in (content / "config.json", *content.weights.all_files):
                if path.is_file():
                    shutil.copyfile(path, place / path.name)
    if layer:  # `place` is the folder of the last module, the Dense layer
        with (place / "model.safetensors").open("wb") as file:
            write_arrays(file, {"linear.weight": weight, "linear.bias": bias})
    put_modules(folder, kinds)
    limits = {"max_seq_length": max_length, "do_lower_case": sentence.lower_case}
    write_json(folder / "sentence_bert_config.json", limits)
    if (base / CONFIG).is_file():
        shutil.copyfile(base / CONFIG, folder / CONFIG)
    if layer and sentence.dim:  # truncate_dim is for the vectors before the layer
        config = read_object(folder / CONFIG)
        write_json(folder / CONFIG, {key: config[key] for key in config if key != "truncate_dim"})


def put_modules(folder: Path, kinds: Mapping[str, str]) -> None:
    """Write modules.json. ``kinds`` maps the path of each module to its kind, in order."""
    rows = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", rows)
