"""What a sentence-transformers folder says is read as sentence-transformers reads it."""

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest
from front import (
    bad,
    call,
    json_in,
)

from bertcli.embedding.options import (
    LEGACY_POOLING_KEYS,
    POOLING_NAMES,
    SentenceSettings,
    read_sentence_settings,
)
from bertcli.errors import ModelError, UsageError
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

SAMPLE = Path(__file__).parents[2] / "samples" / "tiny-bert"
OLD, NEW = "sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules."
CHAIN = ("Transformer", "Pooling", "Normalize")


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def read(place, **options):
    return read_sentence_settings(ModelFolder.open(place), **options)


def folder(tmp_path, kinds=CHAIN, pooling=None, prefix=OLD, **files) -> Path:
    """A folder of these modules; ``files`` are further ones, by name without .json."""
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}" if at else "", "type": prefix + kind}
        for at, kind in enumerate(kinds)
    ]
    write(tmp_path / "modules.json", modules)
    for at, kind in enumerate(kinds):
        if kind == "Pooling":
            write(tmp_path / f"{at}_Pooling" / "config.json", pooling or {})
    for name, content in files.items():
        write(tmp_path / f"{name}.json", content)
    return tmp_path


def test_the_default_model():
    said = read(find_model(DEFAULT_MODEL, files=MODEL_FILES))
    assert said == SentenceSettings(
        modules=("Transformer", "Pooling", "Normalize"),
        pooling=("mean",),
        max_length=256,
        normalize=True,
        found_in="1_Pooling/config.json",
    )


def test_several_booleans_come_in_a_fixed_order(tmp_path):
    raw = dict.fromkeys(reversed(LEGACY_POOLING_KEYS), True)
    assert read(folder(tmp_path, pooling=raw)).pooling == tuple(POOLING_NAMES.values())


@pytest.mark.parametrize(
    ("named", "modes"),
    [("lasttoken", ("lasttoken",)), (["mean_sqrt_len_tokens", "cls"], ("mean_sqrt_len", "cls"))],
)
def test_named_modes_go_before_booleans(tmp_path, named, modes):
    raw = {"pooling_mode": named, "pooling_mode_max_tokens": True, "include_prompt": False}
    said = read(folder(tmp_path, pooling=raw))
    assert (said.pooling, said.include_prompt) == (modes, False)


def test_the_last_pooling_decides(tmp_path):
    place = folder(tmp_path, ("Transformer", "Pooling", "Pooling"), {"pooling_mode": "max"})
    write(place / "2_Pooling" / "config.json", {"pooling_mode": "cls"})
    assert read(place).pooling == ("cls",)
    assert read(place).found_in == "2_Pooling/config.json"


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "xlm-roberta", "xlnet"])
def test_limit_and_case_from_any_name_of_the_file(tmp_path, name):
    raw = {"max_seq_length": 77, "do_lower_case": True}
    said = read(folder(tmp_path, **{f"sentence_{name}_config": raw}))
    assert (said.max_length, said.lower_case) == (77, True)


def test_a_transformer_in_a_folder_of_its_own(tmp_path):
    place = folder(tmp_path)
    modules = json_in(place / "modules.json")
    modules[0]["path"] = "0_Transformer"
    write(place / "modules.json", modules)
    write(place / "0_Transformer" / "sentence_bert_config.json", {"max_seq_length": 99})
    said = read(place)
    assert (said.transformer, said.max_length) == ("0_Transformer", 99)


def test_prompts(tmp_path):
    raw = {"prompts": {"query": "q: ", "document": None}, "default_prompt_name": "query"}
    said = read(
        folder(
            tmp_path,
            config_sentence_transformers={**raw, "similarity_fn_name": "dot", "truncate_dim": 64},
        )
    )
    assert (said.similarity, said.dim) == ("dot", 64)
    assert said.prompt() == said.prompt(name="query") == "q: "
    assert said.prompt(name="document") == said.prompt("") == ""
    assert said.prompt("own ") == "own "
    with pytest.raises(UsageError, match="no prompt 'passage'") as caught:
        said.prompt(name="passage")
    assert caught.value.hint == "its prompts: query, document"
    with pytest.raises(UsageError, match="cannot be combined"):
        said.prompt("own ", "query")
    assert SentenceSettings().prompt() == ""


@pytest.mark.parametrize(
    ("kinds", "prefix", "named"),
    [
        (("Transformer", "CNN", "LSTM", "Pooling"), OLD, "CNN, LSTM"),
        (("WordEmbeddings", "WordWeights", "Pooling"), OLD, "WordEmbeddings, WordWeights"),
        (("Transformer", "Pooling", "WeightedLayerPooling"), NEW, "WeightedLayerPooling"),
        (("Transformer", "LayerNorm", "Pooling"), NEW, "LayerNorm before Pooling"),
        (("Router", "Pooling"), NEW, "Router"),
        (("Transformer", "Pooling"), "custom_st.", "custom_st.Transformer, custom_st.Pooling"),
    ],
)
def test_modules_that_bertcli_does_not_have(tmp_path, kinds, prefix, named):
    place = folder(tmp_path, kinds, prefix=prefix)
    with pytest.raises(ModelError, match=rf"modules\.json: .* module {named}$") as caught:
        read(place)
    assert "give pooling (mean" in caught.value.hint
    read(place, pooling="mean")


