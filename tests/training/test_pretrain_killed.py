"""A training that is killed anywhere and resumed ends in the bytes of one that was not."""

import os
import shutil
import sys

import pytest
from forks import as_torchrun
from model_reference import close
from pretrain_folders import STILL, config_file, lines, prepared
from safetensors.torch import load_file

from bertcli.training import run
from bertcli.training.run import Checkpoints, State, read_state

STEPS = 5


def result(folder):
    """What a run leaves, but for the clock."""
    names = ("model.safetensors", "config.json", f"checkpoint-{STEPS}/optimizer.safetensors")
    left = sorted(path.name for path in folder.iterdir())
    return left, lines(folder), [(folder / name).read_bytes() for name in names]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_at_random_instants(forked, tmp_path):
    prepared(tmp_path / "data", rows=40)
    config = config_file(tmp_path / "config.json")
    fixed = ["--threads", 1, "--device", "cpu", "--steps", STEPS, "--batch-size", 4, "--resume"]
    fixed += ["--save-every", 1, "--log-every", 2, "--eval-every", 2, "--keep", 1]

    def argv(out):
        return ["pretrain", "run", tmp_path / "data", "--config", config, "-o", out, *fixed]

    forked.check(argv, result, tmp_path, kills=8)


def test_two_processes_train_as_one(forked, tmp_path):
    data, config = prepared(tmp_path / "data", rows=80), tmp_path / "config.json"
    argv = ["pretrain", "run", data, "--config", config_file(config, **STILL), "--threads", 1]
    argv += ["--steps", 6, "--batch-size", 8, "--log-every", 2, "--eval-fraction", 0.2]
    argv += ["--learning-rate", 1e-3, "--device", "cpu", "-o"]
    assert forked.run([*argv, tmp_path / "one"]) == 0
    said = tmp_path / "said"
    ranks = [environment | {"STDERR": str(said)} for environment in as_torchrun(2)]
    assert forked.together([*argv, tmp_path / "two"], ranks) == [0, 0]
    assert said.read_text().count("tokens/s") == 3  # of one process
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    close(ours, theirs)
    for line, other in zip(lines(tmp_path / "two"), lines(tmp_path / "one"), strict=True):
        assert line == pytest.approx(other, rel=1e-4)


# --- every line of the code that writes checkpoints ---


def save(checkpoints, step):
    with checkpoints.written(State(step=step)) as folder:
        (folder / "model.safetensors").write_bytes(b"weights of this step")
        (folder / "config.json").write_text("{}")


def states_seen(folder, copies, work):
    """Do the work; keep each state of the folder that a kill between two lines would leave."""
    seen = []

    def look(frame, event, arg):
        if frame.f_code.co_filename not in (run.__file__, shutil.__file__):
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
    folder.mkdir()
    kept = Checkpoints(folder, keep=2)
    for step in (1, 2):
        save(kept, step)
    states = states_seen(folder, tmp_path / "copies", lambda: save(kept, 3))
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
