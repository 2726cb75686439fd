"""Reading, writing and refusing config.json; parameter counts; no torch."""

import copy
import dataclasses
import json
import pickle

import pytest
import transformers
from model_reference import TINY, tiny

from bertcli.errors import BertcliError, ModelError
from bertcli.models.bert import BertModel
from bertcli.models.config import DERIVED_FIELDS, BertConfig


def test_the_defaults_are_those_of_transformers():
    wanted = transformers.BertConfig()
    for field in dataclasses.fields(BertConfig):
        if field.name not in {
            *DERIVED_FIELDS,
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


# --- as a reader of transformers' documentation makes them ---

SAID = {
    **TINY,
    "num_labels": 3,
    "emotion_vocab_size": 5,
    "syllable_vocab_size": 7,
    "output_attentions": True,
    "output_hidden_states": True,
    "finetuning_task": "mrpc",
    "id2label": {0: "no", 1: "yes", 2: "?"},
}


def test_keywords_are_the_keys_of_a_file(tmp_path):
    config = BertConfig(**SAID)
    assert config == BertConfig.from_dict(SAID)
    assert config.num_labels == 3
    assert config.extra_embeddings == {"emotion": 5, "syllable": 7}
    assert config.emotion_vocab_size == 5 and config.finetuning_task == "mrpc"
    assert config.output_attentions and config.output_hidden_states
    assert not BertConfig().output_attentions and not BertConfig().output_hidden_states
    assert config.model_type == "bert"
    path = tmp_path / "config.json"
    path.write_text(config.to_json_string())
    assert BertConfig.from_json_file(path) == config
    assert BertConfig.from_pretrained(tmp_path) == config
    assert BertConfig.from_pretrained(str(tmp_path), hidden_act="relu").hidden_act == "relu"
    theirs = transformers.BertConfig.from_json_file(path)
    for key in ("num_labels", "output_attentions", "output_hidden_states", "finetuning_task"):
        assert getattr(theirs, key) == getattr(config, key)
    assert BertConfig(50, hidden_size=32) == BertConfig(vocab_size=50, hidden_size=32)
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, hidden_size=64).finetuning_task == "mrpc"
    with pytest.raises(AttributeError, match="this config has no 'temperature'"):
        _ = config.temperature


def test_keywords_of_another_family_have_its_defaults():
    config = BertConfig(model_type="roberta", pad_token_id=1)
    assert config == BertConfig.from_dict({"model_type": "roberta", "pad_token_id": 1})
    assert config.vocab_size == transformers.RobertaConfig().vocab_size
    small = BertConfig(**TINY, model_type="distilbert")  # whose own names for them are others
    assert small == BertConfig(**small.to_dict())
    assert small.hidden_size == 32 and small.to_dict()["dim"] == 32
    assert BertModel(small).pooler is None


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"hiden_size": 32}, "has no 'hiden_size': did you mean hidden_size?"),
        ({"layer_norm_epsilon": 1e-5}, "did you mean layer_norm_eps?"),
        ({"num_attention_head": 2}, "did you mean num_attention_heads?"),
        ({"vocab_size_or_config_json_file": 99}, "write BertConfig(vocab_size=99)"),
        ({"vocab_size": "bert_config.json"}, "write BertConfig.from_json_file('bert_config.json')"),
        ({"hidden_size": "x"}, "BertConfig: hidden_size: expected a whole number"),
        ({"pruned_heads": {99: [0]}}, "BertConfig: pruned_heads: layer 99 cannot lose the heads"),
    ],
)
def test_keywords_that_no_model_has_are_refused(keys, line):
    with pytest.raises(BertcliError) as refused:
        BertConfig(**keys)
    assert line in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: file not found"):
        BertConfig.from_json_file(tmp_path / "config.json")
