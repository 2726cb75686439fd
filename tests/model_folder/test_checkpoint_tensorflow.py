"""Google's TensorFlow checkpoints, without TensorFlow.

The writer here follows the format's description: tensor_bundle.proto, and LevelDB's tables. The
reader was also held to a checkpoint that TensorFlow wrote (the SavedModel in basic-pitch 0.2.0):
the checksum of every variable agrees.
"""

import re
import shutil

import numpy as np
import pytest
import torch
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
    put_json,
)
from model_reference import close, texts, theirs
from safetensors.torch import load_file
from tensorflow_files import convert, write_checkpoint

from bertcli.errors import ModelError
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import load
from bertcli.models.bert import BertModel
from bertcli.models.heads import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)


@pytest.fixture
def reference():
    return theirs("BertForPreTraining")


@pytest.fixture
def folder(tmp_path, reference):
    """A folder as in Google's zip files, with the state of the optimiser as in one's own."""
    reference.save_pretrained(tmp_path / "theirs")
    variables = convert(load_file(tmp_path / "theirs" / "model.safetensors"))
    more = {f"{name}/adam_m": tensor + 1 for name, tensor in variables.items()}
    more |= {f"{name}/adam_v": tensor + 2 for name, tensor in variables.items()}
    google = tmp_path / "google"
    google.mkdir()
    config = json_in(tmp_path / "theirs" / "config.json")
    for key in ("model_type", "architectures", "dtype", "transformers_version"):
        del config[key]
    put_json(google / "bert_config.json", config)
    everything = {**variables, **more, "global_step": torch.tensor(7)}
    write_checkpoint(google / "bert_model.ckpt", everything)
    return google


@torch.no_grad()
def test_a_checkpoint_of_google(folder, reference):
    model, report = load(folder, BertForPreTraining)
    for name, tensor in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert not report.faults()
    assert report.files[0].name == "bert_model.ckpt.data-00000-of-00001"
    ids, keep, types = texts()
    wanted = reference(ids, attention_mask=keep, token_type_ids=types)
    words, pair = model(ids, keep, types)
    close(words, wanted.prediction_logits)
    close(pair, wanted.seq_relationship_logits)


def test_without_a_class_it_is_the_model_itself(folder):
    model, report = load(folder)
    assert isinstance(model, BertModel)
    assert report.unused == ("masked language model", "next sentence")


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (BertForSequenceClassification, "BertForSequenceClassification"),
        (BertForQuestionAnswering, "BertForQuestionAnswering"),
    ],
)
def test_fine_tuned_checkpoints(folder, made, name):
    """As run_classifier.py and run_squad.py leave them; the latter has a pooler that is unused."""
    reference = theirs(name)
    weights = convert({n: t.detach() for n, t in reference.named_parameters()})
    weights.setdefault("bert/pooler/dense/kernel", torch.ones(32, 32))
    weights.setdefault("bert/pooler/dense/bias", torch.ones(32))
    (folder / "bert_model.ckpt.index").unlink()
    write_checkpoint(folder / "model.ckpt-343", weights)
    model, _ = load(folder, made)
    for name, tensor in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_shards_half_precision_and_odd_places(folder, reference):
    weights = convert({n: t.detach().half() for n, t in reference.named_parameters()})
    write_checkpoint(folder / "bert_model.ckpt", weights, shards=3)
    model, report = load(folder, BertForPreTraining)
    assert report.dtype == "float16" and len(report.files) == 3
    words = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[words], reference.state_dict()[words].half())


def refused(folder, pattern, hint=""):
    with pytest.raises(ModelError) as caught:
        load(folder, BertForPreTraining)
    assert re.search(pattern, str(caught.value)), str(caught.value)
    assert re.search(hint, caught.value.hint), caught.value.hint


def test_a_missing_data_file(folder):
    (folder / "bert_model.ckpt.data-00000-of-00001").unlink()
    refused(folder, r"bert_model\.ckpt\.data-00000-of-00001: file not found", "download")


@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.999])
def test_a_truncated_index(folder, share):
    path = folder / "bert_model.ckpt.index"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(
        folder, r"bert_model\.ckpt\.index: (not a complete index|the file is empty)", "download"
    )


def test_big_endian_and_compressed_checkpoints(folder):
    write_checkpoint(folder / "bert_model.ckpt", {"a": torch.ones(2)}, endian=1)
    refused(folder, r"bert_model\.ckpt\.index: not a complete index")
    write_checkpoint(folder / "bert_model.ckpt", {"a": torch.ones(2)}, compressed=True)
    refused(
        folder,
        r"bert_model\.ckpt\.index: not a complete index .* or compressed",
        "transformers-cli convert --model_type",
    )


