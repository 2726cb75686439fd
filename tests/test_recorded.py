"""What users see, recorded: every command and format, with what it prints and writes.

A file of tests/recorded/ is a session in one folder with the samples in it: commands after "$ ",
and below each its exit code, its output and the files that it made. `BERTCLI_RECORD=write pytest
tests/test_recorded.py` runs the commands that stand there and writes what changed.
"""

import io
import json
import os
import re
import shlex
import shutil
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
from front import (
    call,
    json_in,
    jsonl,
    put_json,
)
from numpy.random import default_rng as random
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save_file
from test_readme import DECIMAL, alike

from bertcli.cli.app import COMMANDS

RECORDED = Path(__file__).parent / "recorded"
SAMPLES = Path(__file__).parents[1] / "samples"
SHOWN = 3  # numbers of an array, rows of a Parquet file
DIGEST_OF_VECTORS = re.compile("^(sha256 +)[0-9a-f]{64}$")  # CPUs differ in their last bits
LINES, WIDTH = 6, 300  # of a file or of what is printed, as far as it is recorded


def test_every_command_is_recorded():
    commands = [line for path in RECORDED.iterdir() for line in commands_of(path)]
    missing = [name for name in COMMANDS if not any(f"$ {name} " in line for line in commands)]
    assert missing == []


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.txt")))
def test_nothing_that_users_see_has_changed(name, tmp_path, monkeypatch):
    file = RECORDED / f"{name}.txt"
    for sample in SAMPLES.iterdir():
        if sample.suffix in (".txt", ".tsv", ".jsonl"):
            shutil.copy(sample, tmp_path)
    shutil.copytree(SAMPLES / "tiny-bert", tmp_path / "tiny")
    with_heads(tmp_path / "heads", labels=2)
    with_heads(tmp_path / "scores", labels=1)
    words = {"a": "i love nlp", "b": "the quick brown fox"}
    labelled = [{"text": f"{words[kind]} {n}", "label": kind} for n in range(8) for kind in words]
    (tmp_path / "labelled.jsonl").write_text(jsonl(labelled))
    documents = (SAMPLES / "texts.txt").read_text("utf-8").replace(".\n", ".\n\n")
    (tmp_path / "documents.txt").write_text(documents, "utf-8")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "i love", "choices": ["nlp", "me"]}\n')
    monkeypatch.chdir(tmp_path)
    session = "".join(line + answer(line, tmp_path) for line in commands_of(file))
    lines, expected = session.splitlines(), file.read_text("utf-8").splitlines()
    if os.environ.get("BERTCLI_RECORD") == "write":
        for _, start, stop, first, last in changes(expected, lines):
            pairs = zip(lines[first:last], expected[start:stop], strict=False)
            if stop - start == last - first:  # lines that only differ by the CPU stay
                lines[first:last] = [old if alike(new, old) else new for new, old in pairs]
        expected = lines
        file.write_text("\n".join(lines) + "\n", "utf-8")
    for number, pair in enumerate(zip(lines, expected, strict=False), 1):
        assert alike(*pair), f"{file}:{number}\nnow:      {pair[0]}\nrecorded: {pair[1]}"
    assert len(lines) == len(expected)


