"""Checkpoints as their makers wrote them, before transformers had these models."""

import pytest
import torch
from family_models import ROWS, batch, their_model
from front import json_in, put_json
from model_reference import close
from safetensors.torch import load_file, save_file

from bertcli.errors import ModelError
from bertcli.families.modernbert import ROTARY_BASES
from bertcli.families.structure import Rotary
from bertcli.model_folder.load import load, save
from bertcli.models.config import BertConfig

NOMIC = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "intermediate_size": "n_inner"}
NOMIC |= {"num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}
NOMIC |= {"layer_norm_eps": "layer_norm_epsilon"}


def saved(kind, name, folder, **changes):
    """Save a model of transformers, which does so under the names of its makers."""
    row = next(row for row in ROWS if row.model_type == kind)
    theirs = their_model(row, name, seed=1, **changes)
    theirs.save_pretrained(folder)
    return theirs, json_in(folder / "config.json")


@torch.no_grad()
def test_the_config_of_nomic(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 50.0}
    theirs, said = saved("nomic_bert", "NomicBertModel", tmp_path, rope_parameters=rope)
    names = {*load_file(tmp_path / "model.safetensors")}
    assert "encoder.layers.0.attn.Wqkv.weight" in names
    older = {NOMIC.get(key, key): value for key, value in said.items() if key != "rope_parameters"}
    older |= {"rotary_emb_base": 50.0, "activation_function": "swiglu", "prenorm": False}
    del older["hidden_act"]
    theirs.config.hidden_act = "silu"
    again = type(theirs)(theirs.config)
    again.load_state_dict(theirs.state_dict())
    put_json(tmp_path / "config.json", older)
    ours, report = load(tmp_path)
    assert not report.faults()
    ids, keep, types = batch(theirs, 1)
    wanted = again.eval()(ids, keep, types).last_hidden_state
    close(ours(ids, keep, types)[0][keep.bool()], wanted[keep.bool()])
    older["rotary_scaling_factor"] = 2.0
    with pytest.raises(ModelError, match=r"rotary_scaling_factor 2\.0 is not supported, only null"):
        BertConfig.from_dict(older)


@torch.no_grad()
def test_the_files_of_alibaba(tmp_path):
    """Their own model_type, prefix and scaling, which transformers does not have."""
    rope = {"rope_type": "default", "rope_theta": 50.0}
    theirs, said = saved("gte", "GteForMaskedLM", tmp_path, rope_parameters=rope)
    weights = load_file(tmp_path / "model.safetensors")
    turned = {name.replace("gte.", "new.", 1): one for name, one in weights.items()}
    assert "new.encoder.layer.0.attention.qkv_proj.weight" in turned
    save_file(turned, tmp_path / "model.safetensors", {"format": "pt"})
    said |= {"model_type": "new", "architectures": ["NewForMaskedLM"], "rope_theta": 50.0}
    said |= {"position_embedding_type": "rope", "layer_norm_type": "layer_norm"}
    del said["rope_parameters"]
    put_json(tmp_path / "config.json", said)
    ours, report = load(tmp_path)
    assert not report.faults()
    ids, keep, types = batch(theirs, 1)
    close(ours(ids, keep, types).logits[keep.bool()], theirs(ids, keep, types).logits[keep.bool()])
    said["rope_scaling"] = {"type": "ntk", "factor": 8.0}
    size = said["hidden_size"] // said["num_attention_heads"]
    assert BertConfig.from_dict(said).structure.rotary[0] == Rotary(400.0, 8 ** (2 / size))
    said["rope_scaling"] = {"type": "yarn", "factor": 8.0}
    with pytest.raises(ModelError, match="'yarn' is not supported, only default and linear"):
        BertConfig.from_dict(said)


@torch.no_grad()
@pytest.mark.parametrize("base", [200.0, None])
def test_no_base_for_windows_of_modernbert_is_that_of_all(tmp_path, base):
    """As in transformers 4; 5.23 builds no such model."""
    rope = {kind: {"rope_theta": base or 160_000.0} for kind in ROTARY_BASES}
    theirs, said = saved("modernbert", "ModernBertModel", tmp_path, rope_parameters=rope)
    del said["rope_parameters"]
    said |= {"local_rope_theta": None} | ({"global_rope_theta": base} if base else {})
    put_json(tmp_path / "config.json", said)
    ours, report = load(tmp_path)
    assert not report.faults()
    ids, keep, types = batch(theirs, 1)
    wanted = theirs(ids, keep).last_hidden_state
    close(ours(ids, keep, types).last_hidden_state[keep.bool()], wanted[keep.bool()])


def test_the_older_name_of_the_pooling_of_eurobert():
    said = {"model_type": "eurobert", "clf_pooling": "bos"}
    config = BertConfig.from_dict(said)
    assert not config.structure.text_head.mean
    assert config.to_dict()["classifier_pooling"] == "bos"


def test_a_page_says_what_it_does_not_have():
    said = {"model_type": "modernbert", "pad_token_id": 0}
    with pytest.raises(ModelError, match="layer_types: expected 22 of full_attention, sliding"):
        BertConfig.from_dict({**said, "layer_types": ["full_attention"]})
    with pytest.raises(ModelError, match="head_dim: expected the hidden size divided by the heads"):
        BertConfig.from_dict({"model_type": "nomic_bert", "head_dim": 8})
    with pytest.raises(ModelError, match="num_buckets 8 is not supported, only 32"):
        BertConfig.from_dict({"model_type": "mpnet", "relative_attention_num_buckets": 8})
    assert BertConfig.from_dict(said).structure._replace(rotary=()).windows[:4] == (
        None,
        64,
        64,
        None,
    )


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_for_words_of_deberta_v3(tmp_path, tied):
    """Its files have other names for it than those that transformers reads by default.

    It takes the word embeddings as they are, whether the config ties them or not.
    """
    more = {"legacy": False, "tie_word_embeddings": tied}
    theirs, _ = saved("deberta-v2", "DebertaV2ForMaskedLM", tmp_path, **more)
    assert "lm_predictions.lm_head.bias" in load_file(tmp_path / "model.safetensors")
    ours, report = load(tmp_path)
    assert not report.faults()
    inputs = ids, keep, types = batch(theirs, 1)
    wanted = theirs(ids, keep, types).logits[keep.bool()]
    close(ours(*inputs).logits[keep.bool()], wanted)
    save(ours, ours.config, tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again")
    close(again(ids, keep, types).logits[keep.bool()], wanted)
    said = {"model_type": "deberta-v2", "pos_att_type": ["c2p"]}
    for bad in ({}, {"relative_attention": True, "conv_kernel_size": 4}):
        with pytest.raises(ModelError, match=r"needs relative_attention|conv_kernel_size 4 is"):
            BertConfig.from_dict({**said, **bad})


KEYS = {
    "modernbert": "layer_types rope_parameters rope_scaling global_rope_theta local_attention "
    "norm_bias mlp_dropout classifier_pooling classifier_activation global_attn_every_n_layers",
    "deberta-v2": "pos_att_type position_buckets max_relative_positions norm_rel_ebd cls_dropout "
    "share_att_key position_biased_input pooler_dropout pooler_hidden_act conv_kernel_size",
    "nomic_bert": "rope_parameters head_dim n_embd activation_function prenorm rope_theta",
    "gte": "rope_parameters rope_theta type_vocab_size head_dim hidden_dropout_prob",
    "new": "rope_scaling position_embedding_type logn_attention_scale rope_theta",
    "mpnet": "relative_attention_num_buckets max_position_embeddings",
}


@pytest.mark.parametrize(("kind", "key"), [(k, key) for k in KEYS for key in KEYS[k].split()])
def test_a_value_of_another_type_is_one_line(kind, key):
    """No value is worked with unseen: each is refused, or is nothing that matters."""
    said = {"model_type": kind, "relative_attention": True, "num_hidden_layers": 2}
    refused = 0
    for value in ("x", [3], {"factor": []}, -2, 0.5, True):
        try:
            BertConfig.from_dict({**said, key: value})
        except ModelError:
            refused += 1
    assert refused >= 2
