"""Shapes from the config alone are those of the real modules."""

import pytest
import torch

from bertcli.model_folder import shapes
from bertcli.models import heads
from bertcli.models.config import BertConfig

SMALL = {
    "vocab_size": 11,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 7,
    "max_position_embeddings": 5,
}
VARIANTS = {
    "plain": {},
    "relative_key": {"position_embedding_type": "relative_key"},
    "relative_key_query": {"position_embedding_type": "relative_key_query"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "no layers": {"num_hidden_layers": 0},
    "pruned": {"pruned_heads": {"1": [0, 2]}},
    "extra": {"extra_embeddings": {"emotion": 4, "syllable": 9}},
    "decoder": {"is_decoder": True, "add_cross_attention": True, "pruned_heads": {"0": [1]}},
    "untied": {"tie_word_embeddings": False},
    "types": {"type_vocab_size": 3},
    "mpnet": {"model_type": "mpnet", "pad_token_id": 1},
    "modernbert": {"model_type": "modernbert", "pad_token_id": 1},
}


def built(config, name):
    """The module, without memory for its weights."""
    with torch.device("meta"):
        return heads.ARCHITECTURES[name](config)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", heads.ARCHITECTURES)
def test_names_and_shapes_are_those_of_the_module(name, variant):
    config = BertConfig.from_dict(SMALL | VARIANTS[variant])
    model = built(config, name)
    found = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    ours = shapes.expected_shapes(config, name)
    assert ours == found
    numbers = sum(p.numel() for p in model.parameters())  # torch counts a tied weight once
    assert shapes.parameter_count(config, name) == numbers
    without = sum(p.numel() for key, p in model.named_parameters() if "pooler." not in key)
    assert shapes.parameter_count(config, name, pooler=False) == without
    state = model.state_dict(keep_vars=True)
    for second, first in shapes.tied_names(config, name).items():
        assert state[second] is state[first]
