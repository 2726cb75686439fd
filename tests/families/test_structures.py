"""Changes to a built model, and other ways to run it, for structures that are not BERT's."""

import copy
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import transformers
from family_models import ROWS, batch, our_model, their_model
from front import good
from model_reference import close, randomise
from task_models import SIZES, labels, tokenizer

from bertcli.errors import ModelError
from bertcli.models.bert import BertModel
from bertcli.models.config import BertConfig
from bertcli.models.surgery import prune_heads

UNPRUNED = {  # model type -> why its heads cannot be pruned
    "mpnet": "whose layers share a table",
    "deberta-v2": "whose layers share a table",
    "eurobert": "that share keys and values",
}
OURS = (
    *("mpnet", "modernbert", "nomic_bert", "gte", "jina_embeddings_v3", "deberta-v2", "eurobert"),
)
MODELS = [pytest.param(row, id=row.model_type) for row in ROWS if row.model_type in OURS]
LONG = " ".join(str(number) for number in range(150))


def model_of(row):
    sizes = {"num_attention_heads": 2, "hidden_size": 8}
    if row.more:
        sizes["num_key_value_heads"] = 1
    theirs = their_model(row, f"{row.prefix}Model", seed=6, **sizes)
    return our_model(theirs), batch(theirs, 6)


@pytest.mark.parametrize("row", MODELS)
def test_gradients_are_the_same_without_activations(row):
    model, inputs = model_of(row)
    found = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        model.zero_grad()
        model.hidden(*inputs).square().sum().backward()
        found.append([one.grad for name, one in model.named_parameters() if "pooler" not in name])
    for plain, again in zip(*found, strict=True):
        if plain is not None:  # the vector of a distance that does not occur
            close(again, plain)


@pytest.mark.parametrize("row", MODELS)
@torch.no_grad()
def test_heads_are_pruned_or_it_is_said_why_not(row):
    model, inputs = model_of(row)
    if row.model_type in UNPRUNED:
        with pytest.raises(ModelError, match=f"{UNPRUNED[row.model_type]} cannot be pruned"):
            prune_heads(model, {0: [1]})
        assert not model.config.pruned_heads
        return
    out = model.encoder.layer[0].attention.output.dense
    silenced = out.weight.clone()
    out.weight[:, 4:] = 0
    wanted = model.hidden(*inputs)
    out.weight.copy_(silenced)
    prune_heads(model, {0: [1]})
    close(model.hidden(*inputs), wanted)
    again = BertModel(model.config, pooler=hasattr(model.pooler, "dense"))
    again.load_state_dict(model.state_dict())


def test_odd_heads_cannot_be_turned():
    sizes = {"hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 8}
    config = BertConfig.from_dict({"model_type": "modernbert", "pad_token_id": 0, **sizes})
    with pytest.raises(ModelError, match="even head size, not 3"):
        BertModel(config)


@pytest.mark.parametrize(("kind", "more"), [
    ("ModernBert", {"local_attention": 12, "pad_token_id": 0}),
    ("MPNet", {}),
    ("JinaEmbeddingsV3", {"rope_parameters": {"rope_type": "linear", "factor": 3.0,
                                              "rope_theta": 500.0}}),
    ("Gte", {}),
    ("DebertaV2", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"],
                   "position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm"}),
])  # fmt: skip
@torch.no_grad()
def test_long_texts_reach_beyond_windows_and_buckets(kind, more, tmp_path):
    said = {**SIZES, "max_position_embeddings": 600, **more}
    config = getattr(transformers, f"{kind}Config")(**said)
    model = randomise(getattr(transformers, f"{kind}Model")(config)).eval()
    model.save_pretrained(tmp_path)
    long = copy.deepcopy(tokenizer())  # others use the one that is shared
    long.model_max_length = 600
    long.save_pretrained(tmp_path)
    backends = ["torch", "openvino"] if find_spec("openvino") else ["torch"]
    ids = tokenizer()(LONG)["input_ids"]
    assert len(ids) > 150
    wanted = model(torch.tensor([ids])).last_hidden_state[0]
    for backend in backends:
        for pooling, expected in (("mean", wanted.mean(0)), ("cls", wanted[0])):
            out = tmp_path / f"{backend}-{pooling}.npy"
            good("embed", "-q", "-m", tmp_path, "--no-normalize", "-o", out, "--backend", backend,
                 "--pooling", pooling, LONG, "short")  # fmt: skip
            close(torch.from_numpy(np.load(out)[0]), expected)


def test_a_head_of_the_mean_of_all_tokens(tmp_path):
    """classify, by both engines, alone and in a batch; and what train makes of such a model."""
    said = {**SIZES, **labels("B-LOC", "O", "B-PER"), "pad_token_id": 0, "local_attention": 4}
    config = transformers.ModernBertConfig(**said, classifier_pooling="mean")
    model = randomise(transformers.ModernBertForSequenceClassification(config)).eval()
    folder, out, file = tmp_path / "model", tmp_path / "out", tmp_path / "texts.jsonl"
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    texts = ["no", "the bank of the river", "a long and winding road", "no"]
    file.write_text("".join(f'{{"text": "{one}", "label": "{len(one) % 2}"}}\n' for one in texts))
    good("train", file, "-m", folder, "-o", out, "--full", "--epochs", 1, "-q",
         "--eval-fraction", 0)  # fmt: skip
    trained = transformers.ModernBertForSequenceClassification.from_pretrained(out).eval()
    assert trained.config.classifier_pooling == "mean"
    backends = ["torch", "openvino"] if find_spec("openvino") else ["torch"]
    for path, theirs in ((folder, model), (out, trained)):
        ids = [torch.tensor([tokenizer()(text)["input_ids"]]) for text in texts]
        with torch.no_grad():
            wanted = torch.cat([theirs(one).logits.softmax(-1).max(-1).values for one in ids])
        for backend in backends:
            more = ("-q", "-m", path, "-f", "jsonl", "--backend", backend)
            rows = good("classify", *texts, *more).rows
            close(torch.tensor([row["score"] for row in rows]), wanted)
            (alone,) = good("classify", texts[1], *more).rows
            assert alone["score"] == rows[1]["score"]
