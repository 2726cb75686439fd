"""Pruning, head masks, fused projections, precision, fresh weights."""

import pytest
import torch
from model_reference import close, randomise, texts, tiny

from bertcli.errors import ModelError
from bertcli.models.attention import Recording, head_masked
from bertcli.models.bert import BertModel
from bertcli.models.heads import BertForMaskedLM
from bertcli.models.initial_weights import initialise
from bertcli.models.surgery import prune_heads


@pytest.fixture
def model():
    return randomise(BertModel(tiny())).eval()


def looped_layer(layer, x, keep, silent, maps=None):
    """One layer, head by head and text by text, with some heads saying nothing."""
    every = []
    attention, out = layer.attention.self, []
    for text, row in zip(x, keep, strict=True):
        heads = []
        for head in range(4):
            part = slice(head * 8, head * 8 + 8)
            q, k, v = (
                text @ linear.weight[part].T + linear.bias[part]
                for linear in (attention.query, attention.key, attention.value)
            )
            scores = q @ k.T / 8**0.5
            scores[:, row == 0] = -1e30
            every.append(scores.softmax(-1) * (head not in silent))
            heads.append(every[-1] @ v)
        out.append(torch.cat(heads, -1))
    if maps is not None:
        maps.append(torch.stack(every).unflatten(0, (len(x), 4)))
    return layer.feed_forward(layer.attention.output(torch.stack(out), x))


@torch.no_grad()
def looped(model, inputs, silent, maps=None):
    ids, keep, types = inputs
    x = model.embeddings(ids, types)
    for index, layer in enumerate(model.encoder.layer):
        x = looped_layer(layer, x, keep, silent.get(index, ()), maps)
    return x


SILENT = {0: {1}, 2: {0, 2, 3}}


@torch.no_grad()
def test_maps_under_a_head_mask_are_the_loop(model):
    ids, keep, types = texts()
    wanted, maps = [], []
    expected = looped(model, texts(), SILENT, wanted)
    weights = torch.ones(3, 4)
    for layer, heads in SILENT.items():
        weights[layer, list(heads)] = 0
    kernels = [head_masked(Recording(maps, keep), row) for row in weights]
    close(model.hidden(ids, types=types, kernels=kernels), expected)
    for got, want in zip(maps, wanted, strict=True):
        close(got, want)
    by_text = torch.ones(3, 1, 4)  # [B, 1, H]
    by_text[1, 0, 2] = 0
    plain, maps = [], []
    x = model.embeddings(ids, types)
    model.encoder.layer[0](x, Recording(plain, keep))
    model.encoder.layer[0](x, head_masked(Recording(maps, keep), by_text))
    plain[0][1, 2] = 0
    close(maps[0], plain[0])


@torch.no_grad()
def test_pruning_twice_counts_heads_as_in_the_whole_model(model):
    expected = looped(model, texts(), {0: {1, 3}, 1: {2}, 2: {0, 2, 3}})
    prune_heads(model, {0: [1], 2: [2, 0]})
    prune_heads(model, {0: [1, 3], 1: [2], 2: [3]})  # 0.1 is gone already
    close(model.hidden(*texts()), expected)
    assert model.config.pruned_heads == {0: (1, 3), 1: (2,), 2: (0, 2, 3)}


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ({1: range(4)}, r"layer 1 cannot lose the heads \[0, 1, 2, 3\]"),
        ({3: [0]}, r"layer 3 cannot lose the heads \[0\]: there are 3 layers"),
        ({0: [4]}, r"layer 0 cannot lose the heads \[4\]: there are 3 layers of 4 heads"),
        ({0: [-1]}, r"layer 0 cannot lose the heads \[-1\]"),
    ],
)
def test_pruning_too_much_is_refused_before_anything_is_cut(model, heads, words):
    with pytest.raises(ModelError, match=words):
        prune_heads(model, {0: [0], **heads})
    assert model.config.pruned_heads == {}
    assert model.encoder.layer[0].attention.self.query.out_features == 32


def test_fresh_weights():
    model = BertForMaskedLM(tiny(vocab_size=2000))
    initialise(model, 0.02)
    words = model.bert.embeddings.word_embeddings.weight
    assert words[0].abs().max() == 0  # padding
    assert words.std().item() == pytest.approx(0.0176, rel=0.02)  # cut at two deviations
    assert words.abs().max() <= 0.04
    norm = model.bert.embeddings.LayerNorm
    assert norm.weight.eq(1).all() and norm.bias.eq(0).all()
    assert model.cls.predictions.bias.eq(0).all()
    assert model.bert.encoder.layer[0].attention.self.key.bias.eq(0).all()
