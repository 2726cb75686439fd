"""Numbers that positions are made of, by the config alone: for torch and for OpenVINO the same.

Logarithms and powers are float32 as in torch, rounded from float64: those of libraries, compilers
and devices differ in the last bit. Nothing here needs torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bertcli.families.structure import Disentangled, Rotary

EXACT = 128  # of buckets: all distances from here on share one on each side


def distance_buckets() -> np.ndarray:
    """Return the bucket, of 32, of each distance from -EXACT to EXACT, of a query behind a key.

    Source: T5, section 2.1; the buckets of MPNet.
    """
    apart = np.arange(-EXACT, EXACT + 1)
    away, half, near = np.abs(apart), 16, 8
    far = _log(np.maximum(away, near) / near) / np.float32(math.log(EXACT / near)) * (half - near)
    far = np.minimum(near + far.astype(np.int64), half - 1)
    return np.where(away < near, away, far) + half * (apart < 0)


def distance_rows(disentangled: Disentangled) -> np.ndarray:
    """Return the row of each distance from -2 longest to 2 longest, of a query behind a key.

    Source: make_log_bucket_position of DeBERTa.
    """
    span, longest = disentangled.span, disentangled.longest
    apart = np.arange(-2 * longest, 2 * longest + 1)
    if disentangled.buckets:
        near = span // 2
        size = np.maximum(np.abs(apart), near)
        far = _log(size / near) / _log(np.array((longest - 1) / near))
        far = np.ceil(far * np.float32(near - 1)) + near
        apart = np.where(np.abs(apart) <= near, apart, (far * np.sign(apart)).astype(np.int64))
    return np.clip(apart + span, 0, 2 * span - 1)


def rotary_turns(head_size: int, rotary: Rotary) -> np.ndarray:
    """Return the angle from place to place of each pair of dimensions, float32 [D / 2].

    Source: RoFormer, section 3.2.2.
    """
    even = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    with np.errstate(all="ignore"):  # what is not finite is refused with the vectors
        theta = np.float64(np.float32(rotary.theta))
        powers = (theta ** even.astype(np.float64)).astype(np.float32)
        return np.float32(1) / powers / np.float32(rotary.scaling)


def _log(numbers: np.ndarray) -> np.ndarray:
    rounded = numbers.astype(np.float32).astype(np.float64)
    return np.log(rounded).astype(np.float32)
