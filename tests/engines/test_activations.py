"""Every activation function gives the same numbers in torch, OpenVINO, ONNX and NumPy."""

import numpy as np
import openvino
import pytest
import torch
from onnx import reference

from bertcli.engines.compute import openvino_core
from bertcli.engines.openvino_graph import OPERATIONS, OpenvinoNetwork
from bertcli.exporting.graphs import write_onnx
from bertcli.models.activations import ACTIVATIONS, TORCH_CLASSES, array_function

POINTS = np.concatenate([np.linspace(-30, 30, 601), np.linspace(-2, 2, 399)]).astype(np.float32)


class Graph(OpenvinoNetwork):
    """A network without a model: an activation of one input."""

    def __init__(self, name):
        self.core = openvino_core()
        self.factory = self.core.NodeFactory(OPERATIONS)
        shape = self.core.PartialShape([len(POINTS)])
        x = self.core.op.Parameter(self.core.Type.f32, shape)
        x.output(0).get_tensor().set_names({"x"})
        x.set_friendly_name("x")
        self.inputs = {"x": x}
        y = ACTIVATIONS[name].openvino(self, x.output(0))
        y = self("Add", y, 0.0)  # the output has a name of its own, also where it is the input
        y.get_tensor().set_names({"y"})
        self.graph = self.model(y)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_engines_agree(name, tmp_path):
    expected = ACTIVATIONS[name].torch()(torch.from_numpy(POINTS).double()).numpy()
    graph = Graph(name).graph
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    (compiled,) = openvino.compile_model(openvino.Model(graph), "CPU", exact)(POINTS).values()
    np.testing.assert_allclose(compiled, expected, rtol=1e-5, atol=2e-6)

    write_onnx(graph, tmp_path / "y.onnx")
    (translated,) = reference.ReferenceEvaluator(str(tmp_path / "y.onnx")).run(None, {"x": POINTS})
    np.testing.assert_allclose(translated, expected, rtol=1e-5, atol=2e-6)

    function = ACTIVATIONS[name].numpy
    if function is not None:
        np.testing.assert_allclose(function(POINTS), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("torch_class", TORCH_CLASSES)
def test_classes_of_torch_are_these_functions(torch_class):
    expected = getattr(torch.nn, torch_class)()(torch.from_numpy(POINTS)).numpy()
    np.testing.assert_allclose(array_function(torch_class)(POINTS), expected, rtol=1e-5, atol=2e-6)