def changes(old, new):
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def with_heads(folder, labels):
    """Make a copy of the sample with weights for every head."""
    shutil.copytree(SAMPLES / "tiny-bert", folder)
    weights, draw = load_safetensors((folder / "model.safetensors").read_bytes()), random(0)
    words, width = weights["embeddings.word_embeddings.weight"].shape
    shapes = {
        "cls.predictions.bias": [words],
        "cls.predictions.transform.dense.weight": [width, width],
        "cls.predictions.transform.dense.bias": [width],
        "cls.predictions.transform.LayerNorm.weight": [width],
        "cls.predictions.transform.LayerNorm.bias": [width],
        "cls.seq_relationship.weight": [2, width],
        "cls.seq_relationship.bias": [2],
        "classifier.weight": [labels, width],
        "classifier.bias": [labels],
        "qa_outputs.weight": [2, width],
        "qa_outputs.bias": [2],
    }
    weights |= {
        name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    config = json_in(folder / "config.json")
    names = {str(number): f"label {number}" for number in range(labels)}
    put_json(folder / "config.json", {**config, "id2label": names})


def commands_of(file):
    return [f"{line}\n" for line in file.read_text("utf-8").splitlines() if line.startswith("$ ")]


def answer(line, folder):
    """Run `COMMAND [< FILE]` or `COMMAND <<< TEXT`; return its exit code, output and new files."""
    command, redirected, source = line[2:].strip().partition(" <")
    stdin = b""
    if source.startswith("<< "):
        stdin = shlex.split(source[3:])[0].encode().decode("unicode_escape").encode("latin-1")
    elif redirected:
        stdin = (folder / source.strip()).read_bytes()
    before = set(folder.rglob("*"))
    done = call(
        *shlex.split(command),
        stdin=stdin,
        BERTCLI_MODEL="tiny",
        COLUMNS="80",
    )
    binary = b"\0" in done.stdout or done.stdout.startswith((b"PK", b"\x93NUMPY"))
    text = [f"exit {done.code}"]
    text += shown("stdout", done.stdout) if binary else cut(done.out, 40)
    text += [f"stderr: {message}" for message in done.err.splitlines()]
    for path in sorted(set(folder.rglob("*")) - before):
        if path.is_file():
            text += shown(path.relative_to(folder).as_posix(), path.read_bytes())
    text = [part.replace(str(folder), ".").replace("\0", "\\0").rstrip() for part in text]
    return "\n".join([*text, "", ""])


def shown(name, data):
    """Return a file as lines: texts as they are, arrays by type, shape and first numbers."""
    if name.endswith(("manifest.json", "log.jsonl", "training_state.json")):  # times, digests
        return [f"{name}: {', '.join(json.JSONDecoder().raw_decode(data.decode())[0])}"]
    if name.endswith((".xml", ".svg")):  # libraries number what is in them
        return [f"{name}: made"]
    if data.startswith(b"\x93NUMPY"):
        return [f"{name}: {described(np.load(io.BytesIO(data)))}"]
    if data.startswith(b"PK"):
        arrays = np.load(io.BytesIO(data))
        return [f"{name}: {key} {described(arrays[key])}" for key in arrays.files]
    if name.endswith(".safetensors"):
        arrays = load_safetensors(data)
        keys = [] if "optimizer" in name else sorted(arrays)[:SHOWN]
        arrays_shown = [f"{name}: {key} {described(arrays[key])}" for key in keys]
        return [f"{name}: {len(arrays)} arrays", *arrays_shown]
    if data.startswith(b"PAR1"):
        from pyarrow.parquet import read_table

        table = read_table(io.BytesIO(data))
        rows = [json.dumps(row) for row in table.slice(0, SHOWN).to_pylist()]
        return [f"{name}: {len(table)} rows of {field}" for field in table.schema] + rows
    try:
        return [f"{name}: {line}" for line in cut(data.decode(), LINES)]
    except UnicodeDecodeError:
        return [f"{name}: {len(data)} bytes"]


def cut(text, most):
    lines = [line if len(line) <= WIDTH else evened(line)[:WIDTH] for line in text.splitlines()]
    lines = [DIGEST_OF_VECTORS.sub(r"\1...", line.replace("+cpu", "")) for line in lines]
    return [*lines[:most], f"... {len(lines)} lines"] if len(lines) > most else lines


def evened(line):
    """Return a line whose numbers are cut at the same place whatever their last digits are."""
    return DECIMAL.sub(lambda number: f"{float(number[0]):.6f}", line)


def described(array):
    numbers = array.ravel()[:SHOWN].tolist()
    return f"{array.dtype} {list(array.shape)} {numbers}"
