"""The Transformer of 2017 from our parts gives the numbers of torch.nn with the same weights."""

import math

import pytest
import torch
import transformer
from model_reference import close, randomise, texts, tiny
from pretrain_folders import STILL
from torch import nn

SAID = {"hidden_act": "relu", "position_embedding_type": "sinusoidal", "layer_norm_eps": 1e-5}
CONFIG = tiny(**SAID, **STILL)
LAYER = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True}  # ReLU, norm last, 1e-5


# --- the same weights ---


def copied(linear, theirs):
    theirs.load_state_dict(linear.state_dict())


def copied_attention(block, theirs):
    parts = [block.self.query, block.self.key, block.self.value]
    theirs.in_proj_weight.data = torch.cat([one.weight.data for one in parts])
    theirs.in_proj_bias.data = torch.cat([one.bias.data for one in parts])
    copied(block.output.dense, theirs.out_proj)


def copied_layers(model, stack):
    for layer, theirs in zip(model.encoder.layer, stack.layers, strict=True):
        copied_attention(layer.attention, theirs.self_attn)
        norms = [layer.attention.output.LayerNorm, layer.output.LayerNorm]
        if model.config.add_cross_attention:
            copied_attention(layer.crossattention, theirs.multihead_attn)
            norms.insert(1, layer.crossattention.output.LayerNorm)
        for number, norm in enumerate(norms):
            copied(norm, getattr(theirs, f"norm{number + 1}"))
        copied(layer.intermediate.dense, theirs.linear1)
        copied(layer.output.dense, theirs.linear2)


def embedded(model, ids):
    """Section 3.4 and 3.5, number by number."""
    width = model.config.hidden_size
    found = model.embeddings.word_embeddings.weight[ids] * math.sqrt(width)
    for at in range(ids.shape[1]):
        for i in range(width // 2):
            angle = at / 10000 ** (2 * i / width)
            found[:, at, 2 * i] += math.sin(angle)
            found[:, at, 2 * i + 1] += math.cos(angle)
    return found


def gradients(loss, *weights):
    return torch.autograd.grad(loss.square().sum(), weights)


# --- the encoder ---


# --- encoder and decoder ---


def pairs():
    model = randomise(transformer.Transformer(CONFIG))
    theirs = nn.Transformer(32, 4, 3, 3, **LAYER)
    theirs.encoder.norm = theirs.decoder.norm = None  # figure 1 has none there
    theirs.encoder.enable_nested_tensor = False
    copied_layers(model.encoder, theirs.encoder)
    copied_layers(model.decoder, theirs.decoder)
    return model, theirs


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_encoder_and_decoder_are_those_of_torch(training, padding):
    model, other = (one.train(training) for one in pairs())
    (source, keep, _), (target, target_keep, _) = texts(), texts(length=9)
    if not padding:
        keep, target_keep = torch.ones_like(keep), torch.ones_like(target_keep)
    vectors = embedded(model.encoder, source), embedded(model.encoder, target)
    hidden = {
        "src_key_padding_mask": keep == 0,
        "memory_key_padding_mask": keep == 0,
        "tgt_key_padding_mask": target_keep == 0,
        "tgt_mask": torch.ones(9, 9).triu(1).bool(),
    }
    ours, real = model(source, target, keep, target_keep), target_keep.bool()
    theirs = other(*vectors, **hidden) @ model.encoder.embeddings.word_embeddings.weight.T
    close(ours[real], theirs[real])
    mine = model.decoder.encoder.layer[0].crossattention.output.dense.weight
    weight = other.decoder.layers[0].multihead_attn.out_proj.weight
    close(gradients(ours[real] / 10, mine), gradients(theirs[real] / 10, weight))


@torch.no_grad()
def test_what_is_written_is_what_is_likeliest():
    model = randomise(transformer.Transformer(CONFIG)).eval()
    source, keep, _ = texts()
    found = model.write(source, 1, 5, keep)
    text = torch.cat([torch.ones(3, 1, dtype=torch.long), found], 1)
    assert torch.equal(model(source, text[:, :-1], keep).argmax(-1), found)


# --- the program ---


def test_words_are_learnt_backwards():
    torch.manual_seed(0)
    model = transformer.Transformer(transformer.SMALL)
    losses = transformer.learn(model, steps=25, warmup=10, size=4)
    assert losses[-1] < losses[0] - 0.5
    assert len(transformer.backwards(model.eval(), ["need", "you"])) == 2
