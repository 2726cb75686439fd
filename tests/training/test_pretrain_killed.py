"""A training that is killed anywhere and resumed ends in the bytes of one that was not."""

import os

import pytest
from forks import as_torchrun
from model_reference import close
from pretrain_folders import STILL, config_file, lines, prepared
from safetensors.torch import load_file

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

    forked.check(argv, result, tmp_path, kills=10)


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
