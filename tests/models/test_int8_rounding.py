"""Rounding of weights: what it must be near to, and the same by the textbook's way."""

import numpy as np
import pytest
import torch

from bertcli.models.int8_rounding import DAMPING, GROUP, rounded

REACH = 127.0


def sample(tokens, inputs):
    """Inputs that go together, as those of a model do."""
    draw = torch.Generator().manual_seed(0)
    few = torch.randn(tokens, 8, generator=draw) @ torch.randn(8, inputs, generator=draw)
    return few + 0.1 * torch.randn(tokens, inputs, generator=draw)


def weight(outputs, inputs):
    draw = torch.Generator().manual_seed(1)
    return (torch.randn(outputs, inputs, generator=draw) * 30).clamp(-REACH, REACH)


def error(whole, exact, inputs):
    return float(((whole - exact) @ inputs.T).square().mean())


def textbook(exact, inputs):
    """Round column after column, and move the rest by the inverse of the Hessian."""
    exact, inputs = exact.numpy().astype("float64"), inputs.numpy().astype("float64")
    hessian = inputs.T @ inputs
    order = np.argsort(-np.diag(hessian), kind="stable")
    hessian += np.eye(len(hessian)) * DAMPING * np.diag(hessian).mean()
    left, done = exact[:, order].copy(), np.zeros_like(exact)
    for at in range(len(order)):
        inverse = np.linalg.inv(hessian[np.ix_(order[at:], order[at:])])
        done[:, order[at]] = np.clip(np.rint(left[:, at]), -REACH, REACH)
        missed = (left[:, at] - done[:, order[at]]) / inverse[0, 0]
        left[:, at:] -= missed[:, None] * inverse[0]
    return done


@pytest.mark.parametrize("inputs", [1, 12, 70, 200])
def test_rounding_is_that_of_the_textbook(inputs):
    seen, exact = sample(300, inputs), weight(20, inputs)
    same = rounded(exact, seen, REACH).numpy() == textbook(exact, seen)
    assert same.mean() > 0.998  # what lies between two numbers falls to either side


@pytest.mark.parametrize("inputs", [64, GROUP + 100])
def test_products_err_less_than_those_of_the_nearest_numbers(inputs):
    seen, exact = sample(500, inputs), weight(50, inputs)
    whole = rounded(exact, seen[:400], REACH)
    assert torch.equal(whole, whole.round()) and whole.abs().max() <= REACH
    for tokens in (seen[:400], seen[400:]):  # the second were not in the sample
        assert error(whole, exact, tokens) < error(exact.round(), exact, tokens) / 2


def test_whole_numbers_stay_and_silent_inputs_do_not_matter():
    seen, exact = sample(50, 600), weight(10, 600)
    assert torch.equal(rounded(exact.round(), seen, REACH), exact.round())
    seen[:, 30:] = 0
    assert torch.equal(rounded(exact, seen, REACH)[:, 30:], exact[:, 30:].round())
    assert torch.equal(rounded(exact, torch.zeros(1, 600), REACH), exact.round())
