"""What installs and runs without torch: `.ci/run` runs this file in an environment that has none.

Here every command is a process that cannot import torch, with an empty home that stays empty.
"""

import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from front import (
    DEADLINE,
    Result,
    environment,
    json_in,
    put_json,
)
from safetensors.numpy import load_file, save_file

pytestmark = pytest.mark.light

SAMPLES = Path(__file__).parents[1] / "samples"
TINY, TEXTS = SAMPLES / "tiny-bert", SAMPLES / "texts.txt"
PROGRAM = "import sys; sys.modules['torch'] = None; from bertcli.__main__ import run; run()"


@pytest.fixture
def light(tmp_path, monkeypatch):
    """Run a command, which shall succeed without a word and leave nothing in the home."""
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir(mode=0o500)
    place.mkdir()
    monkeypatch.chdir(place)

    def run(*argv, stdin=b"", code=0):
        env = environment({"HOME": str(home), "BERTCLI_BACKEND": "auto"})
        for name in ("XDG_CACHE_HOME", "HF_HOME", "BERTCLI_CACHE"):
            env.pop(name, None)
        argv = [sys.executable, "-c", PROGRAM, *map(str, argv)]
        done = subprocess.run(argv, input=stdin, env=env, capture_output=True, timeout=DEADLINE)
        assert [*home.iterdir()] == []
        result = Result(done.returncode, done.stdout, done.stderr.decode())
        assert result.code == code and (code or not result.err), result
        return result

    return run


def test_tokens(light):
    assert light("tokenize", "I love NLP!").rows[0]["input_ids"][1:3] == [1045, 2293]
    assert light("decode", "1045", "2293").out == "i love\n"


def test_vectors_in_a_file_and_a_search(light):
    light("embed", "-q", "-i", TEXTS, "-o", "x.npy")
    assert np.load("x.npy").shape == (12, 384)
    (hit,) = light("similar", "-q", "capital city", "--corpus", TEXTS, "--top-k", "1").rows
    assert hit["hits"][0]["text"] == "Paris is the capital of France."
    assert light("duplicates", "-q", TEXTS, "--vectors", "x.npy").code == 0


def test_chunks_become_vectors(light):
    chunks = light("chunk", "-q", "-i", TEXTS, "--max-length", "9").stdout
    vectors = light("embed", "-q", "--text-field", "text", stdin=chunks).rows
    assert len(vectors) == chunks.count(b"\n") > 12


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("BertForSequenceClassification", ["classify", "a cat"]),
        ("BertForTokenClassification", ["tag", "a cat"]),
    ],
)
def test_a_made_model(light, kind, command):
    shutil.copytree(TINY, "model")
    weights = {
        f"bert.{name}": array for name, array in load_file(TINY / "model.safetensors").items()
    }
    weights["classifier.weight"] = np.ones((2, 32), np.float32)
    weights["classifier.bias"] = np.float32([0, 1])
    save_file(weights, "model/model.safetensors")
    config = json_in(Path("model/config.json"))
    labels = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    put_json(Path("model/config.json"), {**config, **labels, "architectures": [kind]})
    assert "yes" in light(*command, "-q", "-m", "model").out


def test_a_model_is_inspected(light):
    assert light("inspect").out
    assert light("inspect", "--verify", "--tree", "--tensors", "--json").rows[0]["verify"]


def test_what_is_not_installed(light):
    assert ", torch " in light("--version").out
    done = light("train", "absent.jsonl", "-o", "out", code=1)
    assert done.err.startswith("error: training needs torch\nhint: ")


def saved(path, arrays):
    """Write float32 arrays as torch.save does."""
    raw = b"\x80\x02}("
    with zipfile.ZipFile(path, "w") as archive:
        for key, (name, array) in enumerate(arrays.items()):
            raw += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(("
            raw += text("storage") + b"ctorch\nFloatStorage\n" + text(str(key)) + text("cpu")
            raw += whole(array.size) + b"tQK\x00" + counts(array.shape)
            raw += counts(step // 4 for step in array.strides) + b"\x89)tR"
            archive.writestr(f"a/data/{key}", array.tobytes())
        archive.writestr("a/data.pkl", raw + b"u.")


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def whole(value):
    return b"J" + struct.pack("<i", value)


def counts(values):
    return b"(" + b"".join(map(whole, values)) + b"t"


def test_a_pickled_checkpoint(light):
    shutil.copytree(TINY, "model")
    vector = light("embed", "-q", "I love NLP!", "-m", "model").out
    arrays = load_file("model/model.safetensors")
    Path("model/model.safetensors").unlink()
    saved("model/pytorch_model.bin", arrays)
    assert light("embed", "-q", "I love NLP!", "-m", "model").out == vector
    assert "pytorch_model.bin" in light("inspect", "-m", "model", "--verify").out
    for protocol in (4, 5):  # the defaults before and since Python 3.14
        Path("model/pytorch_model.bin").write_bytes(pickle.dumps(subprocess.Popen, protocol))
        refused = light("embed", "a", "-m", "model", code=1).err
        assert "asks to run subprocess.Popen" in refused
