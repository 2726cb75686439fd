"""Processes that share a large input: the same bytes and counts, and none of them left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from front import DEADLINE, HELLO, Result, call, environment, left_in, until

from bertcli.files import streams
from bertcli.tokenizing import line_output as scribe
from bertcli.tokenizing import worker_processes as workers
from bertcli.tokenizing.tokenizer import Tokenizer

EAGER = """
from bertcli.tokenizing import line_output as scribe
scribe.WORTH = -1
from bertcli.__main__ import run
run()
"""
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")
needs_proc = pytest.mark.skipif(not CHILDREN.exists(), reason="no list of child processes here")
TEXTS = [text.replace("\n", "").replace("\r", "") for text in hostile.composed(31, 800)]


@pytest.fixture
def eager(monkeypatch):
    """Start processes after the first block, and make blocks small."""
    monkeypatch.setattr(scribe, "WORTH", -1)
    monkeypatch.setattr(streams, "CHUNK", 1 << 14)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Several blocks of lines, and the same as JSONL with ids, a few of them broken."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [*TEXTS, *hostile.english(31, 800)]
    (folder / "x.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    with (folder / "x.jsonl").open("w") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": number, "text": text}) + "\n")
            if number % 500 == 499:
                file.write("oops\n")
    return folder


def begin(*argv, **options):
    """Start a command that starts processes after its first block."""
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", EAGER, "tokenize", "--workers", "2", *map(str, argv)]
    return subprocess.Popen(command, env=environment(), **(ends | options))


def children(running):
    found = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    return found.read_text().split() if found.exists() else []


def is_gone(pid):
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--count"],
        ["--max-length=7", "--length"],
        ["--max-length=7", "--overflowing", "--tokens", "--offsets"],
        ["--padding=max_length", "--max-length=16", "--no-parse-special"],
    ],
)
def test_the_same_bytes_and_messages(eager, corpus, options):
    one, two = (
        call("tokenize", "-i", corpus / "x.txt", *options, "--workers", count) for count in (0, 2)
    )
    assert one == two
    assert one.code == 0
    assert one.stdout.count(b"\n") > 2 * len(TEXTS) - 100


def test_ids_are_those_of_tokenizers(eager, corpus, default_folder):
    texts = (corpus / "x.txt").read_text("utf-8").split("\n")[:-1]
    right = Tokenizer.load(default_folder).core.encode_batch_fast(texts)
    done = call("tokenize", "-i", corpus / "x.txt", "--workers", "3", "-q")
    assert done.ids == [encoding.ids for encoding in right]


@pytest.mark.parametrize(
    "options",
    [["--on-error=skip"], [], ["--on-error=skip", "--truncation=only_second", "--max-length=9"]],
)
def test_records_that_are_left_out(eager, corpus, options):
    one, two = (
        call("tokenize", "-i", corpus / "x.jsonl", *options, "--workers", count) for count in (0, 2)
    )
    assert (two.code, two.stdout) == (1, one.stdout)
    assert sorted(two.err.splitlines()) == sorted(one.err.splitlines())
    assert "x.jsonl:501" in one.err


def test_a_small_input_starts_no_process(corpus, monkeypatch):
    monkeypatch.delattr(workers, "Popen")
    assert call("tokenize", "-i", corpus / "x.txt", "-q", "--workers", "2").code == 0


def test_a_worker_that_dies(eager, corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "CODE", "import sys; sys.exit(len({path!r}) * 0 + 3)")
    target = ("-o", tmp_path / "y.jsonl")
    done = call("tokenize", "-i", corpus / "x.txt", "-q", "--workers", "2", *target)
    assert done.error == "a worker process ended too early (exit code 3)"
    assert done.hint.endswith("--workers 0 works without such processes")
    assert left_in(tmp_path) == []


def test_a_module_beside_the_user_is_not_theirs(corpus, tmp_path):
    (tmp_path / "tokenizers.py").write_text("raise SystemExit(1)")
    argv = ("-q", "-i", corpus / "x.txt", "-o", "y.jsonl")
    code = f"import sys; sys.path.remove(''); {EAGER}"
    command = [sys.executable, "-c", code, "tokenize", "--workers", "2", *map(str, argv)]
    assert (
        subprocess.run(command, env=environment(), cwd=tmp_path, timeout=DEADLINE).returncode == 0
    )


def test_a_slow_stdin_is_answered_line_by_line():
    with begin() as running:
        for _ in range(5):
            running.stdin.write(b"hello\n")
            running.stdin.flush()
            assert running.stdout.readline().decode() == HELLO
        out, err = running.communicate(timeout=DEADLINE)
    assert (running.returncode, out, err) == (0, b"", b"")


def test_a_reader_that_leaves(corpus):
    with begin("-q", "-i", corpus / "x.txt") as running:
        running.stdout.readline()
        running.stdout.close()
        err = running.stderr.read()
        assert Result(running.wait(DEADLINE), b"", err.decode()) == (0, b"", "")


@needs_proc
def test_workers_are_deaf_from_birth():
    """One that dies of a terminal's Ctrl-C while it starts would be an error: 1 instead of 130."""
    with begin() as running:
        for _ in range(2):
            running.stdin.write(b"hello\n")
            running.stdin.flush()
            running.stdout.readline()
        until(lambda: children(running))
        status = Path(f"/proc/{children(running)[0]}/status").read_text()
        running.communicate(timeout=DEADLINE)
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    for number in (signal.SIGINT, signal.SIGHUP):
        assert blocked >> number - 1 & 1


@needs_proc
@pytest.mark.parametrize(
    ("name", "code", "group"),
    [
        ("SIGINT", 130, True),
        ("SIGHUP", 129, True),
        ("SIGINT", 130, False),
        ("SIGTERM", 143, False),
        ("SIGKILL", -9, False),
    ],
)
def test_a_signal_leaves_no_process(tmp_path, name, code, group):
    """As `kill` sends it to one process, and as a terminal does, to all."""
    number = getattr(signal, name)
    with begin("-o", "x.jsonl", cwd=tmp_path, start_new_session=True) as running:
        for _ in range(2):
            running.stdin.write(b"hello\n")
            running.stdin.flush()
            until(lambda: left_in(tmp_path))
        until(lambda: len(children(running)) == 2)
        pids = children(running)
        if group:
            os.killpg(running.pid, number)
        else:
            running.send_signal(number)
        assert running.wait(DEADLINE) == code
        assert (running.stdout.read(), running.stderr.read()) == (b"", b"")
    until(lambda: all(map(is_gone, pids)))
    assert left_in(tmp_path) == [] or name == "SIGKILL"
