"""A process begins with the model that its command ran last; where it was another, all is well."""

import json
import os
import sys
from importlib.util import find_spec
from subprocess import run

import pytest
from front import PACKAGE, call, environment, good, process

from bertcli.inference import compiled, early_start
from bertcli.inference.cache_folder import STARTS
from bertcli.inference.early_start import begin, deciding

TINY = PACKAGE / "samples" / "tiny-bert"
EMBED = ("embed", "-q", "-m", TINY, "I love NLP!", "--backend", "openvino")
FIRST = (*EMBED, "--pooling", "cls")

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that knows two commands."""
    folder = tmp_path_factory.mktemp("cache")
    for argv in (EMBED, FIRST):
        assert process(*argv, env={"BERTCLI_CACHE": str(folder)}).code == 0
    assert len(json.loads((folder / STARTS).read_text())) == 2
    return folder


def test_what_is_prepared_is_what_its_command_begins_with(tmp_path, monkeypatch):
    env = {"BERTCLI_CACHE": str(tmp_path), "BERTCLI_BACKEND": "auto"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    for given in ([], ["--pooling", "cls", "--layers=-2"]):
        assert call("models", "-q", "prepare", TINY, *given, **env).code == 0
        argv = ["embed", "-q", "I love NLP!", "-m", str(TINY), *reversed(given[2:]), *given[:2]]
        begin(argv)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "cached", None)  # would be a TypeError: it is read already
            good(*argv, **env)


@pytest.fixture
def expected(cache):
    return good(*EMBED, BERTCLI_CACHE=str(cache)).stdout


def test_a_process_begins_with_the_model_that_the_command_ran_last(cache, expected, monkeypatch):
    monkeypatch.setenv("BERTCLI_CACHE", str(cache))
    monkeypatch.setattr(compiled, "cached", None)  # would be a TypeError: it is read already
    begin([*map(str, EMBED), "-f", "jsonl"])
    assert good(*EMBED).stdout == expected
    with pytest.raises(TypeError):
        good(*EMBED)  # another model of the same process is no guess


def test_a_wrong_guess_is_not_used_and_is_the_last_one(cache, expected):
    known = json.loads((cache / STARTS).read_text())
    said, other = (deciding([*map(str, argv)]) for argv in (EMBED, FIRST))
    (cache / STARTS).write_text(json.dumps({**known, said: known[other]}))
    env = {"BERTCLI_CACHE": str(cache)}
    done = process(*EMBED, env=env)
    assert (done.code, done.stdout, done.err) == (0, expected, "")
    assert json.loads((cache / STARTS).read_text()) == known


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[1]",
        {"key": 1, "settings": {}},
        {"key": "../../nowhere", "settings": {}},
        {"key": "0" * 32, "settings": {}},
        {"key": "KEY", "settings": {"INFERENCE_NUM_THREADS": [1]}},
        {"key": "KEY", "settings": {"no such setting": "x"}},
        {"key": "KEY", "settings": {"\ud800": "x"}},
        "a folder",
    ],
    ids=lambda content: str(content)[:60],
)
def test_whatever_is_remembered_the_result_is_right(cache, expected, content):
    file, said = cache / STARTS, deciding([*map(str, EMBED)])
    kept = file.read_bytes()
    if content == "a folder":
        file.unlink()
        file.mkdir()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        key = json.loads(kept)[said]["key"]
        start = {**content, "key": key if content["key"] == "KEY" else content["key"]}
        file.write_text(json.dumps({said: start}))
    done = process(*EMBED, env={"BERTCLI_CACHE": str(cache)})
    if file.is_dir():
        file.rmdir()
    file.write_bytes(kept)
    assert (done.code, done.stdout, done.err) == (0, expected, "")


def test_a_command_that_fails_or_is_explained_does_so_as_ever(cache, monkeypatch):
    wrong = (*EMBED[:-1], "nothing")
    assert process(*wrong, env={"BERTCLI_CACHE": str(cache)}).err == call(*wrong).err
    monkeypatch.setenv("BERTCLI_CACHE", str(cache))
    monkeypatch.setattr(early_start, "_reading", None)  # would be a TypeError
    begin([*map(str, EMBED), "--help"])


@pytest.mark.skipif(os.name != "posix", reason="Windows removes no folder that is worked in")
def test_a_working_folder_that_is_gone_is_told_as_ever(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    begin(["embed", "-m", "."])
    assert call("embed", "a", "-m", ".").error == "the working folder no longer exists"


def test_only_what_decides_the_model_is_compared(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    same = [
        ["embed", "a", "-m", "model"],
        ["embed", "-mmodel", "-o", "x.npy"],
        ["embed", "--model", f"{tmp_path}/model", "b"],
        ["embed", "-q", "--model=model"],
    ]
    assert len({deciding(argv) for argv in same}) == 1
    others = [["similar", "-m", "model"], ["embed"], [*same[0], "--dtype", "int8"]]
    assert len({deciding(argv) for argv in [same[0], *others]}) == 4
    flags = [["embed", "--token-vectors", text, "-m", "model"] for text in "ab"]
    assert deciding(flags[0]) == deciding(flags[1]) != deciding(same[0])


def test_the_environment_decides_what_no_option_does(monkeypatch):
    alone = deciding(["embed", "a"])
    for name, value in (("model", "x"), ("backend", "torch"), ("device", "cpu"), ("threads", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(f"BERTCLI_{name.upper()}", value)
            assert deciding(["embed", "a"]) == deciding(["embed", f"--{name}={value}"]) != alone
            assert deciding(["embed", f"--{name}", "b"]) == f"embed --{name}=b"


def test_python_ends_as_ever_while_a_model_is_read(cache):
    argv = [*map(str, EMBED)]
    code = f"from bertcli.inference import early_start; early_start.begin({argv}); "
    code += "assert early_start._start.reading; raise SystemExit(3)"
    env = environment({"BERTCLI_CACHE": str(cache)})
    done = run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
