"""Several devices: the same vectors as from one, and what they are called."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from front import TINY, environment, good

from bertcli.engines.torch_engine import devices
from bertcli.errors import UsageError

ONE, TWO = (("--device", devices, "--threads", 1) for devices in ("cpu", "cpu,cpu"))


@pytest.fixture(scope="module")
def lines():
    """Texts of many lengths, some twice, one empty, one too long."""
    words = ["the", "quick", "brown", "fox", "i", "love", "nlp", "a", "b", "c", "d", "e", "f", "g"]
    some = [" ".join(words[n % 5 :] * (1 + n % 4)) + f" {n % 40}" for n in range(120)]
    return [*some, "", "a" * 50, *some[:20], "too long " * 99]


@pytest.fixture
def texts(tmp_path, lines):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_file_has_the_bytes_and_the_manifest_of_one(texts, tmp_path, one_thread):
    made = []
    for name, how in (("one", ONE), ("two", TWO)):
        (tmp_path / name).mkdir()
        out = tmp_path / name / "out.npy"
        done = good("embed", "-q", "-m", TINY, "-i", texts, "--window", 16, *how, "-o", out)
        assert (done.code, done.err) == (0, "")
        made.append((out.read_bytes(), Path(f"{out}.manifest.json").read_bytes()))
    assert made[0] == made[1]


SMALL_DEVICE = """
import sys, torch
from bertcli.engines.torch_engine import TorchEngine

start = TorchEngine.start

def small(self, batch, reduction):
    if len(batch.ids) > 100:
        raise torch.OutOfMemoryError
    return start(self, batch, reduction)

TorchEngine.start = small
from bertcli.cli.app import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.slow
def test_memory_that_runs_out_in_a_thread(tmp_path, texts, one_thread):
    program = tmp_path / "small.py"
    program.write_text(SMALL_DEVICE)

    options = ["embed", "-m", TINY, "-i", texts, "--batch-tokens", 512, "--max-length", 64, "-q"]
    options += ["--backend", "torch"]
    command = [sys.executable, program, *options, *TWO]
    command.remove("-q")
    done = subprocess.run(list(map(str, command)), env=environment(), capture_output=True)
    warnings = done.stderr.decode()
    assert done.returncode == 0, warnings
    assert "warning: out of memory on cpu: batches of 256 tokens from here on" in warnings
    found = np.array([json.loads(line)["embedding"] for line in done.stdout.splitlines()])
    expected = np.array([row["embedding"] for row in good(*options, *ONE).rows])
    assert np.abs(found - expected).max() < 1e-6
    program.write_text(SMALL_DEVICE.replace("> 100", "> 3"))
    command = [sys.executable, program, *options, *TWO]
    done = subprocess.run(list(map(str, command)), env=environment(), capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("error: out of memory on cpu with a batch of ")
    assert second.startswith("hint: ")


# --- names --------------------------------------------------------------------------------------


@pytest.fixture
def rack(monkeypatch):
    """A machine with three CUDA devices, one of Apple's and one of Intel's."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("auto", ["cuda:0"]),
        ("cuda", ["cuda:0"]),
        ("cuda:2", ["cuda:2"]),
        ("cuda:0,cuda:1", ["cuda:0", "cuda:1"]),
        ("cuda:1,cuda:1", ["cuda:1", "cuda:1"]),
        ("cuda:all", ["cuda:0", "cuda:1", "cuda:2"]),
        ("mps", ["mps"]),
        ("xpu", ["xpu:0"]),
        ("xpu:all", ["xpu:0"]),
        ("cpu", ["cpu"]),
    ],
)
def test_names_of_devices(rack, names, found):
    assert [str(device) for device in devices(names)] == found


@pytest.mark.parametrize("names", ["cuda:3", "cuda:0,", "cuda:0,gpu", "", "tpu:all", "cuda:x"])
def test_a_device_that_is_not_there_lists_those_that_are(rack, names):
    with pytest.raises(UsageError, match="not found") as error:
        devices(names)
    assert error.value.hint == "available for device: cuda:0, cuda:1, cuda:2, mps, xpu:0, cpu"


@pytest.mark.parametrize("names", ["cuda", "cuda:1", "cuda:all", "cpu,cuda:0"])
def test_a_torch_without_cuda_says_so_and_how_to_install_one(monkeypatch, names):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    with pytest.raises(UsageError, match="not found: this torch was built without CUDA") as error:
        devices(names)
    assert "install --force-reinstall torch --index-url https://" in error.value.hint
    assert "available for device: cpu" in error.value.hint


def test_a_torch_with_cuda_and_no_device_lists_those_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError) as error:
        devices("cuda")
    assert str(error.value) == "device 'cuda' not found"
    assert error.value.hint.startswith("available for device: ")