def test_no_pooling(tmp_path):
    place = folder(tmp_path, ("Transformer", "Normalize"))
    with pytest.raises(ModelError, match=r"modules\.json: has no Pooling module"):
        read(place)
    said = read(place, pooling="cls")
    assert (said.pooling, said.normalize) == (None, True)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{", "modules.json: not valid JSON"),
        ("modules.json", {"a": 1}, "expected a list of objects, found {"),
        ("modules.json", [{"type": "x"}], "0.path: expected a path .*, but it is missing"),
        ("modules.json", [{"type": "P", "path": "../x"}], r"0.path: expected .*, found \"\.\./x\""),
        ("1_Pooling/config.json", {"pooling_mode": [["a"]]}, "pooling_mode: expected one or more"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": 1}, "expected true or false, found 1"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length: .*, found 0"),
        ("config_sentence_transformers.json", {"prompts": {"q": 1}}, "expected a string, found 1"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "none of the prompts"),
    ],
)
def test_broken_files_are_named(tmp_path, file, content, message):
    write(folder(tmp_path) / file, content)
    with pytest.raises(ModelError, match=message) as caught:
        read(tmp_path)
    assert file in str(caught.value)


def test_a_missing_pooling_file(tmp_path):
    (folder(tmp_path) / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: file not found"):
        read(tmp_path)


@pytest.mark.parity
def test_what_sentence_transformers_itself_writes(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bert = modules.Transformer(str(SAMPLE))
        pooling = modules.Pooling(32, ("weightedmean", "cls"), include_prompt=False)
        prompts = {"query": "q: "}
        model = SentenceTransformer(
            modules=[bert, pooling, modules.Normalize()], prompts=prompts, truncate_dim=8
        )
        model.save(str(tmp_path / "whole"))
        model.append(modules.Dense(64, 4))
        model.save(str(tmp_path / "dense"))
    said = read(tmp_path / "whole")
    assert (said.pooling, said.include_prompt) == (("weightedmean", "cls"), False)
    assert (said.normalize, said.dim, said.similarity) == (True, 8, "cosine")
    assert said.prompts == model.prompts
    dense = read(tmp_path / "dense")
    assert dense.of_texts == (("Normalize", "2_Normalize"), ("Dense", "3_Dense"))
    assert not dense.normalize


DEEP = {"deep": '{"a":' * 100_000}


FOUND_BY_LOOKING = {  # for a regular file
    "1_Pooling/config.json": "1_Pooling/config.json",
    "config.json": "config.json or bert_config.json",
    "model.safetensors.index.json": "model.safetensors or ",
}


@pytest.fixture
def whole(tmp_path):
    """A model with every file that a folder may have, its weights in shards but for their data."""
    shutil.copytree(SAMPLE, tmp_path / "m")
    said = {"max_seq_length": 64}
    place = folder(tmp_path / "m", sentence_bert_config=said, config_sentence_transformers={})
    for name in ("special_tokens_map", "added_tokens"):
        write(place / f"{name}.json", {})
    return place


@pytest.mark.parametrize("command", ["embed", "inspect"])
@pytest.mark.parametrize("kind", [*DEEP, "pipe"])
@pytest.mark.parametrize(
    "name",
    [
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "config.json",
        "model.safetensors.index.json",
    ],
)
def test_deep_files_and_pipes_are_one_line(whole, name, kind, command):
    path = whole / name
    if name == "model.safetensors.index.json":
        (whole / "model.safetensors").unlink()
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        write(path, DEEP[kind])
    if command == "inspect":
        done = call("inspect", whole, "--json")
        said = done.rows[0]["warnings"] if done.code == 0 else [done.error]
    else:
        said = [bad("embed", "-m", whole, "a").error]
    if kind != "pipe":
        wanted = [f"{path}: not valid JSON: lists or objects are nested too deeply"]
    elif command == "embed" and name in FOUND_BY_LOOKING:
        wanted = [f"model folder '{whole}' has no {FOUND_BY_LOOKING[name]}"]
    else:
        wanted = [f"{path}: not a regular file", f"{path}: file not found; it sets"]
    assert any(one.startswith(tuple(wanted)) for one in said), said


@pytest.mark.parametrize(
    "kinds",
    [
        ("WordEmbeddings", "WordWeights", "Pooling"),
        ("BoW", "Dense"),
        ("CLIPModel",),
        ("Router", "Normalize"),
        ("Asym",),
    ],
)
@pytest.mark.parametrize("argv", [("embed", "a"), ("inspect",), ("tokenize", "a")])
def test_models_of_another_kind_are_refused_by_name(tmp_path, kinds, argv):
    place = folder(tmp_path, kinds)
    said = bad(*argv, "-m", place)
    assert said.error.endswith(
        f"modules.json: unsupported module {kinds[0]} (of {', '.join(kinds)})"
    )
    assert "begin with Transformer or StaticEmbedding" in said.hint
