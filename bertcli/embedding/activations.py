"""Activations of Dense layers in NumPy, as torch.nn has them with their defaults.

Each number becomes another on its own, so that its bits do not depend on the others. Source:
torch.nn.modules.activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

Activation = Callable[[np.ndarray], np.ndarray]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_SELU, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # Klambauer et al. 2017
_RRELU = (1 / 8 + 1 / 3) / 2  # outside of training, the mean of its bounds


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        found: np.ndarray = 1 / (1 + np.exp(-x))
    return found


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _hardsigmoid(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.clip(x + 3, 0, 6) / 6
    return found


def _leaky(slope: float) -> Activation:
    return lambda x: np.where(x > 0, x, slope * x)


def _selu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, _SELU * x, _SELU * _SELU_ALPHA * np.expm1(np.minimum(x, 0)))


# The name of a class in torch.nn -> [..., D] -> [..., D].
ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": _sigmoid,
    "CELU": _elu,
    "ELU": _elu,
    "GELU": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "Hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "Hardsigmoid": _hardsigmoid,
    "Hardswish": lambda x: x * _hardsigmoid(x),
    "Hardtanh": lambda x: np.clip(x, -1, 1),
    "LeakyReLU": _leaky(0.01),
    "LogSigmoid": lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "RReLU": _leaky(_RRELU),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "SELU": _selu,
    "SiLU": lambda x: x * _sigmoid(x),
    "Softplus": _softplus,
    "Softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tanhshrink": lambda x: x - np.tanh(x),
}
