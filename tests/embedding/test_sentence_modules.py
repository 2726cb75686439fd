"""The modules of sentence-transformers folders give the vectors that they give there."""

import json
import shutil

import numpy as np
import pytest
import torch
from front import (
    bad,
    call,
    good,
    json_in,
    put_json,
)
from safetensors.numpy import load_file, save_file
from sentence_folders import dense, saved, sentence_model, shaken, st
from torch import nn

import bertcli
from bertcli.models.activations import TORCH_CLASSES, array_function

pytestmark = pytest.mark.parity
TEXTS = ["a", "The quick brown fox jumps over the lazy dog.", "", "héllo wörld", "fox " * 70, "a b"]
GELU, TANH, RELU = nn.GELU(), nn.Tanh(), nn.ReLU()


def pooling(*modes, width=32, **options):
    return st.Pooling(width, modes or "mean", **options)


CHAINS = {
    "LaBSE": [pooling("cls"), dense(32, 32, TANH), st.Normalize()],
    "no bias": [pooling(), dense(32, 7, bias=False)],
    "two": [pooling(), dense(32, 20, GELU, 1), dense(20, 5, RELU, 2), st.Normalize()],
    "normalized first": [pooling(), st.Normalize(), dense(32, 6)],
    "normalized twice": [pooling(), st.Normalize(), dense(32, 6), st.Normalize()],
    "norm": [pooling("max"), shaken(st.LayerNorm(32), 3)],
    "norm behind": [pooling("mean", "max"), dense(64, 9, TANH), shaken(st.LayerNorm(9), 3)],
    "residual": [pooling(), dense(32, 32, GELU, use_residual=True)],
    "other residual": [pooling(), dense(32, 8, GELU, use_residual=True), st.Dropout(0.5)],
    "all": [
        pooling("cls", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
        shaken(st.LayerNorm(128), 2),
        dense(128, 11, nn.SiLU(), 3),
        st.Normalize(),
    ],
}


def vectors(folder, *options, texts=TEXTS, **env):
    done = good("embed", "-q", "-m", folder, *options, "--", *texts, **env)
    return np.array([row["embedding"] for row in done.rows], np.float32)


def near(found, expected):
    scale = max(1, np.abs(expected).max())
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-5 * scale


@pytest.mark.parametrize("name", [*CHAINS])
def test_vectors_are_those_of_sentence_transformers(tmp_path, name):
    model = sentence_model(*CHAINS[name])
    found = vectors(saved(model, tmp_path / "m"))
    near(found, model.encode(TEXTS, batch_size=1))
    near(vectors(tmp_path / "m", "--window", 1), found)


def test_the_other_engine_and_other_batches(tmp_path):
    model = sentence_model(*CHAINS["all"])
    folder = saved(model, tmp_path / "m")
    env = {"BERTCLI_BACKEND": "openvino"}
    found = vectors(folder, **env)
    near(found, model.encode(TEXTS, batch_size=1))
    assert np.array_equal(
        vectors(folder, "--batch-tokens", 64, texts=TEXTS[::-1], **env), found[::-1]
    )


@pytest.mark.parametrize("name", sorted(TORCH_CLASSES))
def test_activations_are_those_of_torch(name):
    kind = getattr(nn, name)().eval()
    x = torch.cat([torch.linspace(-200, 200, 999), torch.linspace(-5, 5, 999), torch.zeros(2)])
    given = x.float().reshape(4, -1)
    function = array_function(name)
    found = function(given.numpy())
    np.testing.assert_allclose(found, kind(given).numpy(), 2e-6, 2e-6)
    assert np.array_equal(function(given.numpy()[1:2, :3]), found[1:2, :3])


@pytest.mark.parametrize(
    ("dim", "last"), [(8, st.Normalize()), (8, dense(32, 20)), (64, st.Normalize())]
)
def test_a_folder_truncates_what_its_modules_made(tmp_path, dim, last):
    model = sentence_model(pooling(), last, truncate_dim=dim)
    folder = saved(model, tmp_path)
    near(vectors(folder), model.encode(TEXTS, batch_size=1))
    near(
        vectors(folder, "--normalize"), model.encode(TEXTS, batch_size=1, normalize_embeddings=True)
    )
    embedder = bertcli.Embedder.load(folder)
    near(embedder.encode(TEXTS), model.encode(TEXTS, batch_size=1))
    if isinstance(last, st.Normalize):
        near(np.linalg.norm(embedder.encode(TEXTS, dim=4), axis=1), np.ones(len(TEXTS)))
    with pytest.raises(bertcli.errors.UsageError, match="dim=40 is not possible"):
        embedder.encode(TEXTS, dim=40)


def test_other_poolings_take_the_encoder_alone(tmp_path):
    folder = saved(sentence_model(*CHAINS["all"]), tmp_path)
    plain = sentence_model(pooling("cls"), st.Normalize())
    near(vectors(folder, "--pooling", "cls"), plain.encode(TEXTS, batch_size=1))
    (row,) = good("embed", "-q", "-m", folder, "a b", "--token-vectors").rows
    assert len(row["vectors"][0]) == 32


def test_old_folders(tmp_path):
    """A part called 0_BERT, a limit in the file of another class, weights as pickles."""
    model = sentence_model(*CHAINS["two"])
    folder = saved(model, tmp_path / "m", safe_serialization=False)
    inner = folder / "0_BERT"
    inner.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            path.rename(inner / path.name)
    limits = inner / "sentence_bert_config.json"
    limits.rename(inner / "sentence_xlm-roberta_config.json")
    (inner / "sentence_xlm-roberta_config.json").write_text('{"max_seq_length": 12}')
    modules = json_in(folder / "modules.json")
    for at, module in enumerate(modules):
        module["type"] = "sentence_transformers.models." + module["type"].rpartition(".")[2]
        module["path"] = module["path"] if at else "0_BERT"
    put_json(folder / "modules.json", modules)
    assert (folder / "2_Dense" / "pytorch_model.bin").is_file()
    model.max_seq_length = 12
    near(vectors(folder), model.encode(TEXTS, batch_size=1))


def test_python_and_search_use_the_modules(tmp_path):
    model = sentence_model(*CHAINS["two"])
    folder = saved(model, tmp_path / "m")
    embedder = bertcli.Embedder.load(folder, backend="torch")
    expected = vectors(folder)
    assert np.array_equal(embedder.encode(TEXTS), expected)
    assert np.array_equal(
        embedder.encode(TEXTS, pooling="mean"), vectors(folder, "--pooling", "mean")
    )
    corpus, stored = tmp_path / "texts.txt", tmp_path / "v.npy"
    corpus.write_text("a\nfox\nThe quick brown fox\n")
    given = ("similar", "-q", "-m", folder, "--corpus", corpus, "--vectors", stored, "-k", 1)
    for _ in range(2):  # computed, then read
        (row,) = good(*given, "fox").rows
        assert (row["hits"][0]["row"], round(row["hits"][0]["score"], 5)) == (1, 1)
    layer = folder / "2_Dense" / "model.safetensors"
    save_file({name: -value for name, value in load_file(layer).items()}, layer)
    assert "was made by another model" in bad(*given, "fox").error


def test_inspect_shows_the_modules(tmp_path):
    folder = saved(sentence_model(*CHAINS["all"]), tmp_path)
    said = json.loads(good("inspect", folder, "--json").out)["sentence"]
    assert [one["kind"] for one in said["of_texts"]] == ["LayerNorm", "Dense"]
    assert "LayerNorm, Dense" in " ".join(good("inspect", folder).out.split())


def test_what_is_said_of_the_modules(tmp_path):
    folder = saved(sentence_model(pooling(), shaken(st.LayerNorm(32))), tmp_path / "m")
    said = call("embed", "-v", "-m", folder, "a").err
    assert "pooling: mean (1_Pooling/config.json)\n" in said
    assert "sha256" not in said
    shutil.rmtree(folder)
    folder = saved(sentence_model(pooling("cls"), shaken(st.LayerNorm(31))), tmp_path / "m")
    assert "LayerNorm takes vectors of 31 dim" in bad("embed", "-m", folder, "a").error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear.weight": None}, "linear.weight is missing"),
        ({"linear.bias": np.zeros(3, np.float32)}, r"linear.bias has the unexpected shape \[3\]"),
        (
            {
                "linear.weight": np.zeros((7, 31), np.float32),
                "linear.bias": np.zeros(7, np.float32),
            },
            "Dense takes vectors of 31 dimensions, and those before it have 32",
        ),
    ],
)
def test_weights_that_do_not_fit(tmp_path, change, message):
    import re

    folder = saved(sentence_model(pooling(), dense(32, 7)), tmp_path)
    layer = folder / "2_Dense" / "model.safetensors"
    tensors = {**load_file(layer), **change}
    save_file({name: value for name, value in tensors.items() if value is not None}, layer)
    assert re.search(message, bad("embed", "-m", folder, "a").error)


def test_layers_that_are_concatenated_do_not_fit(tmp_path):
    folder = saved(sentence_model(pooling(), dense(32, 7)), tmp_path / "m")
    options = ("--layers", "0,1", "--layer-combine", "concat")
    assert "Dense takes" in bad("embed", "-q", "-m", folder, "a", *options).error
