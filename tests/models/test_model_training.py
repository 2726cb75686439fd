"""Train mode, gradients, memory savers, torch.compile."""

import pytest
import torch
from model_reference import close, randomise, texts, tiny
from pretrain_folders import STILL

from bertcli.models.bert import BertModel


def gradients(model):
    model.zero_grad()
    hidden = model(*texts()).last_hidden_state
    hidden.square().mean().backward()
    return hidden, [weight.grad for weight in model.encoder.parameters()]


def model_of(**changes):
    return randomise(BertModel(tiny(**changes))).train()


@pytest.mark.parametrize("scheme", ["absolute", "relative_key", "relative_key_query", "sinusoidal"])
def test_train_mode_drops_and_differentiates(scheme):
    model = model_of(position_embedding_type=scheme)
    first, grads = gradients(model)
    assert not torch.equal(first, model.hidden(*texts()))
    assert all(grad.isfinite().all() and grad.abs().sum() > 0 for grad in grads)
    model.eval()
    assert torch.equal(model.hidden(*texts()), model.hidden(*texts()))


def test_gradient_checkpointing_computes_each_layer_twice():
    model = model_of()
    calls = []
    model.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
    model.encoder.recompute = True
    gradients(model)
    assert len(calls) == 2


@pytest.mark.parametrize("size", [1, 5, 12, 100])
def test_chunked_feed_forward_gives_the_same_gradients(size):
    whole = model_of(**STILL)
    model = model_of(chunk_size_feed_forward=size, **STILL)
    model.load_state_dict(whole.state_dict())
    widths = []
    model.encoder.layer[0].intermediate.register_forward_hook(
        lambda module, inputs, output: widths.append(output.shape[1])
    )
    close(gradients(model), gradients(whole), 1e-6)
    assert max(widths) == min(size, 12) and sum(widths) == 12


def test_compiles_as_one_graph():
    """On the backend `eager`, which captures like any other but needs no C compiler."""
    model = model_of().eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(*texts()).to_tuple(), model(*texts()).to_tuple(), 1e-6)
    torch.compiler.reset()
