"""Tables of distances and angles, which depend on the config alone; torch and OpenVINO share them.

Logarithms and powers are computed in float64 and rounded to float32, because those of libraries,
compilers and devices differ in the last bit. Nothing here needs torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bertcli.families.structure import Disentangled, Rotary

LAST_BUCKET_DISTANCE = 128  # from here on, all distances on a side share a bucket


def distance_buckets() -> np.ndarray:
    """Return the bucket, 0 to 31, of each distance from -LAST_BUCKET_DISTANCE to its positive.

    A distance is the position of the query minus that of the key.

    Source: T5, section 2.1; the buckets of MPNet.
    """
    buckets_per_side = 16
    exact_buckets = 8  # per side, of one distance each; the others are logarithmic
    distances = np.arange(-LAST_BUCKET_DISTANCE, LAST_BUCKET_DISTANCE + 1)
    sizes = np.abs(distances)
    logs = _log(np.maximum(sizes, exact_buckets) / exact_buckets)
    log_range = np.float32(math.log(LAST_BUCKET_DISTANCE / exact_buckets))
    steps = logs / log_range * (buckets_per_side - exact_buckets)
    far = np.minimum(exact_buckets + steps.astype(np.int64), buckets_per_side - 1)
    return np.where(sizes < exact_buckets, sizes, far) + buckets_per_side * (distances < 0)


def distance_rows(disentangled: Disentangled) -> np.ndarray:
    """Return the row of the table of vectors for each distance from -2 longest to 2 longest.

    A distance is the position of the query minus that of the key.
    Source: make_log_bucket_position of DeBERTa.
    """
    span = disentangled.span
    longest = disentangled.longest
    distances = np.arange(-2 * longest, 2 * longest + 1)
    if disentangled.buckets:
        exact = span // 2  # distances up to here have a row each; the others are logarithmic
        sizes = np.maximum(np.abs(distances), exact)
        far = _log(sizes / exact) / _log(np.array((longest - 1) / exact))
        far = np.ceil(far * np.float32(exact - 1)) + exact
        far_rows = (far * np.sign(distances)).astype(np.int64)
        distances = np.where(np.abs(distances) <= exact, distances, far_rows)
    return np.clip(distances + span, 0, 2 * span - 1)


def rotary_frequencies(head_size: int, rotary: Rotary) -> np.ndarray:
    """Return the angle per position of each pair of dimensions, float32 [D / 2].

    Source: RoFormer, section 3.2.2.
    """
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    with np.errstate(all="ignore"):  # vectors that are not finite are refused later
        theta = np.float64(np.float32(rotary.theta))
        powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
        return np.float32(1) / powers / np.float32(rotary.scaling)


def _log(numbers: np.ndarray) -> np.ndarray:
    rounded = numbers.astype(np.float32).astype(np.float64)
    return np.log(rounded).astype(np.float32)
