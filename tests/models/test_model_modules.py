"""The modules of a model, as a reader of transformers knows them: names, `print`, single parts."""

import pytest
import torch
import transformers
from model_reference import TINY, close, load, randomise, theirs, tiny
from transformers.models.bert import modeling_bert

import bertcli
from bertcli.models import bert as parts
from bertcli.models.heads import ARCHITECTURES

pytestmark = pytest.mark.parity

CLASSES = [name for name in ARCHITECTURES if hasattr(transformers, name)]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("act", ["gelu"])
def test_a_model_is_printed_as_by_transformers(name, act):
    wanted = getattr(transformers, name)(transformers.BertConfig(**TINY, hidden_act=act))
    assert repr(getattr(bertcli, name)(tiny(hidden_act=act))) == repr(wanted)


def test_decoders_with_cross_attention_are_printed_as_by_transformers():
    said = {**TINY, "is_decoder": True, "add_cross_attention": True}
    wanted = repr(transformers.BertLMHeadModel(transformers.BertConfig(**said)))
    found = repr(bertcli.BertLMHeadModel(tiny(**said)))
    assert found == wanted.replace("BertCrossAttention", "BertSelfAttention")


def test_printing_shows_what_differs_from_bert():
    shown = repr(bertcli.BertModel(tiny(position_embedding_type="relative_key", hidden_act="relu")))
    assert "(distance_embedding): RelativeKey()" in shown
    assert "(intermediate_act_fn): relu()" in shown
    shown = repr(bertcli.BertModel(tiny(extra_embeddings={"emotion": 5})))
    assert "(extra): ModuleDict(" in shown and "(emotion): Embedding(5, 32)" in shown


@pytest.mark.parametrize("name", ["BertSelfOutput", "BertOutput"])
@torch.no_grad()
def test_parts_made_from_a_config_are_those_of_transformers(name):
    reference = randomise(getattr(modeling_bert, name)(theirs().config)).eval()
    ours = load(getattr(parts, name)(tiny()), reference)
    width = ours.dense.in_features
    states, beside = torch.randn(3, 7, width), torch.randn(3, 7, 32)
    close(ours(states, beside), reference(states, beside))


@torch.no_grad()
def test_layers_and_attentions_made_from_a_config_are_those_of_transformers():
    config, states = theirs().config, torch.randn(3, 7, 32)
    reference = randomise(modeling_bert.BertLayer(config)).eval()
    close(load(parts.BertLayer(tiny()), reference)(states), reference(states))
    reference = randomise(modeling_bert.BertAttention(config)).eval()
    close(load(parts.BertAttention(tiny()), reference)(states), reference(states)[0])
    reference = randomise(modeling_bert.BertSelfAttention(config)).eval()
    close(load(parts.BertSelfAttention(tiny()), reference)(states), reference(states)[0])
    reference = randomise(modeling_bert.BertIntermediate(config)).eval()
    ours = load(parts.BertIntermediate(tiny()), reference)
    close(ours(states), reference(states))
    close(ours.intermediate_act_fn(states), reference.intermediate_act_fn(states))


@torch.no_grad()
def test_a_pooler_pools_the_first_tokens_of_states():
    reference = theirs()
    model = load(bertcli.BertModel(tiny()), reference)
    states = torch.randn(3, 7, 32)
    close(model.pooler(states), reference.pooler(states))
    close(model.pool_first(states[:, 0]), reference.pooler(states))
    with pytest.raises(ValueError, match=r"pooler\(states\[None\]\) for one text"):
        model.pooler(states[0])


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForTokenClassification"])
def test_a_model_without_a_pooler_has_none(name):
    assert ARCHITECTURES[name](tiny()).bert.pooler is None
    assert bertcli.BertModel(tiny(), pooler=False).pooler is None
