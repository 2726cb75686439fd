"""Several devices: the same vectors as from one, and no process left behind, whatever happens."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from front import (
    DEADLINE,
    TINY,
    environment,
    good,
    on_torch,
    process,
    start,
)

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.pooling import Pooling
from bertcli.errors import BertcliError, UsageError
from bertcli.hub import MODEL_FILES, find_model
from bertcli.inference.pool import process_runner
from bertcli.inference.runner import ModelSpec, Reading, Tokens, result_of
from bertcli.inference.torch_engine import devices, open_torch

TOKEN = Tokens(np.array([1], np.uint32), np.zeros(1, np.uint8), np.array([0, 1]))

ONE, TWO = ("--device", "cpu", "--threads", 1), ("--device", "cpu,cpu", "--threads", 2)
AUTO = {"BERTCLI_BACKEND": "auto"}  # which starts sooner than torch
needs_ps = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def folder():
    return find_model(str(TINY), files=MODEL_FILES)


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
    for name, how, command in (("one", ONE, good), ("two", TWO, process)):
        (tmp_path / name).mkdir()
        out = tmp_path / name / "out.npy"
        done = command("embed", "-q", "-m", TINY, "-i", texts, "--window", 16, *how, "-o", out)
        assert (done.code, done.err) == (0, "")
        made.append((out.read_bytes(), Path(f"{out}.manifest.json").read_bytes()))
    assert made[0] == made[1]


# --- what goes wrong ----------------------------------------------------------------------------


def children(pid):
    """Return the processes below one, zombies left out."""
    found, below = [], {pid}
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            stats.append(path.read_text())
    rows = [(int(text.split()[0]), *text.rpartition(")")[2].split()[:2]) for text in stats]
    for _ in range(3):
        found = [(one, state) for one, state, parent in rows if int(parent) in below]
        below |= {one for one, _ in found}
    return [one for one, state in found if state != "Z"]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def endless(*more):
    """A run that is at work until its input ends; return it with the processes below it."""
    argv = ("embed", "-q", "-m", TINY, "--window", 8, *TWO, *more)
    running = start(*argv, env=AUTO, start_new_session=True)
    running.stdin.write(b"the quick brown fox\n" * 8)
    running.stdin.flush()
    return running


@pytest.mark.slow
@needs_ps
def test_a_process_that_is_killed_is_one_clear_error(tmp_path, texts, one_thread):
    out, whole = tmp_path / "out.npy", tmp_path / "whole.npy"
    argv = ["embed", "-m", TINY, "-q", "--window", 8, *TWO]
    with start(*argv, "-o", out, env=AUTO) as running:
        running.stdin.write(texts.read_bytes())
        running.stdin.flush()
        until(Path(f"{out}.run/journal").exists)
        workers = [pid for pid in children(running.pid) if b"spawn_main" in command_of(pid)]
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        running.stdin.write(texts.read_bytes())
        _, err = running.communicate(timeout=DEADLINE)
    first, second = err.decode().splitlines()
    assert first == "error: the process for cpu was killed by SIGKILL"
    assert second.startswith("hint: ") and "--resume" in second
    assert running.returncode == 1
    until(lambda: not any(map(alive, workers)))
    both = texts.read_bytes() * 2
    assert process(*argv, "-o", out, "--resume", stdin=both, env=AUTO).code == 0
    one = ("embed", "-m", TINY, "-q", "--window", 8, *ONE, "-o", whole)
    assert process(*one, stdin=both, env=AUTO).code == 0
    assert out.read_bytes() == whole.read_bytes()


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@needs_ps
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_no_process_outlives_the_run(name, code):
    with endless() as running:
        assert running.stdout.readline()
        below = children(running.pid)
        assert len(below) >= 2
        if name == "SIGINT":  # as a terminal sends it: to all of them
            os.killpg(running.pid, signal.SIGINT)
        else:
            running.kill()
        _, err = running.communicate(timeout=DEADLINE)
    assert (running.returncode, err) == (code, b"")
    until(lambda: not any(map(alive, below)))


@needs_ps
@pytest.mark.parametrize("started", [1, 2, 3])
def test_ctrl_c_while_the_processes_start(started):
    with endless() as running:
        until(lambda: len(children(running.pid)) >= started)
        below = children(running.pid)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=DEADLINE)
    assert (running.returncode, out, err) == (130, b"", b"")
    until(lambda: not any(map(alive, below)))


SIGNAL_AT_START = """
import os, signal
from multiprocessing.context import SpawnProcess
from bertcli.inference.pool import process_runner
from bertcli.inference.torch_engine import Encoder

