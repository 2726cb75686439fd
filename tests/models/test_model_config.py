"""Reading, writing and refusing config.json; parameter counts; no torch."""

import dataclasses
import json

import pytest
import transformers
from model_reference import TINY, tiny

from bertcli.errors import ModelError
from bertcli.models.bert import BertModel
from bertcli.models.config import MADE, BertConfig


def test_the_defaults_are_those_of_transformers():
    wanted = transformers.BertConfig()
    for field in dataclasses.fields(BertConfig):
        if field.name not in {
            *MADE,
            "id2label",
            "label2id",
            "architectures",
            "pruned_heads",
            "extra_embeddings",
            "extra_fields",
            "position_embedding_type",
        }:
            assert getattr(BertConfig(), field.name) == getattr(wanted, field.name), field.name
    assert BertConfig().num_labels == wanted.num_labels


def test_unknown_keys_survive_the_round_trip():
    raw = {
        **TINY,
        "model_type": "bert",
        "dtype": "float32",
        "mystery": {"a": [1, None]},
        "pad_token_id": None,
        "hidden_dropout_prob": 0.0,
        "architectures": ["BertForMaskedLM"],
        "id2label": {"0": "no", "1": "yes", "2": "?"},
        "pruned_heads": {"1": [0, 2]},
        "extra_embeddings": {"emotion": 5},
        "extra_fields": {"emotion": "feelings"},
        "position_embedding_type": "relative_key",
    }
    written = json.loads(BertConfig.from_dict(raw).to_json())
    assert written.items() >= raw.items()
    assert BertConfig.from_dict(written) == BertConfig.from_dict(raw)


@pytest.mark.parity
def test_transformers_reads_what_we_write(tmp_path):
    config = tiny(is_decoder=True, num_labels=3, layer_norm_eps=1e-5, pad_token_id=None)
    (tmp_path / "config.json").write_text(config.to_json())
    wanted = transformers.BertConfig.from_pretrained(tmp_path)
    for name in (*TINY, "is_decoder", "num_labels", "layer_norm_eps", "pad_token_id"):
        assert getattr(config, name) == getattr(wanted, name), name


def test_a_pooler_that_is_not_there_is_not_random():
    model = BertModel(tiny(), pooler=False)
    assert model.pooler is None
    with pytest.raises(ModelError, match="this model has no pooler"):
        model.pool_first(model.embeddings.word_embeddings.weight)
