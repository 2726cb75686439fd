"""Places where encoders differ from BERT; tests/families/ compares them with transformers."""

from dataclasses import replace

import pytest
import torch
from model_reference import close, randomise, texts, tiny

from bertcli.errors import ModelError
from bertcli.families.structure import Disentangled, Rotary, Structure
from bertcli.models.attention import padded
from bertcli.models.bert import BertModel
from bertcli.models.decoder import Decoder

THREE = (Rotary(100.0), Rotary(10_000.0, 2.0), Rotary(7.0))
BOTH = {"word_to_distance": True, "distance_to_word": True}
SCHEMES = {
    "rotary": Structure(rotary=THREE, absolute_positions=False),
    "windows": Structure(rotary=THREE, windows=(None, 2, 0), absolute_positions=False),
    "buckets": Structure(buckets=32),
    "norms first": Structure(norm_first=True, gated=True, rotary=THREE),
    "disentangled": Structure(
        disentangled=Disentangled(4, 9, True, **BOTH, shared=True, norm=True)
    ),
}


def model_of(structure, **changes):
    return randomise(BertModel(replace(tiny(**changes), structure=structure))).eval()


@torch.no_grad()
def test_a_window_is_the_mask_of_its_neighbours():
    model = model_of(SCHEMES["windows"])
    ids, keep, _ = texts()
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    kernels = [padded(keep)]
    kernels += [padded(keep[:, None] * (near <= reach)) for reach in (2, 0)]
    whole = model_of(SCHEMES["rotary"])
    close(model(ids, keep)[keep.bool()], whole(ids, kernels=kernels)[keep.bool()])


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_the_first_token_alone_and_step_by_step(scheme):
    model = model_of(SCHEMES[scheme])
    ids, keep, _ = texts()
    *_, x, last = model.states(ids, keep)
    close(model.encoder.some(2, x[:, :1], padded(keep, at=0), x), last[:, :1])
    model = model_of(SCHEMES[scheme], is_decoder=True)
    decode = Decoder(model)
    close(torch.cat([decode(one) for one in ids.split(1, dim=1)], 1), model(ids))


def test_odd_heads_cannot_be_turned():
    with pytest.raises(ModelError, match="even head size, not 3"):
        model_of(SCHEMES["rotary"], hidden_size=12)
