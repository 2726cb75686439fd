"""Write the graph of a model as OpenVINO IR or ONNX, and quantize it to 8 bits.

    (x,) = hidden_states(net, [depth])     # [B, L, hidden]
    graph = named_model(net, {STATES: x})
    write_onnx(graph, Path("DIR/onnx/model.onnx"))

The ONNX graph is translated operation by operation and written by the package onnx. Source: the
operators of ONNX, opset 20, and of OpenVINO, opset 15.

A quantized graph multiplies 8-bit integers, with ranges calibrated on a sample that ships with
bertcli. NNCF chooses the scales, per output channel for weights and per tensor for activations, and
moves differences between activation channels into the weights (SmoothQuant). Embeddings are 8-bit
too; attention, LayerNorm and sums stay float32.

With ``accuracy="high"`` three settings differ from the defaults of NNCF. Outlier channels of
feed-forward blocks, which would set the scale for all others, stay float32 (`split_outliers`): they
caused nearly all of the error. Activation ranges are the minimum and maximum over the sample, not
the mean of the ranges of its texts, which clips: this halves the error of the worst text. Queries
and keys are not quantized, because attention multiplies float32.
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

from bertcli.engines.compute import compile_settings, import_openvino
from bertcli.engines.engine import ModelSpec, PackedTokens
from bertcli.engines.openvino_graph import (
    OUTLIERS,
    Node,
    OpenvinoNetwork,
    hidden_states,
    named_node,
)
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
    return import_openvino().Model(model)  # the class that NNCF expects


def write_openvino(graph: Any, path: Path) -> None:
    """Write an OpenVINO model as IR: an XML file, and a .bin file beside it.

    Raises OSError if they cannot be written.
    """
    try:
        import_openvino().save_model(graph, str(path), compress_to_fp16=False)
    except RuntimeError as failed:
        if "iostream" not in str(failed):  # an error of C++ streams
            raise
        # OpenVINO gives no reason. The folder was just created, so assume a full disk.
        raise OSError(errno.ENOSPC, "OpenVINO could not write all of its files") from None


# --- ONNX ---

OPSET = 20
IR_VERSION = 10
MAX_INLINE_WEIGHTS = 1_500_000_000  # bytes; more are a file of their own: protobuf ends at 2 GB
TYPES = {"f32": 1, "i64": 7, "boolean": 9, "f16": 10, "bf16": 16}  # as in onnx.TensorProto
OPERATIONS = {  # OpenVINO -> ONNX, for operations with equal inputs; unlisted names are the same
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
    onnx_graph = OnnxGraph(onnx.helper)
    for node in graph.get_ordered_ops():
        onnx_graph.translate(node)
    used = {name for node in onnx_graph.nodes for name in node.input}
    tensors = [tensor for tensor in onnx_graph.tensors if tensor.name in used]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            onnx_graph.nodes, "bertcli", onnx_graph.inputs, onnx_graph.outputs, tensors
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    external = sum(len(tensor.raw_data) for tensor in tensors) > MAX_INLINE_WEIGHTS
    onnx.save_model(model, str(path), save_as_external_data=external, location=f"{path.name}_data")


class OnnxGraph:
    """An ONNX graph that grows by one OpenVINO node at a time, each after its inputs.

    Nodes, tensors, inputs and outputs are messages of the package onnx, of which ``helper`` is a
    module.
    """

    def __init__(self, helper: Any) -> None:
        self.helper = helper
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []  # constants
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.names: dict[str, str] = {}  # name of an OpenVINO node -> name of its ONNX output

    def translate(self, node: Any) -> None:
        """Add an OpenVINO node: an input, a constant, an output or an operation."""
        sources = [port.get_source_output() for port in node.inputs()]
        inputs = [self.names[source.get_node().get_name()] for source in sources]
        match node.get_type_name():
            case "Parameter":
                name = node.get_friendly_name()
                self.inputs.append(self._value_info(name, node.output(0)))
            case "Constant":
                name = self._constant(np.asarray(node.data), node.get_element_type())
            case "Result":
                (name,) = sources[0].get_names()
                self.nodes.append(self.helper.make_node("Identity", inputs, [name]))
                self.outputs.append(self._value_info(name, node.output(0)))
            case _:
                name = self._operation(node, *inputs)
        self.names[node.get_name()] = name

    def _add(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{operation}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operation, inputs, [name], **attributes))
        return name

    def _constant(self, array: np.ndarray, element_type: Any) -> str:
        """Add a constant and return its name. The type is a name in TYPES, or OpenVINO's type."""
        if not isinstance(element_type, str):
            element_type = element_type.get_type_name()
        name = f"constant_{len(self.tensors)}"
        data_type = TYPES[element_type]
        tensor = self.helper.make_tensor(name, data_type, array.shape, array.tobytes(), raw=True)
        self.tensors.append(tensor)
        return name

    def _value_info(self, name: str, port: Any) -> Any:
        """Return the description of an input or output; dynamic axes have a name for a size."""
        axes = zip(port.get_partial_shape(), ("batch", "length", "width"), strict=False)
        shape = [axis if size.is_dynamic else size.get_length() for size, axis in axes]
        data_type = TYPES[port.get_element_type().get_type_name()]
        return self.helper.make_tensor_value_info(name, data_type, shape)

    def _operation(self, node: Any, *inputs: str) -> str:
        """Add the nodes that compute an operation; return the name of the last output."""
        operation = node.get_type_name()
        attributes = node.get_attributes()
        x = inputs[0]
        match operation:
            case "ReduceSum" | "ReduceMean" | "ReduceMax":
                return self._add(operation, *inputs, keepdims=int(attributes["keep_dims"]))
            case "Convert":
                return self._add("Cast", x, to=TYPES[attributes["destination_type"]])
            case "Gather":
                return self._add(operation, *inputs[:2], axis=_constant_input(node, 2))
            case "Transpose":
                return self._add(operation, x, perm=_constant_input(node, 1))
            case "Gelu":
                modes = {"ERF": "none", "TANH": "tanh"}
                approximate = modes[attributes["approximation_mode"].upper()]
                return self._add(operation, x, approximate=approximate)
            case "MVN":
                ones = self._constant(np.ones(_input_shape(node, 0)[-1], np.float32), "f32")
                return self._add("LayerNormalization", x, ones, epsilon=attributes["eps"])
            case "MatMul":
                y = self._transposed(node, inputs, 1) if attributes["transpose_b"] else inputs[1]
                return self._add(operation, x, y)
            case "ScaledDotProductAttention":
                factor = np.array(_input_shape(node, 0)[-1] ** -0.5, np.float32)
                products = self._add("MatMul", x, self._transposed(node, inputs, 1))
                scores = self._add("Mul", products, self._constant(factor, "f32"))
                weights = self._add("Softmax", self._add("Add", scores, inputs[3]))
                return self._add("MatMul", weights, inputs[2])
            case "GroupConvolution":
                groups, outputs, *others = _input_shape(node, 1)
                shape = self._constant(np.array([groups * outputs, *others]), "i64")
                weight = self._add("Reshape", inputs[1], shape)
                pads = [*attributes["pads_begin"], *attributes["pads_end"]]
                return self._add("Conv", x, weight, group=groups, pads=pads)
        same = {name: attributes[name] for name in ("axis", "equation") if name in attributes}
        return self._add(OPERATIONS.get(operation, operation), *inputs, **same)

    def _transposed(self, node: Any, inputs: Sequence[str], index: int) -> str:
        """Add the transposition of the last two axes of an input of an OpenVINO node."""
        *others, rows, columns = range(len(_input_shape(node, index)))
        return self._add("Transpose", inputs[index], perm=[*others, columns, rows])


