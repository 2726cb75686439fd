"""Extras that are not installed: refused before any work, with the command that installs them."""

import importlib.metadata
import json
import re
import sys

import pytest
from front import bad, good

import bertcli
from bertcli.errors import BertcliError
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.versions import install_command, pip_command


@pytest.fixture
def without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("parquet", "arrow"):
        monkeypatch.delitem(sys.modules, f"bertcli.formats.{name}", raising=False)
        monkeypatch.delattr(f"bertcli.formats.{name}", raising=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["tokenize", "a", "-f", "parquet"],
        ["embed", "a", "-q", "-o", "a.parquet"],
        ["tag", "a", "-o", "a.parquet"],
        ["embed", "-i", "v.parquet"],
        ["similar", "a", "--corpus", "v.parquet"],
        ["duplicates", "v.parquet"],
        ["pretrain", "prepare", "v.parquet", "-o", "shards"],
        ["inspect", "v.parquet"],
    ],
)
def test_parquet_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch, without_pyarrow, argv):
    monkeypatch.chdir(tmp_path)
    for name in ("v.parquet", "v.txt"):
        (tmp_path / name).write_bytes(b"PAR1")
    done = bad(*argv, "--model", "absent/model") if argv[0] != "inspect" else bad(*argv)
    assert done.error.partition(": ")[0] == "Parquet needs pyarrow"
    assert done.hint == install_command("parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.parquet", "v.txt"]


@pytest.mark.parametrize(
    ("argv", "purpose"),
    [
        (["train", "absent.jsonl", "-o", "out"], "training"),
        (["pretrain", "run", "absent", "--config", "mini", "-o", "out"], "training"),
        (["inspect", "--attention", "a"], "--attention"),
        (["embed", "a", "--backend", "torch"], "running the model (--backend torch)"),
        (["embed", "a", "--device", "cuda"], "running the model (--device cuda)"),
    ],
)
def test_what_needs_torch_says_so(monkeypatch, tmp_path, argv, purpose):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    done = bad(*argv, BERTCLI_BACKEND="auto")
    assert done.error == f"{purpose} needs torch"
    assert done.hint == install_command("torch")


def test_python_says_what_needs_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("load", "BertModel", "BertForMaskedLM"):
        with pytest.raises(BertcliError, match=rf"^bertcli\.{name} needs torch$"):
            getattr(bertcli, name)
    tokenizer = bertcli.Tokenizer.load(DEFAULT_MODEL)
    with pytest.raises(BertcliError, match="return_tensors='pt' needs torch"):
        tokenizer("a", return_tensors="pt")


def test_versions_of_what_is_not_installed(monkeypatch):
    assert re.fullmatch(r"bertcli \S+, openvino \S+, torch \S+, tokenizers \S+\n", good("-V").out)
    number = importlib.metadata.version

    def without_torch(name):
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return number(name)

    monkeypatch.setattr(importlib.metadata, "version", without_torch)
    assert ", torch not installed, tokenizers " in good("-V").out


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({"url": "file:///a%20b", "dir_info": {}}, '"bertcli[ray] @ file:///a%20b"'),
        ({"url": "https://a/b.whl"}, '"bertcli[ray] @ https://a/b.whl"'),
        ({}, '"bertcli[ray]"'),
    ],
)
def test_the_hint_fits_how_bertcli_was_installed(monkeypatch, origin, requirement):
    class Installed:
        def read_text(self, name):
            return json.dumps(origin)

    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [Installed()])
    assert install_command("ray") == f"{pip_command()} {requirement}"
