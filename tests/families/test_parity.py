"""Every family against transformers, with weights wide enough that nothing hides.

A family joins with a row in `family_models`.
"""

import dataclasses
import inspect

import pytest
import torch
import transformers
from family_models import BERT, ROWS, batch, our_model, their_model
from front import (
    bad,
    json_in,
    put_json,
)
from model_reference import close, encode
from safetensors.torch import load_file, save_file
from tokenizers_made import bpe_folder

from bertcli.errors import ModelError
from bertcli.families.registry import FAMILIES
from bertcli.model_folder import shapes
from bertcli.model_folder.load import load, save
from bertcli.models.attention import Recording
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.forward_passes import Decoder
from bertcli.models.heads import BertForSequenceClassification
from bertcli.models.surgery import prune_heads

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True)
def one_thread(threads):
    """These models are so small that threads would wait for one another."""
    torch.set_num_threads(1)


CONFIGURATIONS = 16  # of the model itself; its heads stand over some of them
CASES = [pytest.param(row, name, id=name) for row in (BERT, *ROWS) for name in row.classes]
LOGITS = (
    "prediction_logits",
    "seq_relationship_logits",
    "sop_logits",
    "logits",
    "start_logits",
    "end_logits",
)


def call(theirs, ids, keep, types, **more):
    """Call a model of transformers with the token types that it takes, if any."""
    if "token_type_ids" in inspect.signature(type(theirs).forward).parameters:
        more["token_type_ids"] = types
    return theirs(ids, attention_mask=keep, **more)


