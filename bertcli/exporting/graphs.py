"""Write the graph of a model as OpenVINO IR or ONNX, and quantize it to 8 bits.

    (x,) = states(net, [depth])     # [B, L, hidden]
    graph = named_model(net, {STATES: x})
    write_onnx(graph, Path("DIR/onnx/model.onnx"))

The ONNX graph is translated operation by operation and written by the package onnx. Source: the
operators of ONNX, opset 20, and of OpenVINO, opset 15.

A quantized graph multiplies 8-bit integers, with ranges calibrated on a sample that ships with
bertcli. NNCF chooses the scales, per output channel for weights and per tensor for activations, and
moves differences between activation channels into the weights (SmoothQuant). Embeddings are 8-bit
too; attention, LayerNorm and sums stay float32.

Three settings differ from the defaults of NNCF. Outlier channels of feed-forward blocks, which
would set the scale for all others, stay float32 (`loud_apart`): they caused nearly all of the
error. Activation ranges are the minimum and maximum over the sample, not the mean of the ranges of
its texts, which clips: this halves the error of the worst text. Queries and keys are not quantized,
because attention multiplies float32.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.engines.compute import openvino, settings
from bertcli.engines.engine import ModelSpec, Tokens
from bertcli.engines.openvino_graph import OUTLIERS, Node, OpenvinoNetwork, named_node, states
from bertcli.errors import BertcliError, ModelError, option
from bertcli.model_folder.weights import Weights
from bertcli.models.config import BertConfig
from bertcli.records.record import Record
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import install_command

VECTORS = "sentence_embedding"  # name of an output, besides STATES and LOGITS


def named_model(net: OpenvinoNetwork, outputs: Mapping[str, Node]) -> Any:
    """Return an OpenVINO model with these outputs, by name."""
    model = net.model(*(named_node(node, name) for name, node in outputs.items()))
    return openvino().Model(model)  # the class that NNCF expects


def write_openvino(graph: Any, path: Path) -> None:
    """Write an OpenVINO model as IR: an XML file, and a .bin file beside it.

    Raises OSError if they cannot be written.
    """
    try:
        openvino().save_model(graph, str(path), compress_to_fp16=False)
    except RuntimeError as failed:
        if "iostream" not in str(failed):  # an error of C++ streams
            raise
        # OpenVINO gives no reason. The folder was just created, so assume a full disk.
        raise OSError(errno.ENOSPC, "OpenVINO could not write all of its files") from None


# --- ONNX ---

OPSET, IR_VERSION = 20, 10
LARGE = 1_500_000_000  # bytes of weights that need a separate file: protobuf is limited to 2 GB
TYPES = {"f32": 1, "i64": 7, "boolean": 9, "f16": 10, "bf16": 16}  # as in onnx.TensorProto
NAMES = {  # OpenVINO -> ONNX names of operations with equal inputs; unlisted names are the same
    "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "Maximum": "Max", "Minimum": "Min",
    "HSwish": "HardSwish", "Select": "Where", "LogicalAnd": "And", "LessEqual": "LessOrEqual",
    "GreaterEqual": "GreaterOrEqual", "SoftPlus": "Softplus", "Broadcast": "Expand",
    "ShapeOf": "Shape",
}  # fmt: skip


def write_onnx(graph: Any, path: Path) -> None:
    """Write an OpenVINO model as ONNX. Raises BertcliError if the package onnx is missing."""
    try:
        import onnx
    except ImportError as failed:
        raise BertcliError(
            f"{option('to', 'onnx')} needs the package onnx: {failed}", install_command("onnx")
        ) from None
    helper = onnx.helper
    nodes: list[Any] = []
    numbers: list[Any] = []
    inputs: list[Any] = []
    outputs: list[Any] = []
    names: dict[str, str] = {}  # name of an OpenVINO node -> name of its ONNX output

    def add(operation: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operation}_{len(nodes)}"
        nodes.append(helper.make_node(operation, inputs, [name], **attributes))
        return name

    def constant(array: np.ndarray, kind: str) -> str:
        name = f"constant_{len(numbers)}"
        size = array.shape
        numbers.append(helper.make_tensor(name, TYPES[kind], size, array.tobytes(), raw=True))
        return name

    def described(name: str, port: Any) -> Any:
        axes = zip(port.get_partial_shape(), ("batch", "length", "width"), strict=False)
        shape = [axis if size.is_dynamic else size.get_length() for size, axis in axes]
        kind = TYPES[port.get_element_type().get_type_name()]
        return helper.make_tensor_value_info(name, kind, shape)

    def translated(node: Any, kind: str, *inputs: str) -> str:
        attributes = node.get_attributes()
        x = inputs[0]

        def shape(place: int) -> list[int]:
            sizes = node.input_value(place).get_partial_shape()
            return [0 if size.is_dynamic else size.get_length() for size in sizes]

        def value(place: int) -> Any:
            return node.input_value(place).get_node().data.tolist()

        def turned(place: int) -> str:
            *others, rows, columns = range(len(shape(place)))
            return add("Transpose", inputs[place], perm=[*others, columns, rows])

        match kind:
            case "ReduceSum" | "ReduceMean" | "ReduceMax":
                return add(kind, *inputs, keepdims=0)
            case "Convert":
                return add("Cast", x, to=TYPES[attributes["destination_type"]])
            case "Gather":
                return add(kind, *inputs[:2], axis=value(2))
            case "Transpose":
                return add(kind, x, perm=value(1))
            case "Gelu":
                way = {"ERF": "none", "TANH": "tanh"}[attributes["approximation_mode"].upper()]
                return add(kind, x, approximate=way)
            case "MVN":
                ones = constant(np.ones(shape(0)[-1], np.float32), "f32")
                return add("LayerNormalization", x, ones, epsilon=attributes["eps"])
            case "MatMul":
                return add(kind, x, turned(1) if attributes["transpose_b"] else inputs[1])
            case "ScaledDotProductAttention":
                scale = constant(np.array(shape(0)[-1] ** -0.5, np.float32), "f32")
                scores = add("Mul", add("MatMul", x, turned(1)), scale)
                return add("MatMul", add("Softmax", add("Add", scores, inputs[3])), inputs[2])
            case "GroupConvolution":
                groups, outputs, *others = shape(1)
                sizes = constant(np.array([groups * outputs, *others]), "i64")
                pads = [*attributes["pads_begin"], *attributes["pads_end"]]
                weight = add("Reshape", inputs[1], sizes)
                return add("Conv", x, weight, group=groups, pads=pads)
        alike = {name: attributes[name] for name in ("axis", "equation") if name in attributes}
        return add(NAMES.get(kind, kind), *inputs, **alike)

    for node in graph.get_ordered_ops():
        sources = [port.get_source_output() for port in node.inputs()]
        given = [names[source.get_node().get_name()] for source in sources]
        match node.get_type_name():
            case "Parameter":
                name = node.get_friendly_name()
                inputs.append(described(name, node.output(0)))
            case "Constant":
                kind = node.get_element_type().get_type_name()
                name = constant(np.asarray(node.data), kind)
            case "Result":
                (name,) = sources[0].get_names()
                nodes.append(helper.make_node("Identity", given, [name]))
                outputs.append(described(name, node.output(0)))
            case kind:
                name = translated(node, kind, *given)
        names[node.get_name()] = name
    read = {name for node in nodes for name in node.input}
    numbers = [tensor for tensor in numbers if tensor.name in read]
    model = helper.make_model(
        helper.make_graph(nodes, "bertcli", inputs, outputs, numbers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    apart = sum(len(tensor.raw_data) for tensor in numbers) > LARGE
    onnx.save_model(model, str(path), save_as_external_data=apart, location=f"{path.name}_data")


# --- 8 bits ---

LOUDEST = 96  # 1 in 96 feed-forward channels stays float32
# Tensor of a layer -> axis of the feed-forward channels. The output bias is not split: it is added
# once.
UNITS = {
    "intermediate.dense.weight": 0,
    "intermediate.dense.bias": 0,
    "intermediate.gate.weight": 0,
    "intermediate.gate.bias": 0,
    "output.dense.weight": 1,
}
SMOOTHED = 0.7  # alpha of SmoothQuant: the share moved from activations to weights


def calibration_texts(spec: ModelSpec, config: BertConfig) -> list[Tokens]:
    """Return the tokenized texts of the calibration sample."""
    tokenizer = Tokenizer.load(spec.folder)
    layout = Layout(truncation="longest_first", max_length=config.most_tokens)
    token = spec.reading.token
    lines = files(__package__).joinpath("calibration.txt").read_text("utf-8").splitlines()
    texts = []
    for item in tokenizer.encode_records([Record(line) for line in lines], layout):
        text = Tokens.of([item])
        if token is not None:  # the model reads only this token: put one in the middle
            text.ids[len(text.ids) // 2] = token
        texts.append(text)
    return texts


def loud_apart(weights: Weights, sample: Sequence[Mapping[str, np.ndarray]]) -> Weights:
    """Return weights with the outlier channels of feed-forward blocks in separate tensors.

    Outliers are the channels with the largest activations for ``sample``, inputs of the graph.
    Raises ModelError for NaN, infinite or too large activations.
    """
    net = OpenvinoNetwork(weights)
    states(net, [net.config.num_hidden_layers])
    largest = [net("ReduceMax", net("Abs", wide), [0, 1]) for wide in net.widened.values()]
    model = openvino().compile_model(
        openvino().Model(net.model(*largest)), "CPU", settings("float32")
    )
    reach = np.max(  # [layers, units]
        [[*model({name: text[name] for name in net.inputs}).values()] for text in sample], 0
    )
    if not np.isfinite(reach).all():
        raise ModelError(
            f"{option('dtype', 'int8')} is not possible: weights, or what they make of texts, "
            "are NaN,"
            " infinite or huge",
            "bertcli inspect --verify checks the weights",
        )
    arrays = {**weights.arrays}
    for layer, size in zip(net.widened, reach, strict=True):
        loud = np.zeros(len(size), bool)
        start = f"bert.encoder.layer.{layer}."
        loud[np.argsort(-size, kind="stable")[: max(1, len(size) // LOUDEST)]] = True
        for name, axis in UNITS.items():
            if net.has(start + name):
                array = arrays[start + name]
                arrays[start + name] = np.compress(~loud, array, axis)
                arrays[f"{start}{OUTLIERS}{name}"] = np.compress(loud, array, axis)
    return replace(weights, arrays=arrays)


def quantized(library: Any, graph: Any, sample: Sequence[Sequence[np.ndarray]]) -> Any:
    """Return an OpenVINO graph quantized to 8 bits, calibrated on ``sample``.

    ``library`` is the module nncf.
    """
    library.set_log_level(logging.ERROR)
    whole = import_module("nncf.quantization.range_estimator").RangeEstimatorParametersSet.MINMAX
    smoothing = library.AdvancedSmoothQuantParameters(matmul=SMOOTHED)
    with redirect_stdout(StringIO()):  # NNCF prints progress bars
        return library.quantize(
            graph,
            library.Dataset(sample),
            model_type=library.ModelType.TRANSFORMER,
            subset_size=len(sample),
            ignored_scope=library.IgnoredScope(
                types=["ScaledDotProductAttention", "Divide"],
                patterns=[f".*{OUTLIERS}.*"],
                validate=False,
            ),
            advanced_parameters=library.AdvancedQuantizationParameters(
                smooth_quant_alphas=smoothing, activations_range_estimator_params=whole
            ),
        )
