"""Quantised vectors are byte for byte those of sentence-transformers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from vector_files import normal

from bertcli.formats.precision import PRECISIONS, quantize, ranges_of

THEIRS = [precision for precision in PRECISIONS if precision != "float16"]
BYTES = ("int8", "uint8")
VECTORS = arrays(
    np.float32,
    st.tuples(st.integers(2, 6), st.integers(1, 19)),
    elements=st.floats(-8, 8, width=32) | st.sampled_from([0.0, -0.0, 1.0]),
)


def calibrated(vectors):
    return ranges_of([vectors])


def same(ours, expected):
    assert ours.dtype == expected.dtype
    np.testing.assert_array_equal(ours, expected)


def theirs(vectors, precision, limits=None):
    from sentence_transformers.util.quantization import quantize_embeddings

    return quantize_embeddings(vectors, precision, ranges=limits)


@pytest.mark.parity
@pytest.mark.parametrize("precision", THEIRS)
@settings(deadline=None, max_examples=60)
@given(vectors=VECTORS)
def test_every_precision_is_theirs(precision, vectors):
    limits = calibrated(vectors)
    same(quantize(vectors, precision, limits), theirs(vectors, precision))
    same(quantize(vectors, precision, limits), theirs(vectors, precision, limits))
    same(quantize(vectors[0], precision, limits), theirs(vectors[0], precision, limits))


@pytest.mark.parity
@pytest.mark.parametrize("precision", BYTES)
def test_values_outside_the_ranges_are_theirs(precision):
    limits = np.repeat(np.float32([[-0.5], [0.5]]), 20, axis=1)
    same(quantize(normal(50, 20), precision, limits), theirs(normal(50, 20), precision, limits))
