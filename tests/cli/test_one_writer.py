"""One process at a time writes an output file or folder: another one is refused, and named."""

import os
import signal
import subprocess
import sys

import pytest
from example_files import reviews, written
from front import TINY, bad, call, contents, environment, good, until

pytestmark = [
    pytest.mark.usefixtures("usual_engine"),
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows stops no process"),
]

# The command line, which stops itself before it first renames something to the output, or in it.
STOPPED = """
import os, signal, sys

output = os.path.realpath(sys.argv.pop(1))
is_stopped = False

def stop(event, arguments):
    global is_stopped
    if event != "os.rename" or is_stopped:
        return
    if os.path.realpath(arguments[1]).startswith(output):
        is_stopped = True
        os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(stop)
from bertcli.__main__ import run
run()
"""

TEXTS = ("-i", "texts.txt")
TRAIN = ("--full", "--device", "cpu", "--threads", 1, "--steps", 2, "--save-every", 1)
COMMANDS = {
    "tokenize": ("out.jsonl", ("tokenize", "-m", TINY, *TEXTS)),
    "chunk": ("out.txt", ("chunk", "-m", TINY, *TEXTS)),
    "embed": ("out.npy", ("embed", "-m", TINY, *TEXTS)),
    "classify": ("out.csv", ("classify", "-m", "two labels", *TEXTS)),
    "rerank": ("out.jsonl", ("rerank", "love", "-m", "one label", *TEXTS)),
    "similar": ("out.jsonl", ("similar", "love", "-m", TINY, "--corpus", "texts.txt")),
    "duplicates": ("out.txt", ("duplicates", "texts.txt", "-m", TINY)),
    "map": ("out.jsonl", ("map", "texts.txt", "-m", TINY)),
    "page": ("out.html", ("map", "texts.txt", "-m", TINY)),
    "distil": ("out", ("distil", "-m", TINY, "--dim", 4)),
    "export": ("out", ("export", "-m", TINY)),
    "vocab": ("out", ("pretrain", "vocab", "texts.txt", "--size", 200)),
    "prepare": ("out", ("pretrain", "prepare", "documents.txt", "-m", TINY, "--max-length", 16)),
    "train": ("out", ("train", "reviews.jsonl", "-m", TINY, *TRAIN)),
    "frozen": ("out", ("train", "reviews.jsonl", "-m", TINY, "--frozen", *TRAIN[1:])),
}
RESUMED = ("tokenize", "chunk", "embed", "classify", "train", "frozen")  # those with --resume


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "i love nlp the film was great hello world".split()  # noqa: SIM905
    lines = [f"{words[n % 9]} {words[n * n % 7]} {n}\n" for n in range(40)]
    (tmp_path / "texts.txt").write_text("".join(lines))
    (tmp_path / "documents.txt").write_text("\n".join(lines))
    written(tmp_path / "reviews.jsonl", reviews(16))
    return tmp_path


def command_of(name, models):
    """Return the output of a command, and its arguments."""
    output, argv = COMMANDS[name]
    if "map" in argv:
        pytest.importorskip("sklearn")
    labels = {"one label": 1, "two labels": 2}
    return output, [
        models("BertForSequenceClassification", num_labels=labels[argument])
        if argument in labels
        else argument
        for argument in argv
    ]


def stopped(output, argv):
    """Start a command that stops before it renames something to the output, and wait for that."""
    running = subprocess.Popen(
        [sys.executable, "-c", STOPPED, output, *map(str, argv), "-q", "-o", output],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until(lambda: os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    return running


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_a_living_process_writes_is_refused(name, folder, models):
    output, argv = command_of(name, models)
    running = stopped(output, argv)
    before = contents(folder)
    try:
        for option in ((), ("--overwrite",), *((("--resume",),) if name in RESUMED else ())):
            done = bad(*argv, "-q", "-o", output, *option)
            assert done.error == f"{output}: another bertcli is writing it"
            assert done.hint == "wait for it to end, or choose another name"
        assert contents(folder) == before
        running.send_signal(signal.SIGCONT)
        assert running.wait(60) == 0, running.stderr.read()
    finally:
        running.kill()
        running.communicate()
    assert (folder / output).exists()
    assert "already exists" in bad(*argv, "-q", "-o", output).error


@pytest.mark.parametrize("name", ["map", "distil", "export", "train"])
def test_an_output_that_a_killed_process_was_writing_is_written(name, folder, models):
    output, argv = command_of(name, models)
    running = stopped(output, argv)
    running.kill()
    running.communicate()
    good(*argv, "-q", "-o", output, *(("--overwrite",) if name == "train" else ()))
    names = {*contents(folder)}
    assert not [path for path in names if "tmp" in path or "lock" in path or ".run" in path]
    assert call(*argv, "-q", "-o", output, "--overwrite").code == 0
    assert names == {*contents(folder)}
