"""A training that is killed anywhere and resumed ends in the bytes of one that was not."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from front import PACKAGE, environment
from pretrain_folders import config_file, lines, prepared

from bertcli.training import checkpoints
from bertcli.training.checkpoints import Checkpoints, State, read_state

# Starts runs as children of a process that has imported everything: a start costs no seconds.
SERVER = """if True:
    import json, os, sys, torch, rich.console
    import bertcli.training.run, bertcli.cli.commands.pretrain_run
    import bertcli.cli.display.training, torch._dynamo
    from bertcli.cli.app import main
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(main(json.loads(line)))
        print(child, flush=True)
        sys.stdin.readline()  # until then its number is its own
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
STEPS = 5


@pytest.fixture(scope="module")
def server():
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment({"PYTHONPATH": str(PACKAGE)}),
        text=True,
        bufsize=1,
    ) as running:
        assert running.stdout.readline() == "ready\n"
        yield running
        running.stdin.close()


def run(server, place, out, kill_after=None):
    """Run to the end, or until it is killed; return the exit code."""
    argv = ["pretrain", "run", place / "data", "--config", place / "config.json", "-o", out]
    argv += ["--threads", 1, "--device", "cpu", "--steps", STEPS, "--batch-size", 4, "--resume"]
    argv += ["--save-every", 1, "--log-every", 2, "--eval-every", 2, "--keep", 1]
    server.stdin.write(json.dumps([str(one) for one in argv]) + "\n")
    child = int(server.stdout.readline())
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    server.stdin.write("wait\n")
    return int(server.stdout.readline())


def result(folder):
    """What a run leaves, but for the clock."""
    names = ("model.safetensors", "config.json", f"checkpoint-{STEPS}/optimizer.safetensors")
    left = sorted(path.name for path in folder.iterdir())
    return left, lines(folder), [(folder / name).read_bytes() for name in names]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_at_random_instants(server, tmp_path):
    prepared(tmp_path / "data", rows=40)
    config_file(tmp_path / "config.json")
    began = time.monotonic()
    assert run(server, tmp_path, tmp_path / "whole") == 0
    seconds, whole = time.monotonic() - began, result(tmp_path / "whole")
    choose, killed, runs = random.Random(4), 0, 0
    while killed < 8:  # in as many runs as it takes
        out = tmp_path / f"out{runs}"
        code = run(server, tmp_path, out, choose.random() * seconds)
        killed += code == -signal.SIGKILL
        if code == 0:
            assert result(out) == whole
            runs, seconds = runs + 1, seconds / 2  # the machine became faster
    assert run(server, tmp_path, out) == 0
    assert result(out) == whole


# --- every line of the code that writes checkpoints ---


def filled(folder):
    (folder / "model.safetensors").write_bytes(b"weights of this step")
    (folder / "config.json").write_text("{}")


def states_seen(folder, copies, work):
    """Do the work; keep each state of the folder that a kill between two lines would leave."""
    seen = []

    def look(frame, event, arg):
        if frame.f_code.co_filename not in (checkpoints.__file__, shutil.__file__):
            return None
        now = sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))
        if not seen or now != seen[-1]:
            seen.append(now)
            sys.settrace(None)
            shutil.copytree(folder, copies / str(len(seen)))
            sys.settrace(look)
        return look

    outer = sys.gettrace()
    sys.settrace(look)
    try:
        work()
    finally:
        sys.settrace(outer)
    return [copies / str(number + 1) for number in range(len(seen))]


def test_every_line_is_a_place_to_be_killed(tmp_path):
    folder = tmp_path / "work"
    kept = Checkpoints(folder, keep=2)
    for step in (1, 2):
        kept.write(State(step=step), filled)
    states = states_seen(folder, tmp_path / "copies", lambda: kept.write(State(step=3), filled))
    assert len(states) > 6
    for state in states:
        found = Checkpoints(state, keep=2)
        found.sweep()
        assert not list(state.glob(".*"))
        assert found.steps()[-1] in (2, 3) and 2 in found.steps()
        for step in found.steps():
            assert read_state(found.path(step)).step == step
            assert (found.path(step) / "model.safetensors").read_bytes() == b"weights of this step"
    assert kept.steps() == [2, 3]


def test_the_data_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    """For a power cut, which may lose all that was not synced."""
    synced, fsync, replace = set(), os.fsync, os.replace

    def note(file):
        fsync(file)
        synced.add(os.fstat(file).st_ino)

    def check(source, to):
        assert {os.stat(path).st_ino for path in (source, *source.iterdir())} <= synced
        replace(source, to)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", check)
    Checkpoints(tmp_path / "work").write(State(step=1), filled)
    assert os.stat(tmp_path / "work").st_ino in synced


def test_moments_are_read_as_they_were_written(tmp_path):
    kept = {"exp_avg.a": torch.randn(3, 4).t(), "exp_avg_sq.a": torch.rand(4)}
    checkpoints.put_moments(tmp_path, kept)
    found = checkpoints.read_moments(tmp_path)
    assert found.keys() == kept.keys() and all(torch.equal(found[k], kept[k]) for k in kept)
    modes = tmp_path.stat().st_mode, (tmp_path / checkpoints.OPTIMIZER).stat().st_mode
    assert modes[0] & 0o666 == modes[1] & 0o777
