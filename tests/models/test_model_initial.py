"""`BertModel(BertConfig())` and every other class made from a config: weights before training."""

import pytest
import torch
import transformers
from family_models import BERT, ROWS
from torch import nn

from bertcli import BertConfig, BertForMaskedLM, BertModel
from bertcli.models.heads import ARCHITECTURES
from bertcli.models.norms import RMSNorm

MIDDLE = {"vocab_size": 400, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
CLASSES = [
    pytest.param(row, name, id=name)
    for row in (BERT, *ROWS)
    if not row.alike
    for name in row.classes
]


def built(row, name):
    """Our class for one of transformers, made from the config alone."""
    their_config = transformers.AutoConfig.for_model(row.model_type, **MIDDLE)
    raw = {**their_config.to_dict(), **dict(row.more), "architectures": [name], "pad_token_id": 3}
    config = BertConfig.from_dict({**raw, "initializer_range": 0.02})
    return ARCHITECTURES[config.architectures[0]](config)


@pytest.mark.parametrize(("row", "name"), CLASSES)
def test_weights_are_normal_biases_zero_norms_one(row, name):
    torch.manual_seed(0)
    model = built(row, name)
    modules = dict(model.named_modules())
    for path, weight in model.named_parameters():
        module = modules[path.rpartition(".")[0]]
        if path.endswith("bias"):
            assert weight.eq(0).all(), path
        elif isinstance(module, nn.LayerNorm | RMSNorm):
            assert (weight + getattr(module, "offset", 0)).eq(1).all(), path
        elif weight.numel() > 2000:
            assert weight.std().item() == pytest.approx(0.02, rel=0.08), path
            assert weight.abs().max() < 0.12, path
        else:
            assert weight.abs().max() < 0.12, path
    tables = [table for table in model.modules() if isinstance(table, nn.Embedding)]
    assert any(table.padding_idx is not None for table in tables)
    for table in tables:
        if table.padding_idx is not None:
            assert table.weight[table.padding_idx].eq(0).all()
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parity
def test_they_are_those_of_transformers_before_training():
    torch.manual_seed(0)
    ours = dict(BertForMaskedLM(BertConfig(**MIDDLE)).named_parameters())
    theirs = dict(
        transformers.BertForMaskedLM(transformers.BertConfig(**MIDDLE)).named_parameters()
    )
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert ours[name].std().item() == pytest.approx(weight.std().item(), rel=0.2, abs=1e-6), (
            name
        )
    words = ours["bert.embeddings.word_embeddings.weight"]
    assert words.abs().max() > 0.06
    assert words[0].eq(0).all()


def test_initializer_range_is_the_standard_deviation():
    wide = BertModel(BertConfig(**MIDDLE, initializer_range=0.5))
    assert wide.embeddings.word_embeddings.weight.std().item() == pytest.approx(0.5, rel=0.03)
