"""Folders of transformers here, folders of ours there, and files of every age."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from front import json_in
from model_reference import close, randomise, rewrite, texts, theirs, tiny
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from bertcli.errors import ModelError, OutputError
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.load import load, save
from bertcli.model_folder.weights import report_on
from bertcli.models.bert import BertModel
from bertcli.models.heads import BertForMaskedLM, BertForPreTraining
from bertcli.models.surgery import prune_heads

logging.disable_progress_bar()
pytestmark = pytest.mark.parity


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model"


def make(folder, name="BertForPreTraining", **changes):
    reference = theirs(name, **changes)
    reference.save_pretrained(folder)
    return reference


def same(model, reference):
    """Every tensor of ours is theirs, to the bit, under the same name."""
    ours, wanted = model.state_dict(), reference.state_dict()
    wanted = {name: one for name, one in wanted.items() if name in ours or "pooler" not in name}
    assert sorted(ours) == sorted(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(ours[name], tensor), name


def strictly(name, folder):
    """Load a folder with transformers, which would pass over what it does not find."""
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


# --- both directions ---


def test_saved_files_are_what_transformers_expects(folder):
    model = randomise(BertForMaskedLM(tiny(other={"torch_dtype": "float64", "mine": [1]})))
    save(model, model.config, folder)
    config = json_in(folder / "config.json")
    assert config["architectures"] == ["BertForMaskedLM"] and config["model_type"] == "bert"
    assert config["dtype"] == "float32" and "torch_dtype" not in config
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "config.json").stat().st_mode == (folder / "model.safetensors").stat().st_mode
    header = (folder / "model.safetensors").read_bytes()[8:200]
    assert b'"__metadata__":{"format":"pt"}' in header


def test_a_folder_is_saved_over_itself(folder):
    """The weights are mapped from the very file that is replaced."""
    reference = make(folder)
    model, _ = load(folder)
    save(model, model.config, folder)
    same(model, reference)
    same(load(folder)[0], reference)


def test_an_interrupted_save_leaves_nothing_that_loads(folder, monkeypatch):
    make(folder, "BertModel")
    model, _ = load(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertcli.io.publish.os.replace", full)
    with pytest.raises(OutputError, match=r"model: cannot be written: No space left"):
        save(model, model.config, folder)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(folder)


@torch.no_grad()
def test_pruned_heads_are_kept(folder):
    model = randomise(BertForMaskedLM(tiny())).eval()
    prune_heads(model.bert, {0: [1], 2: [0, 2, 3]})
    save(model, model.config, folder)
    again, _ = load(folder)
    assert again.config.pruned_heads == {0: (1,), 2: (0, 2, 3)}
    close(again(*texts()).logits, model(*texts()).logits, 0)


@pytest.mark.parametrize("scheme", ["relative_key", "relative_key_query", "sinusoidal"])
def test_our_own_variants_are_kept(folder, scheme):
    model = randomise(
        BertModel(tiny(position_embedding_type=scheme, extra_embeddings={"mood": 3}), pooler=False)
    )
    save(model, model.config, folder)
    again, report = load(folder)
    assert again.pooler is None and report.heads == ()
    same(again, model)


# --- shards, pickles, precision ---


def shards(folder, name="BertForPreTraining"):
    reference = theirs(name)
    reference.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 3
    return reference


def as_bins(folder):
    """Turn safetensors files and their index into the pickles of older transformers."""
    for path in sorted(folder.glob("*.safetensors")):
        name = path.name.replace("model", "pytorch_model", 1).replace(".safetensors", ".bin")
        torch.save(load_file(path), folder / name)
        path.unlink()
    index = folder / "model.safetensors.index.json"
    if index.exists():
        text = index.read_text().replace('"model-', '"pytorch_model-')
        text = text.replace(".safetensors", ".bin")
        (folder / "pytorch_model.bin.index.json").write_text(text)
        index.unlink()


@pytest.mark.parametrize("pickled", [False, True])
def test_shards(folder, pickled):
    reference = shards(folder)
    files = len(list(folder.glob("model-*")))
    if pickled:
        as_bins(folder)
    model, report = load(folder)
    same(model, reference)
    assert len(report.files) == files
    save(model, model.config, folder.with_name("whole"))
    same(model, strictly("BertForPreTraining", folder.with_name("whole")))


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_new_and_old(folder, zipped):
    """Before torch 1.6 a pickle was no zip file, as that of bert-base-uncased still is not."""
    reference = make(folder)
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(reference.state_dict(), path, _use_new_zipfile_serialization=zipped)
    model, report = load(folder)
    same(model, reference)
    assert report.files == (path,)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_pickles_of_training_loops(folder, key):
    reference = make(folder)
    (folder / "model.safetensors").unlink()
    wrapped = {f"module.{name}": tensor for name, tensor in reference.state_dict().items()}
    torch.save({key: wrapped, "epoch": 3, "optimizer": {}}, folder / "pytorch_model.bin")
    same(load(folder)[0], reference)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(folder, dtype, tmp_path):
    reference = theirs().to(dtype)
    reference.save_pretrained(folder)
    model, report = load(folder)
    assert report.dtype == str(dtype).removeprefix("torch.")
    same(model, reference)
    save(model, model.config, tmp_path / "again")
    assert strictly("BertModel", tmp_path / "again").dtype == dtype
    whole, report = load(folder, dtype=torch.float32)
    assert report.dtype == "float32"
    same(whole, reference.float())


def test_mixed_precision_becomes_the_widest(folder):
    make(folder)
    rewrite(folder, lambda w: {n: t if "LayerNorm" in n else t.half() for n, t in w.items()})
    model, report = load(folder)
    assert report.dtype == "float32" and {p.dtype for p in model.parameters()} == {torch.float32}


# --- old names ---

OLD = {
    "gamma and beta": lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    ),
    "DataParallel": "module.{}".format,
    "a training loop": "model.{}".format,
    "both and a compiler": "module.model._orig_mod.{}".format,
    "W of the paper": lambda n: (
        n.replace("self.query", "self.Wq").replace("self.key", "self.Wk").replace("f.value", "f.Wv")
    ),
    "W without a module of its own": lambda n: (
        n.replace("self.query", "Wq").replace("self.key", "Wk").replace("self.value", "Wv")
    ),
    "NVIDIA": lambda n: (
        n.replace("intermediate.dense", "intermediate.dense_act")
        .replace("pooler.dense", "pooler.dense_act")
        .replace("transform.dense", "transform.dense_act")
    ),
}


@pytest.mark.parametrize("age", OLD)
@pytest.mark.parametrize("name", ["BertForPreTraining", "BertModel"])
def test_old_names(folder, age, name):
    reference = make(folder, name)
    rewrite(folder, lambda weights: {OLD[age](name): one for name, one in weights.items()})
    model, report = load(folder)
    same(model, reference)
    assert not report.faults()


@pytest.mark.parametrize("base", ["bert.", ""])
@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertModel"])
def test_the_prefix_of_a_head_is_there_or_not(folder, base, name):
    reference = make(folder, name)
    bare = {"embeddings", "encoder", "pooler"}

    def rename(name):
        name = name.removeprefix("bert.")
        return base + name if name.split(".")[0] in bare else name

    rewrite(folder, lambda weights: {rename(name): one for name, one in weights.items()})
    same(load(folder)[0], reference)


def test_buffers_of_old_versions_are_ignored_and_named(folder):
    reference = make(folder)
    buffers = {
        "bert.embeddings.position_ids": torch.arange(24)[None],
        "bert.embeddings.token_type_ids": torch.zeros(1, 24, dtype=torch.long),
    }
    rewrite(folder, lambda weights: {**weights, **buffers})
    model, report = load(folder)
    same(model, reference)
    assert not report.misplaced


# --- ties ---


def is_tied(model):
    words = model.bert.embeddings.word_embeddings.weight
    decoder = model.cls.predictions.decoder
    return decoder.weight is words and decoder.bias is model.cls.predictions.bias


@pytest.mark.parametrize("held", ["both", "neither", "the decoder's"])
def test_tied_weights_are_one_parameter(folder, held):
    reference = make(folder)
    first = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
    second = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")

    def change(weights):
        if held != "neither":
            weights |= {b: weights[a].clone() for a, b in zip(first, second, strict=True)}
        return {n: t for n, t in weights.items() if held != "the decoder's" or n not in first}

    rewrite(folder, change)
    model, _ = load(folder)
    same(model, reference)
    assert is_tied(model)
    words = sum(n.endswith("word_embeddings.weight") for n, _ in model.named_parameters())
    assert words == 1


@torch.no_grad()
def test_weights_that_only_the_config_ties_stay_apart_as_in_transformers(folder, tmp_path):
    """One config, two matrices: the file is right."""
    make(folder, "BertForMaskedLM")
    own = torch.randn(97, 32, generator=torch.Generator().manual_seed(3))
    rewrite(folder, lambda weights: {**weights, "cls.predictions.decoder.weight": own})
    model, _ = load(folder)
    assert not model.config.tie_word_embeddings
    assert torch.equal(model.cls.predictions.decoder.weight, own)
    reference = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    ids, keep, types = texts()
    wanted = reference(ids, attention_mask=keep, token_type_ids=types).logits
    close(model(ids, keep, types).logits, wanted)
    save(model, model.config, tmp_path / "apart")
    close(load(tmp_path / "apart")[0](ids, keep, types).logits, wanted)


# --- which class, which heads ---


def test_a_model_without_its_heads(folder):
    reference = make(folder)
    model, report = load(folder, BertModel)
    same(model, reference.bert)
    assert report.heads == ("pooler", "masked language model", "next sentence")
    assert report.unused == ("masked language model", "next sentence")
    model, report = load(folder, BertForMaskedLM)
    assert is_tied(model) and report.unused == ("pooler", "next sentence")


@pytest.mark.parametrize(("name", "there"), [("BertModel", True), ("BertForMaskedLM", False)])
def test_a_pooler_only_where_it_was_trained(folder, name, there):
    make(folder, name)
    model, _ = load(folder, BertModel)
    assert (model.pooler is None) != there
    without, report = load(folder, BertModel, pooler=False)
    assert without.pooler is None and ("pooler" in report.unused) == there
    if not there:
        needs = r"model\.safetensors: BertModel needs pooler\.dense\.weight, pooler\.dense\.bias; "
        with pytest.raises(ModelError, match=needs):
            load(folder, BertModel, pooler=True)


def test_a_missing_head_is_not_random(folder):
    make(folder, "BertModel")
    with pytest.raises(ModelError) as caught:
        load(folder, BertForPreTraining)
    message = str(caught.value)
    assert "model.safetensors: BertForPreTraining needs cls.predictions." in message
    assert message.endswith("available heads: pooler")
    assert caught.value.hint == "choose a checkpoint with that head"
    report = report_on(ModelFolder(folder), "BertForPreTraining")
    assert "cls.seq_relationship.weight" in report.missing and report.faults()


# --- the real thing ---


MEASURE = """
import sys, torch
from pathlib import Path
from bertcli.model_folder.load import load

