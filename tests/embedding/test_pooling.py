"""Pooling is that of sentence-transformers, and a vector does not know its neighbours."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from bertcli.embedding.options import POOLING_NAMES
from bertcli.embedding.pooling import POOLING_FUNCTIONS, pool, pool_windows, truncate_and_normalize

D = 12
OURS = tuple(POOLING_FUNCTIONS)
THEIRS = {ours: theirs for theirs, ours in POOLING_NAMES.items()}
COMBINED = [
    pytest.param(modes, id="+".join(modes)) for n in (1, 2, 6) for modes in combinations(OURS, n)
]
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def states_of(lengths, *rest, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), *rest, D, generator=generator)


def theirs(states, lengths, modes, prompt_length=None):
    """What sentence-transformers gives for the same states, padded with noise."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    padded = torch.full((len(lengths), max(lengths), states.shape[-1]), 77.0, dtype=states.dtype)
    keep = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, part in enumerate(states.split(list(lengths))):
        padded[row, : len(part)], keep[row, : len(part)] = part, 1
    module = Pooling(
        states.shape[-1],
        tuple(THEIRS[mode] for mode in modes),
        include_prompt=prompt_length is None,
    )
    features = {"token_embeddings": padded, "attention_mask": keep}
    if prompt_length is not None:
        features["prompt_length"] = prompt_length
    return module(features)["sentence_embedding"]


def close(ours, expected):
    assert_close(ours, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("modes", COMBINED)
def test_every_mode_and_combination_is_theirs(modes):
    lengths = [2, 2, 9, 5, 1, 5, 5, 30, 3]
    states = states_of(lengths)
    expected = theirs(states, lengths, modes)
    close(pool(states, lengths, modes), expected)
    close(torch.from_numpy(pool(states.numpy(), lengths, modes)), expected)


@pytest.mark.parity
@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, prompt=st.integers(0, 10), seed=st.integers(0, 99))
def test_a_prompt_is_left_out_as_in_theirs(lengths, prompt, seed):
    assume(prompt < min(lengths))
    states = states_of(lengths, seed=seed)
    ours = pool(states, lengths, OURS, skip=prompt)
    expected = theirs(states, lengths, OURS, prompt_length=prompt)
    close(ours, expected)
    of_numpy = pool(states.numpy(), lengths, OURS, skip=prompt)
    close(torch.from_numpy(of_numpy), expected)


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_a_vector_is_the_same_alone_and_in_any_batch_to_the_last_bit(lengths, seed):
    states = states_of(lengths, seed=seed)
    together = pool(states, lengths, OURS)
    for row, part in enumerate(states.split(lengths)):
        assert torch.equal(together[row], pool(part, [lengths[row]], OURS)[0])
    together = pool(states.numpy(), lengths, OURS)
    for row, part in enumerate(states.split(lengths)):
        assert np.array_equal(together[row], pool(part.numpy(), [lengths[row]], OURS)[0])


def test_windows_are_averaged_by_their_tokens():
    vectors = np.array([[1.0, 2.0], [4.0, 0.0], [0.3, 0.7]], np.float32)
    found = pool_windows(vectors, [2, 1], [30, 10, 7])
    np.testing.assert_allclose(found, [[1.75, 1.5], [0.3, 0.7]], atol=1e-6)
    assert np.array_equal(found[1], vectors[2])


@pytest.mark.parity
def test_vectors_are_cut_before_they_are_normalised():
    from sentence_transformers.util import normalize_embeddings, truncate_embeddings

    vectors = states_of([9])
    expected = normalize_embeddings(truncate_embeddings(vectors, 5))
    vectors = vectors.numpy()
    close(torch.from_numpy(truncate_and_normalize(vectors, dim=5, normalize=True)), expected)
    assert np.array_equal(truncate_and_normalize(vectors, dim=5), vectors[:, :5])
    lengths = np.linalg.norm(truncate_and_normalize(vectors, normalize=True), axis=-1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    assert not truncate_and_normalize(np.zeros((1, D)), normalize=True).any()
