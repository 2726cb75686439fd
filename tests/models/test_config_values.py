"""config.json with values of every wrong type: one line that says which, never a traceback."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
    put_json,
)

from bertcli.errors import ModelError
from bertcli.families.family import CHECKS, SIZE_KEYS
from bertcli.models.bert import BertModel
from bertcli.models.config import DERIVED_FIELDS, EXTRA_SIZE_KEYS, BertConfig

FIELDS = [one.name for one in fields(BertConfig) if one.name not in DERIVED_FIELDS]
ODD = ["x", [], {}, -1, None]


OTHERS = ("num_labels", "model_type", "output_attentions", "output_hidden_states", *EXTRA_SIZE_KEYS)


@pytest.fixture
def changed(tmp_path):
    """Copy the tiny model, with other settings."""

    def change(**settings):
        folder = Path(shutil.copytree(TINY, tmp_path / "model", dirs_exist_ok=True))
        config = json_in(TINY / "config.json")
        put_json(folder / "config.json", config | settings)
        return folder

    return change


def test_every_field_is_checked():
    assert {*CHECKS} == {*FIELDS, *OTHERS}


@pytest.mark.parametrize("value", ODD, ids=json.dumps)
@pytest.mark.parametrize("key", [*FIELDS, *OTHERS])
def test_no_value_is_a_traceback(key, value, changed):
    folder = changed(**{key: value})
    for views in ((), ("--verify", "--tree")):
        done = call("inspect", folder, *views)
        assert done.code in (0, 1) and "Traceback" not in done.err, done
        assert done.code == 0 or done.out or done.error, done


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "768"),
        ("vocab_size", None),
        ("num_hidden_layers", -1),
        ("num_labels", "many"),
        ("id2label", ["no", "yes"]),
        ("layer_norm_eps", "x"),
        ("layer_norm_eps", 0),
        ("layer_norm_eps", float("nan")),
        ("layer_norm_eps", 10**400),
        ("chunk_size_feed_forward", "a"),
        ("chunk_size_feed_forward", -1),
        ("chunk_size_feed_forward", True),
        ("hidden_dropout_prob", "0.1"),
        ("hidden_dropout_prob", 2),
        ("classifier_dropout", -0.5),
        ("pad_token_id", "x"),
        ("pad_token_id", -1),
        ("hidden_act", ["gelu"]),
        ("architectures", 3),
        ("architectures", "BertModel"),
        ("architectures", [3]),
        ("extra_embeddings", {"a.b": 3}),
        ("extra_embeddings", {"": 3}),
        ("extra_embeddings", {"a": -1}),
        ("extra_fields", {"a": 1}),
        ("emotion_vocab_size", 0),
        ("vocab_size", 10**18),
        ("num_hidden_layers", 10**6),
        ("num_labels", 10**9),
        ("label2id", {"a": float("inf")}),
        ("pruned_heads", {"0": ["a"]}),
        ("pruned_heads", {"0": "ab"}),
        ("is_decoder", "no"),
        ("is_decoder", 0),
        ("model_type", ["bert"]),
    ],
)
def test_values_of_a_wrong_kind_are_refused(key, value, changed):
    folder = changed(**{key: value})
    assert bad("inspect", folder).error.startswith(f"{folder / 'config.json'}: {key}: expected ")


@pytest.mark.parametrize(
    ("pruned", "said"),
    [
        ({"99": [0]}, "layer 99 cannot lose the heads [0]: there are 2 layers"),
        ({"1": [4]}, "layer 1 cannot lose the heads [4]: there are 2 layers of 4 heads"),
        ({"0": [0, 1, 2, 3]}, "pruned_heads: layer 0 cannot lose the heads [0, 1, 2, 3]"),
    ],
)
def test_heads_that_never_were_cannot_be_pruned(pruned, said, changed):
    assert said in bad("inspect", changed(pruned_heads=pruned)).error


def test_the_report_is_strict_json_whatever_a_config_holds(changed):
    folder = changed(mine=[float("nan"), {"a": float("-inf")}, 1.5])
    report = good("inspect", "--json", folder).out
    assert json.loads(report, parse_constant=pytest.fail)["config"]["mine"] == [
        None,
        {"a": None},
        1.5,
    ]


def test_a_name_that_torch_has_itself_is_refused():
    with pytest.raises(ModelError):
        BertModel(BertConfig.from_dict({"extra_embeddings": {"keys": 3}}))


@pytest.mark.parametrize(
    "key", [name for name in FIELDS if name not in (*SIZE_KEYS, "pad_token_id")]
)
def test_null_is_the_default(key):
    assert BertConfig.from_dict({key: None}) == BertConfig()


def test_no_padding_is_something_else():
    assert BertConfig.from_dict({"pad_token_id": None}).pad_token_id is None


@pytest.mark.parametrize("sign", ["[", '{"a":', '{"model_type": "bert", "a": ['])
@pytest.mark.parametrize("times", [90, 150, 900, 100_000])
def test_nesting_is_no_traceback(sign, times, changed):
    folder = changed()
    ends = {"[": "]", '{"a":': "}", '{"model_type": "bert", "a": [': "]}"}[sign]
    text = f'{{"model_type": "bert", "deep": {sign * times}1{ends * times}}}'
    (folder / "config.json").write_text(text)
    done = call("inspect", folder, "--json")
    assert (done.code == 0) >= (times <= 150), done.err
    assert done.code == 0 or "nested too deeply" in done.error


def test_no_model_type_leaves_it_to_the_architecture():
    with pytest.raises(ModelError, match="this is a XLNetModel model"):
        BertConfig.from_dict({"model_type": None, "architectures": ["XLNetModel"]})
    config = BertConfig.from_dict({"model_type": None, "architectures": ["BertForMaskedLM"]})
    assert config.to_dict()["model_type"] == "bert"
