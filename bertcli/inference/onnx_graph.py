"""The graph of a model as an ONNX file, made of the same operations; the package onnx writes it.

Source: the operators of ONNX, opset 20, and of OpenVINO, opset 15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
SAME = {  # operations with the same inputs and no attributes; OpenVINO's name -> ONNX's
    "Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "FloorMod": "Mod",
    "Maximum": "Max", "Minimum": "Min", "Abs": "Abs", "Sqrt": "Sqrt", "Log": "Log", "Sin": "Sin",
    "Cos": "Cos", "Tanh": "Tanh", "Relu": "Relu", "Sigmoid": "Sigmoid", "Mish": "Mish",
    "HSwish": "HardSwish", "PRelu": "PRelu", "Select": "Where", "LogicalAnd": "And",
    "LogicalOr": "Or",
    "Equal": "Equal", "Less": "Less", "LessEqual": "LessOrEqual", "GreaterEqual": "GreaterOrEqual",
    "Range": "Range", "Exp": "Exp",
}  # fmt: skip
WHOLE = {  # operations whose second input is int64 in ONNX: a shape, or axes
    "Reshape": "Reshape", "Unsqueeze": "Unsqueeze", "Squeeze": "Squeeze", "Broadcast": "Expand",
    "ReduceSum": "ReduceSum", "ReduceMean": "ReduceMean", "ReduceMax": "ReduceMax",
    "ReduceProd": "ReduceProd",
}  # fmt: skip


class OnnxNodes:
    """The operations of a graph so far."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.numbers: list[Any] = []

    def __call__(self, operation: str, *inputs: str, **attributes: object) -> str:
        """Add an operation; return the name of its output."""
        name = f"{operation}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, inputs, [name], **attributes))
        return name

    def constant(self, array: np.ndarray, kind: int) -> str:
        """Add a constant of a type of ONNX; return its name."""
        name, tensor = f"constant_{len(self.numbers)}", self.onnx.helper.make_tensor
        self.numbers.append(tensor(name, kind, array.shape, array.tobytes(), raw=True))
        return name

    def int64(self, values: list[int]) -> str:
        """Add a constant of whole numbers."""
        return self.constant(np.array(values, np.int64), TYPES["i64"])

    def float32(self, value: float) -> str:
        """Add a number."""
        return self.constant(np.array(value, np.float32), TYPES["f32"])


def write_onnx(graph: Any, path: Path) -> None:
    """Write a model of OpenVINO as ONNX. BertcliError where the package onnx is not installed."""
    try:
        import onnx
    except ImportError as failed:
        raise BertcliError(
            f"--to onnx needs the package onnx: {failed}", install_command("onnx")
        ) from None
    add = OnnxNodes(onnx)
    names: dict[tuple[str, int], str] = {}  # of what a node of OpenVINO gives, in ONNX
    for node in graph.get_ordered_ops():
        inputs = [names[_key(value.get_source_output())] for value in node.inputs()]
        match node.get_type_name():
            case "Parameter":
                written = [node.get_friendly_name()]
            case "Constant":
                written = [add.constant(*_numbers(node))]
            case "Result":
                continue
            case "Split":
                count = node.get_attributes()["num_splits"]
                axis = int(node.input_value(1).get_node().data)
                written = [f"Split_{len(add.nodes)}_{part}" for part in range(count)]
                attributes = {"axis": axis, "num_outputs": count}
                add.nodes.append(onnx.helper.make_node("Split", inputs[:1], written, **attributes))
            case _:
                written = [_added(add, node, inputs)]
        names |= {(node.get_name(), at): name for at, name in enumerate(written)}
    ends = []
    for result in graph.get_results():
        source = result.input_value(0)
        (name,) = source.get_names()
        add.nodes.append(onnx.helper.make_node("Identity", [names[_key(source)]], [name]))
        ends.append((name, result))
    _save(onnx, add, graph, ends, path)