def test_several_checkpoints(folder):
    write_checkpoint(folder / "model.ckpt-7", {"a": torch.ones(2)})
    refused(folder, r"google: several checkpoints: bert_model\.ckpt, model\.ckpt-7", "keep one")


# --- through the front door ---

QUIET = ["--pooling", "mean", "-q"]


@pytest.fixture
def alone(tmp_path):
    """A folder that holds nothing but what Google's zip files hold, of the sample model."""
    weights = load_file(TINY / "model.safetensors")
    variables = convert({f"bert.{name}": tensor for name, tensor in weights.items()})
    variables["output_weights"], variables["output_bias"] = torch.ones(2, 32), torch.zeros(2)
    variables["output_weights"][1] = -1
    folder = tmp_path / "google"
    folder.mkdir()
    write_checkpoint(folder / "bert_model.ckpt", variables, shards=2)
    shutil.copy(TINY / "vocab.txt", folder)
    shutil.copy(TINY / "config.json", folder / "bert_config.json")
    return folder


def test_a_folder_of_nothing_else_works(alone, tmp_path):
    argv = ["embed", "one", "two three", *QUIET]
    ours, theirs = (good(*argv, "-m", model).rows for model in (alone, TINY))
    assert [row["embedding"] for row in ours] == [row["embedding"] for row in theirs]
    rows = good("classify", "one", "-m", alone).rows
    assert call("similar", "one", "--corpus", alone / "vocab.txt", "-m", alone, "-k", 1).code == 0
    assert len(rows) == 1
    assert good("inspect", "-m", alone, "--json").rows[0]["weights"]["format"] == "tensorflow"
    assert "WRONG" not in good("inspect", "-m", alone, "--verify").out
    assert good("inspect", "-m", alone, "--attention", "one", "--json").rows


@pytest.mark.parametrize(
    "missing", ["bert_model.ckpt.index", "bert_model.ckpt.data-00001-of-00002"]
)
def test_what_such_a_folder_lacks_is_named(alone, missing):
    (alone / missing).unlink()
    index = missing.endswith("index")
    expected = "has no model.safetensors" if index else f"{missing}: file not"
    assert expected in bad("embed", "one", "-m", alone).error


def test_two_such_models_have_different_fingerprints(alone, tmp_path):
    good("embed", "one", *QUIET, "-m", alone, "-o", tmp_path / "out.npy")
    made = json_in(tmp_path / "out.npy.manifest.json")["fingerprint"]
    assert len(made["weights"]) == 3  # the index and both data files
    data = alone / "bert_model.ckpt.data-00001-of-00002"
    changed = np.frombuffer(data.read_bytes(), "<f4").copy()
    changed[0] += 1
    data.write_bytes(changed.tobytes())
    again = bad("embed", "one", *QUIET, "-m", alone, "-o", tmp_path / "out.npy", "--resume")
    assert "weights.bert_model.ckpt.data-00001-of-00002 was" in again.error
    assert ModelFolder(alone).weights.digests.keys() == made["weights"].keys()


def test_every_shard_and_what_the_config_decides_are_in_the_fingerprint(tmp_path):
    """And nothing of the config that changes no number."""
    folder, out = tmp_path / "model", tmp_path / "out.npy"
    shutil.copytree(TINY, folder)
    config = json_in(folder / "config.json")
    argv = ["embed", "one", *QUIET, "-m", folder, "-o", out, "--resume"]
    good(*argv)
    for key, value in (("hidden_act", "relu"), ("layer_norm_eps", 0.1), ("is_decoder", True)):
        put_json(folder / "config.json", config | {key: value})
        assert f"config.{key} was" in bad(*argv).error
        again = bad(
            "similar", "one", "--corpus", folder / "vocab.txt", "--vectors", out, "-m", folder
        )
        assert again.error.endswith("its config differs")
    put_json(folder / "config.json", config | {"transformers_version": "9"})
    assert call(*argv).code == 0
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert "options.lower_case was false, now true" in bad(*argv).error
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: f"part-{at % 2}.bin" for at, name in enumerate(weights)}
    for shard in set(shards.values()):
        torch.save({n: t for n, t in weights.items() if shards[n] == shard}, folder / shard)
    index = {"weight_map": shards}
    put_json(folder / "pytorch_model.bin.index.json", index)
    names = {"pytorch_model.bin.index.json", "part-0.bin", "part-1.bin"}
    assert {*ModelFolder(folder).weights.digests} == names
