"""Broken folders: each is one clear line that names the file, and nothing in it runs."""

import io
import json
import pickle
import re
import shutil
import struct
import sys
import tarfile
import zipfile

import pytest
import torch
from front import (
    TINY,
    bad,
    good,
    json_in,
    put_json,
)
from model_reference import randomise, rewrite, tiny
from safetensors.torch import load_file, save_file

from bertcli.errors import ModelError, OutputError
from bertcli.model_folder.load import load, save
from bertcli.models.heads import BertForSequenceClassification

WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def folder(tmp_path):
    """A small folder that loads, to be broken."""
    folder = tmp_path / "model"
    config = tiny(num_labels=3, num_hidden_layers=2)
    save(randomise(BertForSequenceClassification(config)), config, folder)
    return folder


def refusal(folder, **options):
    with pytest.raises(ModelError) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert str(folder) in str(caught.value)
    return caught.value


def refused(folder, pattern, hint=""):
    error = refusal(folder)
    assert re.search(pattern, str(error)), str(error)
    assert re.search(hint, error.hint), error.hint


def set_config(folder, **changes):
    path = folder / "config.json"
    put_json(path, {**json_in(path), **changes})


# --- the folder and its config ---


@pytest.mark.parametrize("beside", ["model", "config", "nothing", "part"])
def test_an_adapter_is_no_model(beside, tmp_path):
    """Whatever lies beside it: transformers adds it to its base model, and so it must not go."""
    folder = shutil.copytree(TINY, tmp_path / "m")
    where = folder
    if beside == "part":
        where = folder / "0_Transformer"
        modules = [{"path": where.name, "type": "sentence_transformers.models.Transformer"}]
        shutil.copytree(TINY, where)
        put_json(folder / "modules.json", modules)
    elif beside != "model":
        (folder / "model.safetensors").unlink()
    if beside == "nothing":
        (folder / "config.json").unlink()
    said = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "task_type": "SEQ_CLS"}
    put_json(where / "adapter_config.json", said)
    assert good("tokenize", "a", "-m", folder).ids
    for argv in (
        ("embed", "a"),
        ("classify", "a"),
        ("rerank", "a", "b"),
        ("similar", "a", "--corpus", TINY / "vocab.txt"),
        ("inspect",),
        ("export", "-o", tmp_path / "out"),
    ):
        refused = bad(*argv, "-m", folder)
        wanted = f"{where}: an adapter (LORA) of org/base, not a whole model (adapter_config.json)"
        assert refused.error == wanted
        assert "AutoPeftModelForSequenceClassification.from_pretrained(" in refused.hint
        assert "merge_and_unload()" in refused.hint
    with pytest.raises(ModelError, match=r"an adapter \(LORA\) of org/base"):
        load(where)


@pytest.mark.skipif(sys.platform != "linux", reason="names are text")
@pytest.mark.parametrize("command", ["tokenize", "embed", "inspect"])
def test_a_folder_whose_name_is_no_text(folder, command, tmp_path):
    odd = tmp_path / "\udcffmodel"
    shutil.copytree(folder, odd)
    text = [] if command == "inspect" else ["a"]
    assert "the path is not UTF-8" in bad(command, *text, "-m", odd).error


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "snake"}, "hidden_act 'snake' is unknown"),
        ({"position_embedding_type": "no"}, "position_embedding_type 'no' is unknown"),
        ({"num_attention_heads": 5}, "is not a multiple of num_attention_heads 5"),
        ({"pad_token_id": 99999}, "pad_token_id 99999 is outside the vocabulary of"),
    ],
)
def test_values_that_no_model_is_made_with_name_their_file(folder, changes, said):
    set_config(folder, **changes)
    refused(folder, f"{re.escape(str(folder / 'config.json'))}: .*{said}")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin"])
def test_a_symlink_loop(folder, name):
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(name)
    refused(folder, rf"{name}: broken or circular symlink")


