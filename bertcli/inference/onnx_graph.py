"""The graph of a model as an ONNX file, made of the same operations; the package onnx writes it.

Source: the operators of ONNX, opset 20, and of OpenVINO, opset 15.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertcli.errors import BertcliError
from bertcli.files.versions import install_command

OPSET, IR_VERSION = 20, 10
LARGE = (
    1_500_000_000  # bytes of numbers from which on they get a file of their own: ONNX ends at 2 GB
)
TYPES = {"f32": 1, "i32": 6, "i64": 7, "boolean": 9, "f16": 10, "bf16": 16}  # onnx.TensorProto
NAMES = {  # in ONNX, of operations with the same inputs and no attributes; others have one name
    "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "FloorMod": "Mod", "Maximum": "Max",
    "Minimum": "Min", "HSwish": "HardSwish", "Select": "Where", "LogicalAnd": "And",
    "LessEqual": "LessOrEqual", "GreaterEqual": "GreaterOrEqual", "SoftPlus": "Softplus",
    "Broadcast": "Expand",
}  # fmt: skip


class OnnxNodes:
    """The operations of a graph so far."""

    def __init__(self, onnx: Any) -> None:
        self.helper = onnx.helper
        self.nodes: list[Any] = []
        self.numbers: list[Any] = []

    def __call__(
        self, operation: str, *inputs: str | float | list[int], **attributes: object
    ) -> str:
        """Add an operation, numbers among whose inputs become constants; return its output."""
        names = [
            value
            if isinstance(value, str)
            else self.constant(np.array(value, np.int64), TYPES["i64"])
            if isinstance(value, list)
            else self.constant(np.array(value, np.float32), TYPES["f32"])
            for value in inputs
        ]
        name = f"{operation}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operation, names, [name], **attributes))
        return name

    def constant(self, array: np.ndarray, kind: int) -> str:
        """Add a constant of a type of ONNX; return its name."""
        name, tensor = f"constant_{len(self.numbers)}", self.helper.make_tensor
        self.numbers.append(tensor(name, kind, array.shape, array.tobytes(), raw=True))
        return name


def write_onnx(graph: Any, path: Path) -> None:
    """Write a model of OpenVINO as ONNX. BertcliError where the package onnx is not installed."""
    try:
        import onnx
    except ImportError as failed:
        raise BertcliError(
            f"--to onnx needs the package onnx: {failed}", install_command("onnx")
        ) from None
    add, helper = OnnxNodes(onnx), onnx.helper
    names: dict[tuple[str, int], str] = {}  # of what a node of OpenVINO gives, in ONNX
    inputs, results = [], []

    def described(name: str, port: Any) -> Any:
        axes = zip(port.get_partial_shape(), ("batch", "length", "width"), strict=False)
        shape = [axis if size.is_dynamic else size.get_length() for size, axis in axes]
        kind = TYPES[port.get_element_type().get_type_name()]
        return helper.make_tensor_value_info(name, kind, shape)

    for node in graph.get_ordered_ops():
        sources = [value.get_source_output() for value in node.inputs()]
        given = [names[source.get_node().get_name(), source.get_index()] for source in sources]
        match node.get_type_name():
            case "Parameter":
                name = node.get_friendly_name()
                inputs.append(described(name, node.output(0)))
                written = [name]
            case "Constant":
                kind = TYPES[node.get_element_type().get_type_name()]
                written = [add.constant(np.asarray(node.data), kind)]
            case "Result":
                (name,) = sources[0].get_names()
                add.nodes.append(helper.make_node("Identity", given, [name]))
                results.append(described(name, node.output(0)))
                continue
            case "Split":
                count = node.get_attributes()["num_splits"]
                written = [f"Split_{len(add.nodes)}_{part}" for part in range(count)]
                attributes = {"axis": _constant(node, 1), "num_outputs": count}
                add.nodes.append(helper.make_node("Split", given[:1], written, **attributes))
            case _:
                written = [_added(add, node, given)]
        names |= {(node.get_name(), at): name for at, name in enumerate(written)}
    read = {name for node in add.nodes for name in node.input}
    numbers = [tensor for tensor in add.numbers if tensor.name in read]
    model = helper.make_model(
        helper.make_graph(add.nodes, "bertcli", inputs, results, numbers),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    apart = sum(len(tensor.raw_data) for tensor in numbers) > LARGE
    onnx.save_model(model, str(path), save_as_external_data=apart, location=f"{path.name}_data")


def _constant(node: Any, place: int) -> Any:
    """Return the number, or the numbers, that an input is."""
    return node.input_value(place).get_node().data.tolist()


def _added(add: OnnxNodes, node: Any, inputs: list[str]) -> str:
    """Add what an operation of OpenVINO is in ONNX; return the name of its output."""
    kind, attributes = node.get_type_name(), node.get_attributes()
    x = inputs[0]

    def sizes(place: int) -> list[int]:  # of the last axes, which are known
        shape = node.input_value(place).get_partial_shape()
        return [0 if size.is_dynamic else size.get_length() for size in shape]

    def turned(name: str, place: int) -> str:
        *others, rows, columns = range(len(sizes(place)))
        return add("Transpose", name, perm=[*others, columns, rows])

    match kind:
        case "Reshape" | "Unsqueeze" | "Squeeze" | "Broadcast":
            return add(NAMES.get(kind, kind), x, add("Cast", inputs[1], to=TYPES["i64"]))
        case "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceProd":
            axes = add("Cast", inputs[1], to=TYPES["i64"])
            return add(kind, x, axes, keepdims=int(attributes["keep_dims"]))
        case "Convert":
            return add("Cast", x, to=TYPES[attributes["destination_type"]])
        case "ShapeOf":
            return add("Cast", add("Shape", x), to=TYPES[attributes["output_type"]])
        case "NotEqual":
            return add("Not", add("Equal", *inputs))
        case "Concat" | "GatherElements":
            return add(kind, *inputs, axis=attributes["axis"])
        case "Einsum":
            return add(kind, *inputs, equation=attributes["equation"])
        case "Gather":
            return add(kind, *inputs[:2], axis=_constant(node, 2))
        case "Transpose":
            return add(kind, x, perm=_constant(node, 1))
        case "CumSum":
            return add(kind, *inputs, exclusive=int(attributes["exclusive"]))
        case "Clamp":
            return add("Clip", x, float(attributes["min"]), float(attributes["max"]))
        case "Swish":
            return add("Mul", x, add("Sigmoid", x))
        case "Gelu":
            way = {"ERF": "none", "TANH": "tanh"}[attributes["approximation_mode"].upper()]
            return add(kind, x, approximate=way)
        case "NormalizeL2":
            size = add("Max", add("ReduceL2", x, [-1]), float(attributes["eps"]))
            return add("Div", x, size)
        case "MVN":
            ones = np.ones(sizes(0)[-1], np.float32)
            scale = add.constant(ones, TYPES["f32"])
            return add("LayerNormalization", x, scale, epsilon=attributes["eps"])
        case "MatMul":
            return add(kind, x, turned(inputs[1], 1) if attributes["transpose_b"] else inputs[1])
        case "ScaledDotProductAttention":
            _, k, v, bias = inputs
            scores = add("MatMul", add("Mul", x, sizes(0)[-1] ** -0.5), turned(k, 1))
            return add("MatMul", add("Softmax", add("Add", scores, bias), axis=-1), v)
        case "GroupConvolution":
            groups, outputs, *others = sizes(1)
            whole = add("Reshape", inputs[1], [groups * outputs, *others])
            pads = [*attributes["pads_begin"], *attributes["pads_end"]]
            return add("Conv", x, whole, group=groups, pads=pads)
    return add(NAMES.get(kind, kind), *inputs)