def seeds(row, name):
    if row.alike:
        return range(CONFIGURATIONS // 8)
    return range(CONFIGURATIONS if name.endswith("Model") else CONFIGURATIONS // 4)


def compare_states(theirs, ours, inputs):
    """All hidden states and attentions, padded; then the last states, packed and each alone."""
    ids, keep, types = inputs
    real = keep.bool()
    wanted = call(theirs, *inputs, output_hidden_states=True, output_attentions=True)
    for got, expected in zip(ours.states(ids, keep, types), wanted.hidden_states, strict=True):
        close(got[real], expected[real])
    if not ours.config.structure.convolution:  # which has to know padding as well
        maps = []
        assert len([*ours.states(ids, types=types, kernels=Recording(maps, keep))]) == len(maps) + 1
        for got, expected in zip(maps, wanted.attentions, strict=True):
            close(*(one.transpose(1, 2)[real] for one in (got, expected)))  # from tokens
    output = ours(ids, keep, types, output_hidden_states=True, output_attentions=True)
    last = output.last_hidden_state
    close(last[real], wanted.last_hidden_state[real])
    for got, expected in zip(output.hidden_states, wanted.hidden_states, strict=True):
        close(got[real], expected[real])
    for got, expected in zip(output.attentions, wanted.attentions, strict=True):
        close(*(one.transpose(1, 2)[real] for one in (got, expected)))  # from tokens
    lengths = keep.sum(1).tolist()
    close(encode(ours, ids[real], lengths, types[real]), wanted.last_hidden_state[real])
    for row, length in enumerate(lengths):
        alone = ours.hidden(ids[row : row + 1, :length], types=types[row : row + 1, :length])
        close(alone[0], wanted.last_hidden_state[row, :length])
    if getattr(wanted, "pooler_output", None) is not None:
        close(output.pooler_output, wanted.pooler_output)
        close(ours.pooler(last), wanted.pooler_output)
        close(ours.pool_first(last[:, 0]), wanted.pooler_output)


def given(name, inputs):
    """Inputs as a class takes them: [1, choices, L] or [B, L]."""
    return [one[None] for one in inputs] if name.endswith("MultipleChoice") else inputs


def compare_logits(theirs, ours, inputs, name):
    inputs = given(name, inputs)
    got, found = ours(*inputs).to_tuple(), call(theirs, *inputs)
    wanted = [found[key] for key in LOGITS if key in found]
    assert len(got) == len(wanted)
    for mine, expected in zip(got, wanted, strict=True):
        whole = mine.shape[:2] != inputs[1].shape
        real = slice(None) if whole else inputs[1].bool()
        close(mine[real], expected[real])


@pytest.mark.parametrize(("row", "name"), CASES)
@torch.no_grad()
def test_numbers_are_those_of_transformers(row, name):
    for seed in seeds(row, name):
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
    assert {row.model_type for row in ROWS} == {*FAMILIES} - {"bert", "new"}


@pytest.mark.parametrize(("row", "name"), CASES)
@torch.no_grad()
def test_folders_go_both_ways(row, name, tmp_path):
    """What transformers saves is loaded, and what is saved of it is loaded by transformers."""
    theirs = their_model(row, name, seed=4)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, report = load(tmp_path / "theirs")
    assert not report.faults() and not report.unused
    save(ours, ours.config, tmp_path / "ours")
    how = {"output_loading_info": True, "attn_implementation": "eager"}  # padding differs in others
    again, info = type(theirs).from_pretrained(tmp_path / "ours", **how)
    assert not any(info.values()), info
    inputs = given(name, batch(theirs, 4))
    close(tensors(call(again.eval(), *inputs)), tensors(call(theirs, *inputs)))
    there = json_in(tmp_path / "theirs" / "config.json")
    back = json_in(tmp_path / "ours" / "config.json")
    assert {key: back[key] for key in there if there[key] is not None} == {
        key: value for key, value in there.items() if value is not None
    }


def tensors(output):
    return [one for one in output.values() if isinstance(one, torch.Tensor)]


@pytest.mark.parametrize(("row", "name"), CASES)
def test_shapes_are_told_without_the_model(row, name):
    for seed in range(5):
        theirs = their_model(row, name, seed)
        ours = our_model(theirs)
        config, kind = ours.config, type(ours).__name__
        found = {key: tuple(one.shape) for key, one in ours.state_dict().items()}
        pooler = any("pooler." in key for key in found)
        assert shapes.expected_shapes(config, kind, pooler) == found
        numbers = sum(one.numel() for one in theirs.parameters())
        assert shapes.parameter_count(config, kind, pooler=pooler) == numbers


DECODERS = [
    pytest.param(row, name, id=name)
    for row in ROWS
    for name, ours in FAMILIES[row.model_type].classes.items()
    if ours == "BertLMHeadModel"
]


@pytest.mark.parametrize(("row", "name"), DECODERS)
@torch.no_grad()
def test_a_decoder_is_that_of_transformers_at_once_and_step_by_step(row, name):
    for seed in range(5):
        theirs = their_model(row, name, seed, is_decoder=True)
        ours, (ids, keep, types) = our_model(theirs), batch(theirs, seed)
        ids, keep, types = ids[:1], keep[:1], types[:1]  # of the longest text
        wanted = call(theirs, ids, keep, types).logits
        close(ours(ids, keep, types).logits, wanted)
        decode = Decoder(ours.bert)
        steps = [decode(ids[:, at : at + 1], None, types[:, at : at + 1]) for at in range(9)]
        padding = theirs.config.pad_token_id
        if not (ids == padding).any():  # how often it came before is not seen in one step
            close(ours.logits(torch.cat(steps, 1)), wanted)


WITH_HEADS = [row for row in ROWS if f"{row.prefix}ForMaskedLM" in row.classes]


@pytest.mark.parametrize("row", WITH_HEADS, ids=lambda row: row.model_type)
@torch.no_grad()
def test_what_a_head_needs_is_found_in_files_of_others(row, tmp_path):
    """The encoder in the file of a head, under old names too; a fresh head over an encoder."""
    theirs = their_model(row, f"{row.prefix}ForMaskedLM", seed=4)
    theirs.save_pretrained(tmp_path)
    model, report = load(tmp_path, BertModel)
    assert report.unused == ("masked language model",)
    inputs = batch(theirs, 4)
    wanted = call(theirs.base_model, *inputs).last_hidden_state[inputs[1].bool()]
    close(model.hidden(*inputs)[inputs[1].bool()], wanted)
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        f"module.{name.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta')}": one
        for name, one in weights.items()
    }
    old[f"{FAMILIES[row.model_type].base}.embeddings.position_ids"] = torch.arange(5.0)[None]
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    again, report = load(tmp_path, BertModel)
    close(again(*inputs).to_tuple(), model(*inputs).to_tuple(), 0)
    fresh, report = load(tmp_path, BertForSequenceClassification, fresh=True, labels=["a", "b"])
    assert all("classifier" in name or "pooler" in name for name in report.fresh)
    assert fresh.classifier.weight.shape[0] == 2


REFUSED = {
    "code that comes with it": ({"model_type": "xl-bert", "auto_map": {}}, "this is a xl-bert"),
    "another family": ({"model_type": "t5"}, "this is a t5 model; bertcli supports BERT, "),
    "no padding": ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id"),
    "its own key": ({"model_type": "distilbert", "dim": "x"}, "dim: expected a whole number"),
    "no position for a token": (
        {"model_type": "roberta", "pad_token_id": 99, "max_position_embeddings": 66},
        "max_position_embeddings: expected a whole number from 101 to 1000000000, found 66",
    ),
    "layers in groups": ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num 2"),
    "a summary": ({"model_type": "electra", "summary_type": "last"}, "summary_type"),
    "few buckets": (
        {"model_type": "mpnet", "relative_attention_num_buckets": 16},
        "relative_attention_num_buckets 16 is not supported, only 32 or more",
    ),
    "an even convolution": (
        {"model_type": "deberta-v2", "conv_kernel_size": 4},
        "conv_kernel_size 4 is not supported, only an odd number of tokens",
    ),
    "heads that share no keys evenly": (
        {"model_type": "eurobert", "num_key_value_heads": 5},
        "num_key_value_heads: expected a divisor of the 12 heads, found 5",
    ),
    "causal attention": (
        {"model_type": "gemma3_text"},
        "use_bidirectional_attention False is not supported, only true",
    ),
    "scores of another scale": (
        {
            "model_type": "gemma3_text",
            "use_bidirectional_attention": True,
            "query_pre_attn_scalar": 168,
        },
        r"query_pre_attn_scalar 168 is not supported, only the size of a head \(head_dim\)",
    ),
    "a pooling of its own": (
        {"model_type": "eurobert", "classifier_pooling": "last"},
        'classifier_pooling: expected "bos" or "mean" or "late", found "last"',
    ),
    **{
        f"rope {kind}": (
            {"model_type": "nomic_bert", "rope_parameters": {"rope_type": kind, "factor": 2.0}},
            f"rope_parameters.rope_type '{kind}' is not supported, only default and linear",
        )
        for kind in ("dynamic", "yarn", "llama3")
    },
}


@pytest.mark.parametrize(("raw", "words"), REFUSED.values(), ids=[*REFUSED])
def test_what_no_page_can_follow_is_refused(raw, words):
    with pytest.raises(ModelError, match=words) as refused:
        BertConfig.from_dict(raw)
    if "not supported" in words:
        assert "the folder is not broken" in refused.value.hint


def test_a_tokenizer_without_a_position_for_a_token_is_refused(tmp_path):
    folder = bpe_folder(tmp_path / "m")
    raw, words = REFUSED["no position for a token"]
    put_json(folder / "config.json", raw)
    assert words in bad("tokenize", "hi", "-m", folder).error


def test_layers_that_share_their_weights_are_not_pruned():
    model = BertModel(BertConfig.from_dict({"model_type": "albert", "hidden_size": 64}))
    with pytest.raises(ValueError, match="share"):
        prune_heads(model, {0: [1]})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.model_type)
def test_what_config_json_does_not_say_is_as_in_transformers(row):
    said = transformers.AutoConfig.for_model(row.model_type, **row.needed).to_dict()
    bare = BertConfig.from_dict({"model_type": row.model_type, **row.needed})
    whole = BertConfig.from_dict(said)
    for one in dataclasses.fields(BertConfig):
        if one.name not in {"other", "id2label", "label2id"}:
            assert getattr(bare, one.name) == getattr(whole, one.name), one.name
