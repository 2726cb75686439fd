"""Every family against transformers, with weights wide enough that nothing hides.

A family joins with a row in `family_models`.
"""

import inspect
import json

import pytest
import torch
from family_models import ROWS, batch, our_model, their_model
from model_reference import close

from bertcli.checkpoints import shapes
from bertcli.checkpoints.load import load, save
from bertcli.families.registry import FAMILIES
from bertcli.models.attention import recording
from bertcli.models.forward_passes import encode

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True)
def one_thread(threads):
    """These models are so small that threads would wait for one another."""
    torch.set_num_threads(1)


CONFIGURATIONS = 40
CASES = [pytest.param(row, name, id=name) for row in ROWS for name in row.classes]
LOGITS = ("prediction_logits", "sop_logits", "logits", "start_logits", "end_logits")


def call(theirs, ids, keep, types, **more):
    """Call a model of transformers with the token types that it takes, if any."""
    if "token_type_ids" in inspect.signature(type(theirs).forward).parameters:
        more["token_type_ids"] = types
    return theirs(ids, attention_mask=keep, **more)


def seeds(row):
    return range(CONFIGURATIONS // 8 if row.alike else CONFIGURATIONS)


def as_list(logits):
    return list(logits) if isinstance(logits, tuple) else [logits]


def compare_states(theirs, ours, inputs):
    """All hidden states and attentions, padded; then the last states, packed and each alone."""
    ids, keep, types = inputs
    real = keep.bool()
    wanted = call(theirs, *inputs, output_hidden_states=True, output_attentions=True)
    maps = []
    states = list(ours.states(ids, types=types, kernels=recording(maps, keep)))
    for got, expected in zip(states, wanted.hidden_states, strict=True):
        close(got[real], expected[real])
    for got, expected in zip(maps, wanted.attentions, strict=True):
        close(*(one.transpose(1, 2)[real] for one in (got, expected)))  # from tokens, to anything
    last = ours(ids, keep, types)
    close(last[real], wanted.last_hidden_state[real])
    lengths = keep.sum(1).tolist()
    close(encode(ours, ids[real], lengths, types[real]), wanted.last_hidden_state[real])
    for row, length in enumerate(lengths):
        alone = ours(ids[row : row + 1, :length], types=types[row : row + 1, :length])
        close(alone[0], wanted.last_hidden_state[row, :length])
    if getattr(wanted, "pooler_output", None) is not None:
        close(ours.pooler(last[:, 0]), wanted.pooler_output)


def given(name, inputs):
    """Inputs as a class takes them: [1, choices, L] or [B, L]."""
    return [one[None] for one in inputs] if name.endswith("MultipleChoice") else inputs


def compare_logits(theirs, ours, inputs, name):
    inputs = given(name, inputs)
    got, found = as_list(ours(*inputs)), call(theirs, *inputs)
    wanted = [found[key] for key in LOGITS if key in found]
    assert len(got) == len(wanted)
    for mine, expected in zip(got, wanted, strict=True):
        whole = mine.shape[:2] != inputs[1].shape
        real = slice(None) if whole else inputs[1].bool()
        close(mine[real], expected[real])


@pytest.mark.parametrize(("row", "name"), CASES)
@torch.no_grad()
def test_numbers_are_those_of_transformers(row, name):
    for seed in seeds(row):
        theirs = their_model(row, name, seed)
        ours, inputs = our_model(theirs), batch(theirs, seed)
        for train in (False, True):  # dropout is 0
            theirs.train(train)
            ours.train(train)
            if name.endswith("Model"):
                compare_states(theirs, ours, inputs)
            else:
                compare_logits(theirs, ours, inputs, name)


def test_every_page_has_a_row():
    assert {row.model_type for row in ROWS} == {*FAMILIES} - {"bert"}


@pytest.mark.parametrize(("row", "name"), CASES)
@torch.no_grad()
def test_folders_go_both_ways(row, name, tmp_path):
    """What transformers saves is loaded, and what is saved of it is loaded by transformers."""
    theirs = their_model(row, name, seed=4)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, report = load(tmp_path / "theirs")
    assert report.complete and not (report.unexpected or report.unused)
    save(ours, ours.config, tmp_path / "ours")
    how = {"output_loading_info": True, "attn_implementation": "eager"}  # padding differs in others
    again, info = type(theirs).from_pretrained(tmp_path / "ours", **how)
    assert not any(info.values()), info
    inputs = given(name, batch(theirs, 4))
    close(tensors(call(again.eval(), *inputs)), tensors(call(theirs, *inputs)))
    there = json.loads((tmp_path / "theirs" / "config.json").read_text())
    back = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {key: back[key] for key in there if there[key] is not None} == {
        key: value for key, value in there.items() if value is not None
    }


def tensors(output):
    return [one for one in output.values() if isinstance(one, torch.Tensor)]


@pytest.mark.parametrize(("row", "name"), CASES)
def test_shapes_are_told_without_the_model(row, name):
    for seed in seeds(row):
        theirs = their_model(row, name, seed)
        ours = our_model(theirs)
        config, kind = ours.config, type(ours).__name__
        found = {key: tuple(one.shape) for key, one in ours.state_dict().items()}
        assert shapes.expected(config, kind) == found
        assert shapes.count(config, kind) == sum(one.numel() for one in theirs.parameters())
