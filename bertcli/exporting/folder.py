"""Export a model as one graph, from padded ids to sentence vectors or logits.

    export(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), Path("made"), ExportOptions())

The folder has the layout of the hub: `openvino/openvino_model.xml` or `onnx/model.onnx`, with the
tokenizer and the configs beside it, so `-m made` runs it too. The graph is compared with the model
on a sample that ships with bertcli; `manifest.json` has the accuracy.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.embedding.sentence_modules import (
    LAYER_NORM_EPSILON,
    Dense,
    UnitLength,
    VectorModule,
    VectorNorm,
)
from bertcli.engines.compute import compile_settings, import_nncf, import_openvino
from bertcli.engines.engine import PackedTokens, StateSelection
from bertcli.engines.openvino_graph import (
    LOGITS,
    STATES,
    Node,
    OpenvinoNetwork,
    apply_activation,
    before_mean,
    hidden_states,
    logits,
    token_means,
)
from bertcli.engines.openvino_inputs import PaddedTexts
from bertcli.errors import BertcliError, ModelError, UsageError, option
from bertcli.exporting.graphs import (
    VECTORS,
    calibration_texts,
    named_model,
    quantize_by_default,
    quantize_exactly,
    split_outliers,
    write_onnx,
    write_openvino,
)
from bertcli.io.paths import sha256
from bertcli.io.publish import MANIFEST, whole_folder
from bertcli.io.typed_json import parse_objects, write_json
from bertcli.model_folder.files import GRAPHS, MODULES
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.weights import Weights, read_weights
from bertcli.models.activations import TORCH_CLASSES
from bertcli.tasks.head import (
    COMMANDS,
    Head,
    Settings,
    command_of,
    head_logits,
    source_entries,
)

FILES = {"openvino": GRAPHS["float32"], "onnx": "onnx/model.onnx"}
HELD_OUT_INTERVAL = 4  # every 4th text of the sample measures accuracy and does not calibrate
GRAPH_SUFFIXES = (".onnx", ".xml")
MIN_COSINE = 0.9  # minimum mean cosine; a graph below it is refused


# --- graph operations equal to embedding/pooling.py and embedding/sentence_modules.py ---


def pool(net: OpenvinoNetwork, x: Node, mode: str) -> Node:
    """Pool the states [B, L, D] of texts; return [B, D]. Raises ModelError for other modes."""
    match mode:
        case "cls":
            return net("Gather", x, 0, 1)
        case "max":
            is_token = net("Unsqueeze", net.is_attended, [2])
            return net("ReduceMax", net("Select", is_token, x, -np.inf), [1])
        case "mean":
            return token_means(net, x)
    raise ModelError(f"a model with pooling {mode} cannot be exported", "cls, max and mean can be")


def apply_module(net: OpenvinoNetwork, x: Node, module: VectorModule) -> Node:
    """Return the output [..., D] of a module for vectors [..., D]."""
    match module:
        case UnitLength():
            length = net("Sqrt", net("ReduceSum", net("Multiply", x, x), [-1]))
            return net("Divide", x, net("Unsqueeze", net("Maximum", length, 1e-12), -1))
        case VectorNorm():
            x = net("MVN", x, [-1], eps=LAYER_NORM_EPSILON)
            return net("Add", net("Multiply", x, module.weight), module.bias)
        case Dense():
            y = net("MatMul", x, module.weight)
            if module.bias is not None:
                y = net("Add", y, module.bias)
            y = apply_activation(net, y, TORCH_CLASSES[module.activation])
            if module.residual is None:
                return y
            return net("Add", y, net("MatMul", x, module.residual))


def sentence_outputs(net: OpenvinoNetwork, embedder: RecordEmbedder) -> dict[str, Node]:
    """Return the outputs: last hidden states [B, L, hidden] and text vectors [B, D]."""
    options = embedder.options
    (hidden,) = hidden_states(net, (net.config.num_hidden_layers,))
    pooled = [pool(net, hidden, mode) for mode in options.modes]
    vectors = pooled[0] if len(pooled) == 1 else net("Concat", *pooled, axis=-1)
    for module in embedder.modules:
        vectors = apply_module(net, vectors, module)
    if options.normalize and options.dim_last:
        vectors = apply_module(net, vectors, UnitLength())
    if options.dim:
        vectors = net("Gather", vectors, np.arange(options.dim), 1)
    if options.normalize and not options.dim_last:
        vectors = apply_module(net, vectors, UnitLength())
    return {STATES: hidden, VECTORS: vectors}


def head_outputs(net: OpenvinoNetwork, reading: StateSelection) -> dict[str, Node]:
    """Return the output of a model with a head: its logits."""
    (hidden,) = hidden_states(net, (net.config.num_hidden_layers,))
    if reading.token_mean:
        hidden = token_means(net, before_mean(net, hidden))
    elif reading.first_token:
        hidden = pool(net, hidden, "cls")
    return {LOGITS: logits(net, hidden)}


# --- the folder ---


@dataclass(frozen=True)
class ExportOptions:
    """The file format and number format of an exported graph."""

    to: Literal["openvino", "onnx"] = "openvino"
    dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    accuracy: Literal["high", "fast"] = "high"  # of int8

    def __post_init__(self) -> None:
        """Raise UsageError for an accuracy of another number format than int8."""
        if self.accuracy != "high" and self.dtype != "int8":
            raise UsageError(
                f"{option('accuracy', self.accuracy)} requires {option('dtype', 'int8')}",
                f"leave out {option('accuracy')}",
            )

    @property
    def file(self) -> str:
        """The path of the graph, relative to the folder."""
        return GRAPHS["int8"] if self.dtype == "int8" else FILES[self.to]


def export(
    source: ModelFolder, output: Path, options: ExportOptions, *, overwrite: bool = False
) -> dict[str, Any]:
    """Write a folder with the graph of a model, and return its manifest.

    Raises ModelError for a model that cannot be exported, BertcliError for a graph with a mean
    cosine below ``MIN_COSINE``, OutputError if the folder cannot be written, UsageError for an
    output named like a graph file.
    """
    if output.suffix.lower() in GRAPH_SUFFIXES and not output.is_dir():
        folder_name = output.with_suffix("")
        raise UsageError(
            f"{option('output', output)} is named like a file, but export writes a folder",
            f"-o {folder_name} {option('to', 'onnx')} writes {folder_name}/{FILES['onnx']}",
        )
    # Imported first, so that a missing package fails early.
    nncf_module = import_nncf() if options.dtype == "int8" else None
    model = _open_model(source)
    spec = model.runtime.spec
    config = model.runtime.config
    if config.extra_embeddings:
        raise ModelError(f"{spec.folder}: a model with extra embeddings cannot be exported")
    texts = calibration_texts(spec, config)
    held_out = texts[::HELD_OUT_INTERVAL]
    weights = read_weights(spec.folder, spec.architecture, spec.pooler)
    sample: list[dict[str, np.ndarray]] = []  # inputs of the graph that calibrate it
    if nncf_module:
        for index, text in enumerate(texts):
            if index % HELD_OUT_INTERVAL:
                sample.append(PaddedTexts(config.most_tokens).inputs(text))
        if options.accuracy == "high":
            weights = split_outliers(weights, sample)
    elif options.dtype == "bfloat16":
        weights = round_to_bfloat16(weights)
    net = OpenvinoNetwork(weights)
    if isinstance(model, RecordEmbedder):
        outputs = sentence_outputs(net, model)
    else:
        outputs = head_outputs(net, spec.selection)
    graph = named_model(net, outputs)
    if nncf_module:
        arrays = [[inputs[name] for name in net.inputs] for inputs in sample]
        quantize = quantize_exactly if options.accuracy == "high" else quantize_by_default
        graph = quantize(nncf_module, graph, arrays)
    manifest = source_entries(source, spec) | {
        "to": options.to,
        "dtype": options.dtype,
        **({"quantization": options.accuracy} if nncf_module else {}),
        "outputs": list(outputs),
    }
    inputs = source.model_files
    with whole_folder(output, "export", overwrite=overwrite, inputs=inputs) as folder:
        _copy_configs(source, folder)
        path = folder / options.file
        path.parent.mkdir()
        if options.to == "onnx":
            write_onnx(graph, path)
        else:
            write_openvino(graph, path)
        accuracy = agreement(model, graph, held_out)
        if not accuracy["mean_cosine"] >= MIN_COSINE:
            raise BertcliError(
                f"in {options.dtype}, this model gives other numbers: their mean cosine to "
                f"float32 is {accuracy['mean_cosine']}",
                "export it in float32",
            )
        files = sorted(path.parent.iterdir())
        manifest |= {
            "accuracy": accuracy,
            "sha256": {file.relative_to(folder).as_posix(): sha256(file) for file in files},
        }
        write_json(folder / MANIFEST, manifest)
    return manifest


def _open_model(source: ModelFolder) -> RecordEmbedder | Head:
    """Open a model with the head in its config.json, or for sentence vectors without one."""
    command = "" if (source.path / MODULES).exists() else command_of(source)
    if command:
        return Head.open(source, COMMANDS[command], Settings("openvino"))
    return RecordEmbedder.open(source, EmbedOptions("openvino"))


def _copy_configs(source: ModelFolder, folder: Path) -> None:
    """Copy the tokenizer, the configs and the modules, moving the encoder's files to the top."""
    encoder = source.encoder
    weight_files = {*encoder.weights.all_files}
    for path in source.model_files:
        if path in weight_files or not path.is_file():
            continue
        parent = encoder if path.is_relative_to(encoder.path) else source
        target = folder / path.relative_to(parent.path)
        target.parent.mkdir(exist_ok=True)
        if path.name == MODULES:
            write_json(target, _modules_at_top(source, path))
        else:
            shutil.copyfile(path, target)