def test_a_link_to_nowhere(folder):
    """As in a cache from which somebody deleted the blobs."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/123")
    refused(folder, r"model\.safetensors: broken or circular symlink", "download the file again")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "model: no weights in this folder", "^one of model.safetensors, ")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_files_that_are_not_there_yet(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"")
    refused(folder, rf"{name}: the file is empty", "download the file again")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    refused(folder, rf"{name}: only a git-lfs pointer", "git lfs pull")
    assert f"{name}: only a git-lfs pointer" in bad("inspect", folder).error


# --- safetensors ---


def crafted(header, data=b"\0" * 16):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype, shape, start, end):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}}


LIES = [
    b"1234567",
    struct.pack("<Q", 5000) + b"{}",
    struct.pack("<Q", 2**40) + b"{}",
    b"<!DOCTYPE html><html></html>",
    crafted(b"hello, world"),
    crafted(b'{"\xff": 1}'),
    crafted([1, 2]),
    crafted(one("F32", [4], 0, 4000)),
    crafted(one("F32", [4], 16, 0)),
    crafted(one("F32", [5], 0, 16)),
    crafted(one("F32", [2**62, 2**62], 0, 16)),
    crafted(one("F32", [2], 8, 16)),
    crafted(one("F32", [-4], 0, 16)),
    crafted(one("X9", [4], 0, 16)),
    crafted(one("F32", [4], 0, 16), b"\0" * 20),
    crafted(b"[" * 100_000),
    crafted(b'{"a": 1, "a": 2}'),
    crafted({"a": {"dtype": "F32"}}),
    crafted({"a": 3}),
    crafted(one("F32", [2.0], 0, 8)),
    crafted(one([], [4], 0, 16)),
    crafted(one("F32", [4], 0, 16), b"\0" * 15),
]


@pytest.mark.parametrize("content", LIES, ids=range(len(LIES)))
def test_safetensors_headers_that_lie(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    words = "model.safetensors: Error while deserializing header: "
    refused(folder, re.escape(words), "^download or write the file again$")
    assert words in bad("inspect", folder).error


def test_integers_are_not_weights(folder):
    rewrite(folder, lambda weights: {**weights, WORDS: weights[WORDS].to(torch.int8)})
    refused(folder, rf"model\.safetensors: not floating-point numbers.*quantised.*{WORDS} \(I8\)")


# --- a config that does not fit ---


def test_wrong_shapes_are_all_named(folder):
    set_config(folder, vocab_size=90, intermediate_size=44)
    error = refusal(folder)
    assert f"{WORDS} has shape [97, 32] in the file and [90, 32] by the config" in str(error)
    assert "intermediate.dense.weight has shape [48, 32] in the file and [44, 32]" in str(error)
    assert re.search(r"and 4 more$", str(error))
    assert "different models" in error.hint


@pytest.mark.parametrize(
    ("layers", "pattern"), [(3, "needs bert.encoder"), (1, "not part of this config")]
)
def test_other_numbers_of_layers(folder, layers, pattern):
    set_config(folder, num_hidden_layers=layers)
    refused(folder, pattern, "different models")


def test_missing_and_wrong_are_said_together(folder):
    set_config(folder, vocab_size=90)
    rewrite(folder, lambda weights: {n: t for n, t in weights.items() if "LayerNorm" not in n})
    refused(folder, r"needs bert\.embeddings\.LayerNorm\.weight, .* and 7 more; .*; bert\..*\[90, ")


def test_other_numbers_of_labels(folder):
    set_config(folder, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    refused(folder, r"classifier\.weight has shape \[3, 32\].*\[2, 32\]", "different models")


def test_weights_that_the_config_does_not_speak_of(folder):
    distances = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    rewrite(folder, lambda weights: {**weights, distances: torch.ones(47, 8)})
    refused(folder, f"not part of this config: {distances}", "different models")


def test_weights_of_something_else(folder):
    save_file({"conv.weight": torch.ones(3)}, folder / "model.safetensors")
    refused(
        folder, r"BertForSequenceClassification needs bert\..* and \d+ more; available heads: none"
    )


def test_one_tensor_under_two_names(folder):
    rewrite(folder, lambda weights: {**weights, f"module.{WORDS}": weights[WORDS] + 1})
    error = str(refusal(folder))
    assert (
        WORDS in error
        and f"module.{WORDS}" in error
        and "are the same tensor of the model" in error
    )


# --- shards ---


@pytest.fixture
def sharded(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(weights)}
    for shard in set(places.values()):
        save_file({n: t for n, t in weights.items() if places[n] == shard}, folder / shard)
    write_index(folder, places)
    return folder


def write_index(folder, places):
    text = places if isinstance(places, str) else json.dumps({"weight_map": places})
    (folder / "model.safetensors.index.json").write_text(text)


def test_a_missing_shard(sharded):
    load(sharded)
    (sharded / "model-00002-of-00002.safetensors").unlink()
    refused(sharded, r"model-00002-of-00002\.safetensors: file not found")


def test_a_broken_shard(sharded):
    path = sharded / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(sharded, r"model-00001-of-00002\.safetensors: \w", "again")


def test_an_index_that_names_what_is_not_there(sharded):
    places = json_in(sharded / "model.safetensors.index.json")["weight_map"]
    write_index(sharded, {**places, "bert.more": "model-00001-of-00002.safetensors"})
    refused(sharded, r"index\.json: bert\.more is not in model-00001-of-00002\.safetensors")


@pytest.mark.parametrize(
    ("index", "pattern"),
    [
        ("{", "not valid JSON"),
        ("[]", r"expected a JSON object, found \[\]"),
        ('{"weight_map": 3}', "weight_map: expected an object, found 3"),
        (
            '{"weight_map": {"a": 3}}',
            "weight_map.a: expected the name .*, found 3",
        ),
        ('{"weight_map": {}}', "weight_map: expected .*, found {}"),
        (
            {"a": "../../secret.safetensors"},
            "weight_map.a: expected the name of a",
        ),
        ({"a": "/etc/passwd"}, "weight_map.a: expected the name of a"),
        ({"a": ""}, "weight_map.a: expected the name of a"),
        ({"a": "a\0.safetensors"}, "weight_map.a: expected the name of a"),
        ({"a": "\ud800.safetensors"}, "weight_map.a: expected the name of a"),
        ({"\ud800": "a.safetensors"}, "weight_map: expected tensor names as keys"),
        (
            {"a": "model.safetensors.index.json"},
            "weight_map.a: expected the name of a",
        ),
    ],
)
def test_bad_indexes(sharded, index, pattern):
    write_index(sharded, index)
    refused(sharded, rf"model\.safetensors\.index\.json: .*{pattern}")


# --- pickles ---


class Attack:
    """Makes a file when it is unpickled without care."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return open, (self.canary, "w")


