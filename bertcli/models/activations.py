"""The activation functions, each with its implementation for every engine.

    ACTIVATIONS["gelu_new"].torch()       # a function of tensors
    ACTIVATIONS["gelu_new"].openvino      # (network, node) -> node; ONNX is translated from it
    ACTIVATIONS["gelu"].numpy             # a function of arrays, for Dense modules alone

Names are those of `hidden_act` in config.json; `TORCH_CLASSES` has the names that
sentence-transformers writes. torch and NumPy are imported when a function is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Node: TypeAlias = Any  # an output of an operation of OpenVINO
Network: TypeAlias = Callable[..., Node]  # network("Gelu", x, approximation_mode="ERF")
TensorFunction: TypeAlias = "Callable[[Tensor], Tensor]"
ArrayFunction: TypeAlias = "Callable[[np.ndarray], np.ndarray]"


@dataclass(frozen=True)
class ActivationByEngine:
    """One activation function in each engine: the same numbers."""

    torch: Callable[[], TensorFunction]
    openvino: Callable[[Network, Node], Node]
    numpy: ArrayFunction | None = None  # where a Dense module may have it


def _functional(name: str) -> Callable[[], TensorFunction]:
    """Return the import of a function of torch.nn.functional."""

    def load() -> TensorFunction:
        from torch.nn import functional

        function: TensorFunction = getattr(functional, name)
        return function

    return load


def _operation(name: str, **attributes: object) -> Callable[[Network, Node], Node]:
    """Return an operation of OpenVINO with one input."""
    return lambda network, x: network(name, x, **attributes)


# --- torch; `print(model)` shows the names of these functions ---


def gelu_tanh(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its tanh approximation, as in Google's BERT."""
    from torch.nn import functional as F

    return F.gelu(x, approximate="tanh")


def gelu_10(x: Tensor) -> Tensor:
    """Gaussian error linear unit, clipped so that 8-bit integers can hold it."""
    from torch.nn import functional as F

    return F.gelu(x).clamp(-10, 10)


def quick_gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its sigmoid approximation."""
    return x * (1.702 * x).sigmoid()


def relu2(x: Tensor) -> Tensor:
    """Rectified linear unit, squared. Source: Primer, section 4."""
    return x.relu().square()


def laplace(x: Tensor) -> Tensor:
    """Distribution function of a normal variable near relu2. Source: Mega, section 3.2."""
    return 0.5 * (1 + ((x - 0.707107) / (0.282095 * math.sqrt(2))).erf())


def sqrt_softplus(x: Tensor) -> Tensor:
    """Square root of the smooth rectified linear unit."""
    from torch.nn import functional as F

    return F.softplus(x).sqrt()


def linear(x: Tensor) -> Tensor:
    """Identity."""
    return x


# --- OpenVINO ---


def _gelu_10_node(network: Network, x: Node) -> Node:
    x = network("Gelu", x, approximation_mode="ERF")
    return network("Maximum", network("Minimum", x, 10.0), -10.0)


def _quick_gelu_node(network: Network, x: Node) -> Node:
    return network("Multiply", x, network("Sigmoid", network("Multiply", x, 1.702)))


def _relu2_node(network: Network, x: Node) -> Node:
    positive = network("Relu", x)
    return network("Multiply", positive, positive)


def _relu6_node(network: Network, x: Node) -> Node:
    return network("Minimum", network("Relu", x), 6.0)


def _leaky_relu_node(network: Network, x: Node) -> Node:
    return network("PRelu", x, 0.01)


def _silu_node(network: Network, x: Node) -> Node:
    return network("Multiply", x, network("Sigmoid", x))


def _laplace_node(network: Network, x: Node) -> Node:
    x = network("Divide", network("Subtract", x, 0.707107), 0.282095 * math.sqrt(2))
    return network("Multiply", network("Add", network("Erf", x), 1.0), 0.5)


def _sqrt_softplus_node(network: Network, x: Node) -> Node:
    # OpenVINO's SoftPlus of numbers around -16 may be negative; below -6 two terms of the series of
    # log(1 + y) are exact in float32.
    y = network("Exp", x)
    series = network("Multiply", y, network("Subtract", 1.0, network("Multiply", y, 0.5)))
    softplus = network("Select", network("Less", x, -6.0), series, network("SoftPlus", x))
    return network("Sqrt", softplus)


def _linear_node(network: Network, x: Node) -> Node:
    return x


# --- NumPy ---


def _gelu_array(x: np.ndarray) -> np.ndarray:
    import numpy as np

    erf = np.vectorize(math.erf, otypes=[np.float64])
    result: np.ndarray = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return result


def _relu_array(x: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.maximum(x, 0)


def _sigmoid_array(x: np.ndarray) -> np.ndarray:
    import numpy as np

    with np.errstate(over="ignore"):
        scores: np.ndarray = 1 / (1 + np.exp(-x))
    return scores


def _silu_array(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid_array(x)


def _tanh_array(x: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.tanh(x)


def _linear_array(x: np.ndarray) -> np.ndarray:
    return x


# --- the table ---

GELU = ActivationByEngine(
    _functional("gelu"), _operation("Gelu", approximation_mode="ERF"), _gelu_array
)
GELU_TANH = ActivationByEngine(lambda: gelu_tanh, _operation("Gelu", approximation_mode="TANH"))
SILU = ActivationByEngine(_functional("silu"), _silu_node, _silu_array)

ACTIVATIONS: Mapping[str, ActivationByEngine] = {
    "gelu": GELU,
    "gelu_python": GELU,
    "gelu_new": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "gelu_accurate": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "gelu_python_tanh": GELU_TANH,
    "gelu_10": ActivationByEngine(lambda: gelu_10, _gelu_10_node),
    "quick_gelu": ActivationByEngine(lambda: quick_gelu, _quick_gelu_node),
    "relu": ActivationByEngine(_functional("relu"), _operation("Relu"), _relu_array),
    "relu2": ActivationByEngine(lambda: relu2, _relu2_node),
    "relu6": ActivationByEngine(_functional("relu6"), _relu6_node),
    "leaky_relu": ActivationByEngine(_functional("leaky_relu"), _leaky_relu_node),
    "silu": SILU,
    "swish": SILU,
    "hardswish": ActivationByEngine(_functional("hardswish"), _operation("HSwish")),
    "mish": ActivationByEngine(_functional("mish"), _operation("Mish")),
    "laplace": ActivationByEngine(lambda: laplace, _laplace_node),
    "sqrtsoftplus": ActivationByEngine(lambda: sqrt_softplus, _sqrt_softplus_node),
    "sigmoid": ActivationByEngine(_functional("sigmoid"), _operation("Sigmoid"), _sigmoid_array),
    "tanh": ActivationByEngine(_functional("tanh"), _operation("Tanh"), _tanh_array),
    "linear": ActivationByEngine(lambda: linear, _linear_node, _linear_array),
}

# Name of a class in torch.nn, as sentence-transformers writes it -> name in ACTIVATIONS.
TORCH_CLASSES: Mapping[str, str] = {
    "Identity": "linear",
    "Tanh": "tanh",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "GELU": "gelu",
    "SiLU": "silu",
}


def array_function(torch_class: str) -> ArrayFunction:
    """Return the function of arrays [..., D] that equals a class of TORCH_CLASSES."""
    function = ACTIVATIONS[TORCH_CLASSES[torch_class]].numpy
    assert function is not None
    return function


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of scores [..., D] over the last axis."""
    import numpy as np

    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