def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = memory()
model, report = load(Path(sys.argv[1]))
opened = memory() - before
assert all(float(weight.sum()) == weight.numel() for weight in model.parameters())
assert "sympy" not in sys.modules, "torch's decompositions cost two seconds and 70 MB"
print(opened, memory() - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of 200 MB, all ones."""
    folder = tmp_path_factory.mktemp("large")
    config = tiny(hidden_size=512, vocab_size=65536, intermediate_size=2048, num_hidden_layers=5)
    (folder / "config.json").write_text(config.to_json())
    with torch.device("meta"):
        model = BertModel(replace(config, num_hidden_layers=0))
        layer = BertModel(replace(config, num_hidden_layers=1)).encoder.layer[0]
    shapes = {name: one.shape for name, one in model.state_dict().items()}
    for index in range(5):
        for name, one in layer.state_dict().items():
            shapes[f"encoder.layer.{index}.{name}"] = one.shape
    save_file({n: torch.ones(shape) for n, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts memory here")
@pytest.mark.parametrize("pickled", [False, True])
def test_memory_is_that_of_the_weights(large, pickled):
    if pickled:
        as_bins(large)
    weights = sum(path.stat().st_size for path in large.glob("*model*"))
    assert weights > 190e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(large)], capture_output=True, text=True, check=True
    )
    opened, used = map(int, done.stdout.split())
    assert opened < 0.1 * weights  # mapped, not read
    assert 0.9 * weights < used < 1.2 * weights
