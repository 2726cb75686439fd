"""Arrays as JSON: the digits of NumPy, whatever writes them."""

import json

import numpy as np
import pytest

from bertcli.files.array_json import LEAST, MOST, json_of

EVERY_EXPONENT = np.random.default_rng(5).integers(0, 1 << 32, 40_000, "u4").view("f4")
USUAL = np.random.default_rng(6).normal(0, 0.05, 40_000).astype("f4")
EDGES = [0.0, -0.0, 1.0, 0.1, 1e-4, 1e-5, 1e-45, 999999.0, 1e6, 1e16, 3.4e38, 16777216.0]
NEAR = [
    np.nextafter(np.float32(edge), np.float32(side))
    for edge in (LEAST, MOST, 1e-4, 1e-3, 1.0, 1e5)
    for side in (0.0, 1e9)
]


def by_numpy(array):
    if array.ndim > 1:
        return f"[{','.join(map(by_numpy, array))}]"
    return f"[{','.join(array.astype('U32').tolist())}]"


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "uint8"])
def test_the_digits_are_those_of_numpy(kind):
    finite = EVERY_EXPONENT[np.isfinite(EVERY_EXPONENT)]
    values = np.concatenate([finite, USUAL, np.float32(EDGES), np.float32(NEAR)])
    with np.errstate(over="ignore", invalid="ignore"):
        values = values.astype(kind)
    values = values[: len(values) // 8 * 8]
    for shape in ((-1, 8), (-1, 2, 4), (1, len(values))):
        found = values.reshape(shape)
        assert list(json_of(found)) == [by_numpy(one) for one in found]
    if kind == "float32":
        assert np.array_equal(np.float32(json.loads(next(json_of(values[None])))), values)


def test_arrays_without_numbers_and_views():
    assert list(json_of(np.zeros((0, 3), np.float32))) == []
    assert list(json_of(np.zeros((2, 0), np.float32))) == ["[]", "[]"]
    wide = USUAL.reshape(-1, 8)
    assert list(json_of(wide[::2, 1:3])) == [by_numpy(one) for one in wide[::2, 1:3]]
