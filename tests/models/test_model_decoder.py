"""Decoding step by step gives what the whole text at once gives."""

import pytest
import torch
from model_reference import close, randomise, texts, tiny

from bertcli.errors import ModelError
from bertcli.models.attention import padded
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import Decoder

STEPS = [[1] * 12, [5, 1, 6], [12]]


def decoder_of(**changes):
    """In double precision, so that equal means equal to ten digits."""
    return randomise(BertModel(tiny(is_decoder=True, **changes))).double().eval()


def encoded():
    """An encoder's states [3, 8, hidden] and what is kept of them."""
    states = torch.randn(3, 8, 32, generator=torch.Generator().manual_seed(1))
    return states.double(), texts(length=8)[1]


@pytest.mark.parametrize("scheme", ["absolute", "relative_key", "relative_key_query"])
@pytest.mark.parametrize("steps", STEPS)
@torch.no_grad()
def test_steps_are_the_full_pass(steps, scheme):
    model = decoder_of(position_embedding_type=scheme)
    ids, keep, types = texts()
    decode, got, end = Decoder(model), [], 0
    for new, some in zip(ids.split(steps, 1), types.split(steps, 1), strict=True):
        end += new.shape[1]
        got.append(decode(new, keep[:, :end], some))
    close(torch.cat(got, 1)[keep.bool()], model.hidden(ids, keep, types)[keep.bool()], 1e-10)


@pytest.mark.parametrize("steps", STEPS)
@torch.no_grad()
def test_steps_with_an_encoder_are_the_full_pass(steps):
    model = decoder_of(add_cross_attention=True)
    ids, _, types = texts()
    states, states_keep = encoded()
    memory = model.memories_of(states, padded(states_keep))
    full = Decoder(model, memory)(ids, types=types)
    decode = Decoder(model, memory)
    parts = zip(ids.split(steps, 1), types.split(steps, 1), strict=True)
    got = torch.cat([decode(new, types=some) for new, some in parts], 1)
    close(got, full, 1e-10)
    assert not torch.allclose(got, model.hidden(ids, types=types), atol=1e-2)


@torch.no_grad()
def test_padding_on_the_left_is_not_read():
    model = decoder_of()
    ids = torch.arange(1, 7)[None]
    longer = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    keep = (longer != 0).long()
    at = (keep.cumsum(1) - 1).clamp(0)
    decode = Decoder(model)
    got = torch.cat(
        [
            decode(longer[:, :5], keep[:, :5], at=at[:, :5])[:, 3:],
            decode(longer[:, 5:], keep, at=at[:, 5:]),
        ],
        1,
    )
    close(got, model.hidden(ids), 1e-10)


def test_an_encoder_cannot_read_another_encoder():
    with pytest.raises(ModelError, match="no cross-attention"):
        decoder_of().memories_of(encoded()[0])
    memory = decoder_of(add_cross_attention=True).memories_of(encoded()[0])
    with pytest.raises(ModelError, match="this model has no cross-attention"):
        Decoder(decoder_of(), memory)(texts()[0])


def test_cross_attention_without_a_decoder_is_refused():
    with pytest.raises(ModelError, match="add_cross_attention needs is_decoder"):
        BertModel(tiny(add_cross_attention=True))
