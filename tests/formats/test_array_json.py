"""Arrays as JSON: every number reads back as it was."""

import json

import numpy as np
import pytest

from bertcli.formats.jsonl import json_of

EVERY_EXPONENT = np.random.default_rng(5).integers(0, 1 << 32, 40_000, "u4").view("f4")
USUAL = np.random.default_rng(6).normal(0, 0.05, 40_000).astype("f4")
EDGES = [0.0, -0.0, 1.0, 0.1, 1e-4, 1e-5, 1e-45, 999999.0, 1e6, 1e16, 3.4e38, 16777216.0]


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "uint8"])
def test_every_number_reads_back(kind):
    finite = EVERY_EXPONENT[np.isfinite(EVERY_EXPONENT)]
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.concatenate([finite, USUAL, np.float32(EDGES)]).astype(kind)
    values = values[np.isfinite(values)]
    values = values[: len(values) // 8 * 8]
    for shape in ((-1, 8), (-1, 2, 4), (1, len(values))):
        arrays = values.reshape(shape)
        texts = list(json_of(arrays))
        assert np.array_equal(np.array(list(map(json.loads, texts)), kind), arrays)
