"""Which files of a folder are used: one rule for every command, and that of transformers."""

import errno
import os
import shutil

import pytest
import torch
import transformers
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
    put_json,
)
from nested_models import inside_a_sentence_model
from safetensors.torch import load_file, save_file
from tensorflow_files import write_checkpoint

from bertcli.model_folder.load import load

QUIET = ["--pooling", "mean", "-q"]


@pytest.fixture
def folder(tmp_path):
    """The sample model with a pytorch_model.bin, whose words are other ones, beside it."""
    place = tmp_path / "model"
    shutil.copytree(TINY, place)
    weights = load_file(TINY / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"] + 1
    torch.save(weights, place / "pytorch_model.bin")
    return place


def used(folder, tmp_path):
    """Return the files that inspect shows and that a manifest names, and the first vector."""
    out = tmp_path / "out.jsonl"
    good("embed", "one", *QUIET, "-m", folder, "-o", out, "--overwrite")
    manifest = json_in(tmp_path / "out.jsonl.manifest.json")["fingerprint"]
    shown = good("inspect", "-m", folder, "--json").rows[0]["weights"]["files"]
    return [*shown], [*manifest["weights"]], json_in(out)["embedding"]


def theirs(folder):
    """Return the first word embedding that transformers loads."""
    model = transformers.BertModel.from_pretrained(folder)
    return model.embeddings.word_embeddings.weight[0, 0].item()


def test_safetensors_go_before_a_pickle(folder, tmp_path):
    shown, hashed, vector = used(folder, tmp_path)
    assert shown == hashed == ["model.safetensors"]
    assert used(TINY, tmp_path)[2] == vector
    assert theirs(folder) == theirs(TINY)


@pytest.mark.parametrize("how", ["folder", "broken link"])
def test_a_name_that_is_not_a_file_does_not_count(folder, tmp_path, how):
    """As in transformers, which asks for files; loading and inspect used to refuse the folder."""
    path = folder / "model.safetensors"
    path.unlink()
    if how == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    shown, hashed, vector = used(folder, tmp_path)
    assert shown == hashed == ["pytorch_model.bin"]
    assert vector != used(TINY, tmp_path)[2]
    assert theirs(folder) == pytest.approx(theirs(TINY) + 1)
    (folder / "pytorch_model.bin").unlink()
    expected = "not a regular file" if how == "folder" else "broken or circular symlink"
    assert bad("inspect", "-m", folder).error == f"{path}: {expected}"


def test_tensors_that_an_index_leaves_out_are_read(folder, tmp_path):
    """As in transformers; inspect used to refuse the index, which loading did not."""
    (folder / "pytorch_model.bin").unlink()
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"weight_map": dict.fromkeys([*weights][1:], "one.safetensors"), "metadata": {}}
    put_json(folder / "model.safetensors.index.json", index)
    shown, hashed, vector = used(folder, tmp_path)
    assert shown == ["one.safetensors"]
    assert hashed == ["model.safetensors.index.json", "one.safetensors"]
    assert vector == used(TINY, tmp_path)[2]
    assert theirs(folder) == theirs(TINY)
    assert good("inspect", "-m", folder, "--json").rows[0]["fit"]["missing"] == []


def test_of_a_tensor_in_two_shards_the_index_says_which(folder, tmp_path):
    (folder / "pytorch_model.bin").unlink()
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    other = {name: torch.zeros_like(one) for name, one in weights.items()}
    save_file(other, folder / "two.safetensors", {"format": "pt"})
    last = [*weights][-1]
    index = {"weight_map": dict.fromkeys(weights, "one.safetensors") | {last: "two.safetensors"}}
    put_json(folder / "model.safetensors.index.json", index)
    found = good("inspect", "-m", folder, "--json").rows[0]
    assert {one["name"]: one["file"] for one in found["tensors"]} == index["weight_map"]
    assert found["fit"]["twice"] == []


def test_several_tensorflow_checkpoints_are_refused_by_inspect_as_well(folder):
    """It used to show the last of them, and a manifest would have named all."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").unlink()
    for name in ("a.ckpt-1", "b.ckpt-2"):
        write_checkpoint(folder / name, {"a": torch.ones(2)})
    for command in (["inspect"], ["embed", "one"]):
        error = bad(*command, "-m", folder).error
        assert error == f"{folder}: several checkpoints: a.ckpt-1, b.ckpt-2"


@pytest.fixture
def inside(tmp_path):
    """A model of old sentence-transformers, which kept its BERT in a folder of its own."""
    return inside_a_sentence_model(TINY, tmp_path / "sbert")


@pytest.mark.parametrize("config", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_every_command_finds_the_bert_inside_a_sentence_model(inside, config):
    (inside / "0_Transformer" / config).write_text('{"max_seq_length": 9}')
    words = "the quick brown fox jumps over the lazy dog and more"
    done = call("tokenize", "-m", inside, words)
    assert done.rows == call("tokenize", "-m", TINY, words).rows
    assert "longer than the model's limit of 9 tokens" in done.err
    (row,) = call("embed", "-m", inside, words).rows
    assert row == call("embed", "-m", TINY, words, "--max-length", 9).rows[0]
    assert row["n_tokens"] == 9
    assert good("inspect", inside, "--json").rows[0]["tokenizer"]["limit"] == 9


@pytest.mark.parametrize("files", [("vocab.txt", "tokenizer.json"), ("model.safetensors",)])
def test_what_the_part_of_a_sentence_model_lacks(inside, files):
    for name in files:
        (inside / "0_Transformer" / name).unlink(missing_ok=True)
    said = bad("embed", "-m", inside, "hi").error
    assert said.startswith(f"model folder '{inside}' has no ")
    assert said.endswith(" in 0_Transformer")


def test_inspect_finds_the_bert_inside_a_sentence_model(inside):
    folder = inside
    found = good("inspect", folder, "--json").rows[0]
    assert [*found["weights"]["files"]] == ["model.safetensors"]
    assert found["sentence"]["transformer"] == "0_Transformer"
    assert found["tokenizer"]["vocabulary_size"] == found["config"]["vocab_size"]
    assert load(folder)[0].state_dict().keys() == load(TINY)[0].state_dict().keys()
    assert good("inspect", folder, "--attention", "one", "--json").rows
    assert "WRONG" not in good("inspect", folder, "--verify").out


def test_no_room_to_map_weights_is_no_damage(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", full)
    done = call("embed", "-q", "-m", TINY, "a b")
    assert (done.code, done.error) == (1, "out of memory")
