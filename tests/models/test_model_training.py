"""Train mode, gradients, memory savers, torch.compile."""

import pytest
import torch
from model_reference import close, randomise, texts, tiny
from torch.nn import functional as F

from bertcli.models.attention import Recording
from bertcli.models.bert import BertModel, recomputing
from bertcli.models.heads import ARCHITECTURES, BertForPreTraining
from bertcli.models.positions import NoDistance
from bertcli.models.surgery import initialise

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gradients(model):
    model.zero_grad()
    hidden = model(*texts())
    hidden.square().mean().backward()
    return hidden, [weight.grad for weight in model.encoder.parameters()]


def model_of(**changes):
    return randomise(BertModel(tiny(**changes))).train()


@pytest.mark.parametrize("scheme", ["absolute", "relative_key", "relative_key_query", "sinusoidal"])
def test_train_mode_drops_and_differentiates(scheme):
    model = model_of(position_embedding_type=scheme)
    first, grads = gradients(model)
    assert not torch.equal(first, model(*texts()))
    assert all(grad.isfinite().all() and grad.abs().sum() > 0 for grad in grads)
    model.eval()
    assert torch.equal(model(*texts()), model(*texts()))


@pytest.mark.parametrize("scheme", ["absolute", "relative_key_query", "sinusoidal"])
def test_autocast_computes_in_bfloat16(scheme):
    model = model_of(position_embedding_type=scheme, **STILL)
    expected = model(*texts())
    with torch.autocast("cpu", torch.bfloat16):
        got = model(*texts())
    got.sum().backward()
    assert torch.cosine_similarity(got.float(), expected, dim=-1).min() > 0.99


def test_attention_drops_on_its_own():
    model = model_of(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    assert not torch.equal(model(*texts()), model(*texts()))


def test_train_mode_without_dropout_is_eval_mode():
    model = model_of(**STILL)
    close(model(*texts()), model.eval()(*texts()), 1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradient_checkpointing_gives_the_same_gradients(dropout):
    model = model_of(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    torch.manual_seed(0)
    expected = gradients(model)
    model.encoder.call = recomputing
    torch.manual_seed(0)  # the same places drop, in the first computation and in the second
    close(gradients(model), expected, 1e-6)


def test_gradient_checkpointing_computes_each_layer_twice():
    model = model_of()
    calls = []
    model.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
    model.encoder.call = recomputing
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


def test_pretraining_learns_one_batch():
    torch.manual_seed(0)
    model = BertForPreTraining(tiny()).train()
    initialise(model, 0.02)
    ids, keep, types = texts()
    pair = torch.tensor([0, 1, 0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        words, follows = model(ids, keep, types)
        loss = F.cross_entropy(words[keep.bool()], ids[keep.bool()]) + F.cross_entropy(
            follows, pair
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 4.5  # as good as guessing: ln 97 + ln 2 = 5.27
    assert losses[-1] < losses[0] / 4
    predictions = model.cls.predictions
    assert predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_compiles_as_one_graph():
    """On the backend `eager`, which captures like any other but needs no C compiler."""
    model = model_of().eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(*texts()), model(*texts()), 1e-6)
    torch.compiler.reset()


@pytest.mark.parametrize(("own", "used"), [(None, 0.3), (0.0, 0.0), (0.6, 0.6)])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertForTokenClassification"])
def test_classifiers_drop_as_their_config_says(name, own, used):
    model = ARCHITECTURES[name](tiny(hidden_dropout_prob=0.3, classifier_dropout=own))
    assert model.dropout.p == used


def test_recording_drops_after_recording():
    """The map is a distribution, and what is mixed is not."""
    maps, v = [], torch.ones(1, 64, 1, 8)
    mixed = Recording(maps)(v, v, v, NoDistance(), 0.5)
    close(maps[0].sum(-1), torch.ones(1, 1, 64))
    assert mixed.std() > 0.01 and abs(mixed.mean() - 1) < 0.1