def zipped(attack, path):
    torch.save({WORDS: attack}, path)


def plain(attack, path):
    torch.save({WORDS: attack}, path, _use_new_zipfile_serialization=False)


def bare(attack, path):
    path.write_bytes(pickle.dumps(attack, protocol=2))


def bare_and_new(attack, path):
    """In a protocol that torch does not write, and reads in part."""
    path.write_bytes(pickle.dumps(attack, protocol=5))


def tar(attack, path):
    """The format of torch before 0.1.10."""
    content = pickle.dumps(attack)
    with tarfile.open(path, "w") as file:
        for name in ("sys_info", "pickle", "tensors", "storages"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


def script(attack, path):
    """A TorchScript archive is told by constants.pkl."""
    with zipfile.ZipFile(path, "w") as file:
        for name in ("model/data.pkl", "model/constants.pkl", "model/version"):
            file.writestr(name, pickle.dumps(attack))


def inside_a_tensor(attack, path):
    """Hidden beside tensors that are what they should be."""
    state = {"state_dict": {WORDS: torch.ones(97, 32)}, "optimizer": [{"lr": attack}]}
    torch.save(state, path)


ATTACKS = [zipped, plain, bare, bare_and_new, tar, script, inside_a_tensor]


@pytest.mark.parametrize("form", ATTACKS)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "shard"])
def test_a_pickle_that_runs_code_is_not_run(folder, tmp_path, form, name):
    (folder / "model.safetensors").unlink()
    if name == "shard":
        name = "pytorch_model-00001-of-00001.bin"
        index = json.dumps({"weight_map": {WORDS: name}})
        (folder / "pytorch_model.bin.index.json").write_text(index)
    canary = tmp_path / "canary"
    form(Attack(canary), folder / name)
    error = refusal(folder)
    assert not canary.exists()
    assert f"{name}: " in str(error)
    assert re.search(r"refused, .*nothing was run|not a whole file", str(error)), str(error)
    if form in (zipped, plain, bare, inside_a_tensor):
        assert "asks to run io.open: refused" in str(error)
        assert "weights_only=False" in error.hint
    call, arguments = Attack(canary).__reduce__()
    call(*arguments).close()
    assert canary.exists()  # the attack works where it is let


def test_a_whole_module_is_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save(torch.nn.Linear(2, 2), folder / "pytorch_model.bin")
    refused(folder, r"pytorch_model\.bin: asks to run torch\.nn\.modules\.linear\.Linear: refused")


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ([1, 2], "expected tensors by name"),
        ({1: torch.ones(1)}, "expected tensors by name"),
        ({"state_dict": {"a": 3}}, "a is a int, not a plain tensor"),
        ({"a": torch.eye(2).to_sparse()}, "a is a _rebuild_sparse_tensor, not a plain tensor"),
        ({}, "needs bert"),
    ],
)
def test_pickles_of_something_else(folder, content, pattern):
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    refused(folder, pattern)


# --- saving ---


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    config = tiny(num_labels=3)
    with pytest.raises(OutputError, match=r"file.*cannot be written: .*irectory"):
        save(BertForSequenceClassification(config), config, tmp_path / "file" / "model")