begun, start = [], SpawnProcess.start

def start_and_signal(self):
    os.kill(os.getpid(), signal.SIGINT)
    start(self)
    begun.append(self)

SpawnProcess.start = start_and_signal
if __name__ == "__main__":
    try:
        process_runner([("cpu", Encoder)] * 2, 100)
    except KeyboardInterrupt:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        print(len(begun), any(process.is_alive() for process in begun), usual)
"""


def test_a_signal_while_a_process_is_started_is_heard_and_leaves_none(tmp_path):
    """In a program of its own: threads that other tests left here would hear the signal too."""
    program = tmp_path / "signal_at_start.py"
    program.write_text(SIGNAL_AT_START)
    done = subprocess.run([sys.executable, program], env=environment(), capture_output=True)
    assert (done.returncode, done.stdout.split()) == (0, [b"2", b"False", b"True"]), done.stderr


def test_an_error_in_a_process_is_the_same_one_line(folder, lines):
    """A model that changes between the look of the parent and that of the processes."""
    spec = ModelSpec(folder.path, reading=Reading((7,)))
    pool = process_runner([("cpu", partial(open_torch, spec))], 100)
    work = pool.run(TOKEN, Pooling(("mean",)))
    with pytest.raises(UsageError, match="layer 7 not found") as error:
        result_of(work)
    assert error.value.hint == "this model has layers 0 to 2; -1 is the last"


SMALL_DEVICE = """
import sys, torch
from bertcli.inference.torch_engine import Encoder

begin = Encoder.begin

def small(self, batch, finish):
    if len(batch.ids) > 100:
        raise torch.OutOfMemoryError
    return begin(self, batch, finish)

Encoder.begin = small
from bertcli.cli.app import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.slow
def test_memory_that_runs_out_in_a_process(tmp_path, texts, one_thread):
    """The program is imported by each process, and so is the patch in it."""
    program = tmp_path / "small.py"
    program.write_text(SMALL_DEVICE)

    options = ["embed", "-m", TINY, "-i", texts, "--batch-tokens", 512, "--max-length", 64, "-q"]
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
    assert error.value.hint == "available for --device: cuda:0, cuda:1, cuda:2, mps, xpu:0, cpu"


def test_devices_are_of_one_kind(rack, folder):
    with pytest.raises(UsageError, match="devices of several kinds"):
        Embedder.open(folder, on_torch(device="cuda:0,cpu"))


def test_a_choice_that_cannot_be_followed_leaves_no_process(folder):
    before = set(multiprocessing.active_children())
    with pytest.raises(UsageError, match="layer 9 not found"):
        Embedder.open(folder, on_torch(device="cpu,cpu", layers=(9,)))
    assert set(multiprocessing.active_children()) == before


def test_a_pool_that_lost_a_process_says_so_of_each_window(folder):
    spec = ModelSpec(folder.path)
    pool = process_runner([("cpu", partial(open_torch, spec))], 100)
    windows = [pool.run(TOKEN, Pooling(("mean",))) for _ in range(2)]
    pool.devices[0].process.kill()
    for window in windows:
        with pytest.raises(BertcliError, match="the process for cpu was killed by SIGKILL"):
            result_of(window)
