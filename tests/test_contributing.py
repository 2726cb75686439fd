"""What CONTRIBUTING.md tells: its command, family and format work as they are written there."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from front import (
    DEADLINE,
    TINY,
    environment,
)
from transformers import ErnieConfig, ErnieModel

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture
def run(tmp_path):
    """Add what CONTRIBUTING.md adds to a copy of the package; return what runs a command of it."""
    package = tmp_path / "bertcli"
    shutil.copytree(ROOT / "bertcli", package, ignore=shutil.ignore_patterns("__pycache__"))
    examples = re.findall(
        r"here `(bertcli/[a-z_/]+\.py)`,\n\n```python\n(.*?)```", CONTRIBUTING, re.DOTALL
    )
    assert len(examples) == 3
    for path, code in examples:
        assert not (tmp_path / path).exists(), "an example that is there already shows nothing"
        (tmp_path / path).write_text(code)
    insert(package / "cli" / "app.py", "COMMANDS = {\n", '    "lengths": "lengths",\n')
    registry = package / "families" / "registry.py"
    insert(registry, "    for family in (\n", "        ERNIE,\n")
    insert(
        registry,
        "from bertcli.families.family import Family\n",
        "from bertcli.families.ernie import ERNIE\n",
    )
    (entry,) = re.findall(r"`(FileFormat\([^`]*,)`", CONTRIBUTING)
    insert(package / "formats" / "registry.py", "    for entry in (\n", f"        {entry}\n")

    def command(*argv, code=0, **env):
        done = subprocess.run(
            [sys.executable, "-m", "bertcli", *map(str, argv)],
            cwd=tmp_path,
            env=environment({"PYTHONPATH": str(tmp_path)} | env),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    return command


def insert(file, after, line):
    code = file.read_text("utf-8")
    assert after in code
    file.write_text(code.replace(after, after + line, 1), "utf-8")


def test_the_command_that_is_added(run, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"id": "a", "text": "I love NLP!"}\n{"id": "b", "text": ""}\n{"bad": 1}\n')
    found = run("lengths", "-m", TINY, "-i", texts, "--on-error", "skip", code=1).splitlines()
    counts = [json.loads(line) for line in found]
    assert [(row["id"], row["length"] > 2) for row in counts] == [("a", True), ("b", False)]
    assert "length" in run("lengths", "-m", TINY, "-f", "table", "I love NLP!")
    assert "Count the tokens of texts." in run("lengths", "--help")
    assert "lengths" in run("--help")


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_the_family_that_is_added(run, tmp_path, backend):
    torch.manual_seed(0)
    vocabulary = len((TINY / "vocab.txt").read_text("utf-8").splitlines())
    theirs = ErnieModel(
        ErnieConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            initializer_range=0.2,
        )
    ).eval()
    folder = tmp_path / "ernie"
    theirs.save_pretrained(folder)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        if (TINY / name).exists():
            shutil.copy(TINY / name, folder)
    shown = json.loads(
        run("embed", "-q", "-m", folder, "--pooling", "cls", "--backend", backend, "i love nlp")
    )
    ids = json.loads(run("tokenize", "-m", folder, "i love nlp"))["input_ids"]
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).last_hidden_state[0, 0].numpy()
    assert np.abs(np.array(shown["embedding"]) - expected).max() < 1e-5


def test_the_format_that_is_added(run, tmp_path):
    texts = tmp_path / "texts.csv"
    texts.write_text("id,text,stars\na,I love NLP!,5\nb,,1\n")
    tokenize = ("tokenize", "-m", TINY, "-i", texts, "--keep-fields", "stars")
    shown = run(*tokenize, "-f", "ltsv").splitlines()[1].split("\t")
    assert shown[:2] == ["id:b", "input_ids:[101,102]"]
    assert shown[-1] == "stars:1"
    run(*tokenize, "-o", "ids.ltsv")
    run(*tokenize, "-o", "resumed.ltsv.gz", "--resume")
    for name in ("ids.ltsv", "resumed.ltsv.gz"):
        decoded = run("decode", "-m", TINY, "-i", name, "--skip-special-tokens", "-f", "csv")
        assert decoded.splitlines()[1:] == ["a,i love nlp!", "b,"]
    (tmp_path / "more.ltsv").write_text("text:a:b\tid:7\nno field\n")
    found = run("tokenize", "-m", TINY, "-i", "more.ltsv", "--on-error", "skip", code=1)
    assert json.loads(found)["id"] == "7"


def test_help_and_completion_of_the_format_that_is_added(run, tmp_path):
    assert "ltsv" in run("chunk", "--help")
    (tmp_path / "more.ltsv").write_text("text:a\tid:7\nno field\n")
    completed = {
        "bertcli tokenize -f lt": ["ltsv"],
        "bertcli tokenize --input-format lt": ["ltsv"],
        "bertcli tokenize -i more.ltsv --text-field ": ["text", "id"],
    }
    for line, words in completed.items():
        index = str(len(line.split(" ")) - 1)
        shell = {"_BERTCLI_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": index}
        assert run(**shell).split() == words


def test_formats_that_are_only_written_or_only_read(run, tmp_path):
    (tmp_path / "in.ltsv").write_text("text:hello\n")
    registry = tmp_path / "bertcli" / "formats" / "registry.py"
    for entry in (
        'FileFormat("log", (".log",), holds=Holds.ROWS, encoder="ltsv:encoder")',
        'FileFormat("old", input_suffixes=(".old",), holds=Holds.ROWS, reader="ltsv:read_rows")',
    ):
        insert(registry, "    for entry in (\n", f"        {entry},\n")
    tokenize = ("tokenize", "-m", TINY, "-i", "in.ltsv")
    written = run(*tokenize, "--input-format", "old", "-f", "log")
    assert written.startswith("input_ids:[")
    run(*tokenize, "--input-format", "log", code=2)
    run(*tokenize, "-f", "old", code=2)
    run(*tokenize, "-o", "out.old", code=1)
    run("decode", "-m", TINY, "-i", "in.ltsv", "--input-format", "log", code=2)