def _save(onnx: Any, add: OnnxNodes, graph: Any, ends: list[tuple[str, Any]], path: Path) -> None:
    def described(name: str, port: Any) -> Any:
        sizes = [
            None if size.is_dynamic else size.get_length() for size in port.get_partial_shape()
        ]
        shape = [
            size or axis for size, axis in zip(sizes, ("batch", "length", "width"), strict=False)
        ]
        kind = TYPES[port.get_element_type().get_type_name()]
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    inputs = [described(p.get_friendly_name(), p.output(0)) for p in graph.get_parameters()]
    results = [described(name, result.output(0)) for name, result in ends]
    read = {name for node in add.nodes for name in node.input}
    numbers = [tensor for tensor in add.numbers if tensor.name in read]
    body = onnx.helper.make_graph(add.nodes, "bertcli", inputs, results, numbers)
    model = onnx.helper.make_model(
        body, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    apart = sum(len(tensor.raw_data) for tensor in numbers) > LARGE
    onnx.save_model(model, str(path), save_as_external_data=apart, location=f"{path.name}_data")


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _numbers(node: Any) -> tuple[np.ndarray, int]:
    return np.asarray(node.data), TYPES[node.get_element_type().get_type_name()]


def _added(add: OnnxNodes, node: Any, inputs: list[str]) -> str:
    """Add what an operation of OpenVINO is in ONNX; return the name of its output."""
    kind, attributes = node.get_type_name(), node.get_attributes()
    if kind in SAME:
        return add(SAME[kind], *inputs)
    if kind in WHOLE:
        axes = add("Cast", inputs[1], to=TYPES["i64"])
        keep = {"keepdims": int(attributes["keep_dims"])} if kind.startswith("Reduce") else {}
        return add(WHOLE[kind], inputs[0], axes, **keep)
    make: Mapping[str, Callable[[], str]] = {
        "Convert": lambda: add("Cast", inputs[0], to=TYPES[attributes["destination_type"]]),
        "ShapeOf": lambda: add(
            "Cast", add("Shape", inputs[0]), to=TYPES[attributes["output_type"]]
        ),
        "NotEqual": lambda: add("Not", add("Equal", *inputs)),
        "Concat": lambda: add("Concat", *inputs, axis=attributes["axis"]),
        "Einsum": lambda: add("Einsum", *inputs, equation=attributes["equation"]),
        "GatherElements": lambda: add("GatherElements", *inputs, axis=attributes["axis"]),
        "Gather": lambda: add("Gather", *inputs[:2], axis=int(node.input_value(2).get_node().data)),
        "Transpose": lambda: add(
            "Transpose", inputs[0], perm=[*map(int, node.input_value(1).get_node().data)]
        ),
        "CumSum": lambda: add("CumSum", *inputs, exclusive=int(attributes["exclusive"])),
        "Clamp": lambda: add(
            "Clip", inputs[0], add.float32(attributes["min"]), add.float32(attributes["max"])
        ),
        "Swish": lambda: add("Mul", inputs[0], add("Sigmoid", inputs[0])),
        "Gelu": lambda: add(
            "Gelu",
            inputs[0],
            approximate=attributes["approximation_mode"].lower().replace("erf", "none"),
        ),
        "GroupConvolution": lambda: _convolved(add, node, *inputs),
        "MatMul": lambda: _product(add, node, inputs),
        "MVN": lambda: _normed(add, node, inputs[0]),
        "NormalizeL2": lambda: add(
            "Div",
            inputs[0],
            add("Max", add("ReduceL2", inputs[0], add.int64([-1])), add.float32(attributes["eps"])),
        ),
        "ScaledDotProductAttention": lambda: _attended(add, node, *inputs),
    }
    return make[kind]()


def _product(add: OnnxNodes, node: Any, inputs: list[str]) -> str:
    if node.get_attributes()["transpose_b"]:
        axes = len(node.input_value(1).get_partial_shape())
        inputs = [inputs[0], _swapped(add, inputs[1], axes)]
    return add("MatMul", *inputs)


def _swapped(add: OnnxNodes, name: str, axes: int) -> str:
    return add("Transpose", name, perm=[*range(axes - 2), axes - 1, axes - 2])


def _normed(add: OnnxNodes, node: Any, x: str) -> str:
    width = node.get_output_partial_shape(0)
    scale = add.constant(np.ones(width[len(width) - 1].get_length(), np.float32), TYPES["f32"])
    return add("LayerNormalization", x, scale, epsilon=node.get_attributes()["eps"])


def _attended(add: OnnxNodes, node: Any, q: str, k: str, v: str, bias: str) -> str:
    size = node.input_value(0).get_partial_shape()[3].get_length()
    scores = add("MatMul", add("Mul", q, add.float32(size**-0.5)), _swapped(add, k, 4))
    return add("MatMul", add("Softmax", add("Add", scores, bias), axis=-1), v)


def _convolved(add: OnnxNodes, node: Any, x: str, weight: str) -> str:
    groups, size, *others = (axis.get_length() for axis in node.input_value(1).get_partial_shape())
    whole = add("Reshape", weight, add.int64([groups * size, *others]))
    attributes = node.get_attributes()
    return add(
        "Conv", x, whole, group=groups, pads=[*attributes["pads_begin"], *attributes["pads_end"]]
    )