def _modules_at_top(source: ModelFolder, path: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json, with the encoder in the folder itself."""
    modules = []
    for entry in parse_objects(path.read_bytes(), path):
        is_encoder = source / entry["path"] == source.encoder.path
        modules.append({**entry, "path": "" if is_encoder else entry["path"]})
    return modules


def round_to_bfloat16(weights: Weights) -> Weights:
    """Return weights with matrices rounded to bfloat16 (nearest, ties to even), as uint16 bits."""

    def bfloat16_bits(array: np.ndarray) -> np.ndarray:
        if array.ndim < 2 or array.dtype != np.float32:
            return array
        float32_bits = array.view(np.uint32)
        last_kept_bit = (float32_bits >> 16) & 1
        return ((float32_bits + 0x7FFF + last_kept_bit) >> 16).astype(np.uint16)

    arrays = {name: bfloat16_bits(array) for name, array in weights.arrays.items()}
    return replace(weights, arrays=arrays)


# --- accuracy ---


def agreement(
    model: RecordEmbedder | Head, graph: Any, texts: Sequence[PackedTokens]
) -> dict[str, float]:
    """Compare the outputs of a graph with the model's in float32, on texts of the sample.

    Return the number of texts, the worst and the mean cosine, and the largest difference.
    """
    compiled = import_openvino().Core().compile_model(graph, "CPU", compile_settings("float32"))
    names = [value.get_any_name() for value in compiled.inputs]
    cosines = []
    largest_difference = 0.0
    reading = model.runtime.spec.selection
    for text in texts:
        inputs = PaddedTexts(model.runtime.config.most_tokens).inputs(text)
        outputs = compiled({name: inputs[name] for name in names})
        if isinstance(model, RecordEmbedder):
            (expected,) = model.vectors_of(text)
            (found,) = outputs[VECTORS]
        else:
            finish = partial(head_logits, is_per_text=reading.one_row_per_text)
            (expected,) = model.run(text, finish)
            (found,) = outputs[LOGITS]
            if not reading.one_row_per_text:
                found = found[: len(text.ids)]  # without padding
            if reading.token_id is not None:
                found = found[text.ids == reading.token_id]
        largest_difference = max(largest_difference, float(np.abs(expected - found).max()))
        cosines.append(_cosine(expected, found))
    return {
        "texts": len(texts),
        "worst_cosine": round(min(cosines), 7),
        "mean_cosine": round(float(np.mean(cosines)), 7),
        "largest_difference": largest_difference,
    }


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine of two arrays as flat vectors; 1 if one of them is zero."""
    a = a.ravel().astype(np.float64)
    b = b.ravel().astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 1.0