def _input_shape(node: Any, index: int) -> list[int]:
    """Return the shape of an input of an OpenVINO node; a dynamic size is 0."""
    sizes = node.input_value(index).get_partial_shape()
    return [0 if size.is_dynamic else size.get_length() for size in sizes]


def _constant_input(node: Any, index: int) -> Any:
    """Return the value of an input of an OpenVINO node that is a constant."""
    return node.input_value(index).get_node().data.tolist()


# --- 8 bits ---

OUTLIER_INTERVAL = 96  # 1 in 96 feed-forward channels stays float32
# Tensor of a layer -> axis of the feed-forward channels. The output bias is not split: it is added
# once.
CHANNEL_AXES = {
    "intermediate.dense.weight": 0,
    "intermediate.dense.bias": 0,
    "intermediate.gate.weight": 0,
    "intermediate.gate.bias": 0,
    "output.dense.weight": 1,
}
SMOOTHING = 0.7  # alpha of SmoothQuant: the share moved from activations to weights


def calibration_texts(spec: ModelSpec, config: BertConfig) -> list[PackedTokens]:
    """Return the tokenized texts of the calibration sample."""
    tokenizer = Tokenizer.load(spec.folder)
    layout = Layout(truncation="longest_first", max_length=config.most_tokens)
    read_token = spec.selection.token_id
    lines = files(__package__).joinpath("calibration.txt").read_text("utf-8").splitlines()
    texts = []
    for item in tokenizer.encode_records([Record(line) for line in lines], layout):
        text = PackedTokens.of([item])
        if read_token is not None:  # the model reads only this token: put one in the middle
            text.ids[len(text.ids) // 2] = read_token
        texts.append(text)
    return texts


def split_outliers(weights: Weights, sample: Sequence[Mapping[str, np.ndarray]]) -> Weights:
    """Return weights with the outlier channels of feed-forward blocks in separate tensors.

    Outliers are the channels with the largest activations for ``sample``, inputs of the graph.
    Raises ModelError for NaN, infinite or too large activations.
    """
    net = OpenvinoNetwork(weights)
    hidden_states(net, [net.config.num_hidden_layers])
    maxima = [net("ReduceMax", net("Abs", wide), [0, 1]) for wide in net.wide_activations.values()]
    graph = import_openvino().Model(net.model(*maxima))
    model = import_openvino().compile_model(graph, "CPU", compile_settings("float32"))
    maxima_of_texts = [
        [*model({name: inputs[name] for name in net.inputs}).values()] for inputs in sample
    ]
    largest = np.max(maxima_of_texts, 0)  # [layers, channels]
    if not np.isfinite(largest).all():
        raise ModelError(
            f"{option('dtype', 'int8')} is not possible: weights, or what they make of texts, "
            "are NaN, infinite or huge",
            "bertcli inspect --verify checks the weights",
        )
    arrays = {**weights.arrays}
    for layer, activations in zip(net.wide_activations, largest, strict=True):
        count = max(1, len(activations) // OUTLIER_INTERVAL)
        is_outlier = np.zeros(len(activations), bool)
        is_outlier[np.argsort(-activations, kind="stable")[:count]] = True
        prefix = f"bert.encoder.layer.{layer}."
        for name, axis in CHANNEL_AXES.items():
            if net.has(prefix + name):
                array = arrays[prefix + name]
                arrays[prefix + name] = np.compress(~is_outlier, array, axis)
                arrays[f"{prefix}{OUTLIERS}{name}"] = np.compress(is_outlier, array, axis)
    return replace(weights, arrays=arrays)


def quantize_exactly(nncf: Any, graph: Any, sample: Sequence[Sequence[np.ndarray]]) -> Any:
    """Return an OpenVINO graph quantized to 8 bits, calibrated on ``sample``.

    ``nncf`` is the module. The sample has the inputs of each text, in the order of the graph's.
    Weights must have been divided by `split_outliers`.
    """
    minmax = import_module("nncf.quantization.range_estimator").RangeEstimatorParametersSet.MINMAX
    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=SMOOTHING)
    return _quantize(
        nncf,
        graph,
        sample,
        ignored_scope=nncf.IgnoredScope(
            types=["ScaledDotProductAttention", "Divide"],
            patterns=[f".*{OUTLIERS}.*"],
            validate=False,
        ),
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            smooth_quant_alphas=smoothing, activations_range_estimator_params=minmax
        ),
    )


def quantize_by_default(nncf: Any, graph: Any, sample: Sequence[Sequence[np.ndarray]]) -> Any:
    """Return an OpenVINO graph quantized to 8 bits with the defaults of NNCF.

    It is faster than that of `quantize_exactly`, and less accurate.
    """
    return _quantize(nncf, graph, sample)


def _quantize(
    nncf: Any, graph: Any, sample: Sequence[Sequence[np.ndarray]], **settings: Any
) -> Any:
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # NNCF prints progress bars
        return nncf.quantize(
            graph,
            nncf.Dataset(sample),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(sample),
            **settings,
        )
