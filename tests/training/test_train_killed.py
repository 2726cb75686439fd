"""`bertcli train` that is killed anywhere and resumed ends in the bytes of a run that was not."""

import os

import pytest
from example_files import asked, belonging, reviews, written
from forks import as_torchrun
from front import (
    TINY,
    call,
    json_in,
)
from model_reference import close
from pretrain_folders import STILL, lines
from safetensors.torch import load_file

from bertcli.training.loop import Training
from bertcli.training.objectives import TextObjective

STEPS = 6
CLOCKS = ("log.jsonl", "training_state.json")


def argv(file, base, method, out, *more):
    fixed = ["--threads", 1, "--device", "cpu", "--steps", STEPS, "--save-every", 1, "--keep", 1]
    fixed += ["--log-every", 2, "--eval-every", 2, "--batch-size", 8, "--resume", method]
    return ["train", file, "-m", base, "-o", out, *fixed, *more]


def result(folder):
    """What a run leaves, but for the clock."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert f"checkpoint-{STEPS}/optimizer.safetensors" in files
    kept = {name: path.read_bytes() for name, path in files.items() if path.name not in CLOCKS}
    state = json_in(folder / f"checkpoint-{STEPS}/training_state.json")
    return sorted(files), lines(folder), kept, {**state, "log_bytes": None, "digest": None}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize(
    ("method", "rows", "kills"),
    [
        ("--full", reviews(40), 12),
        ("--frozen", reviews(40), 12),
        ("--full", belonging(40, negatives=True), 4),
        ("--full", [*asked(30), {**asked(1)[0], "answer": "", "start": None}], 4),
    ],
    ids=["full", "frozen", "pairs", "spans"],
)
def test_killed_at_random_instants(method, rows, kills, forked, tmp_path):
    """Dropout is on in most: its random numbers go on as well."""
    file = written(tmp_path / "e.jsonl", rows)
    forked.check(lambda out: argv(file, TINY, method, out), result, tmp_path, kills)


@pytest.mark.skipif(os.name != "posix", reason="Windows syncs no folder")
def test_all_names_are_on_the_disk_before_a_checkpoint_is_told_of(tmp_path, monkeypatch):
    """For a power cut: those of the output folder, its modules and all files in them."""
    file, out, synced = written(tmp_path / "r.jsonl", reviews(40)), tmp_path / "out", set()
    fsync = os.fsync

    def note(file):
        fsync(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    assert call(*argv(file, TINY, "--frozen", out)).code == 0
    left = [path for path in (tmp_path, out, *out.rglob("*")) if path.stat().st_ino not in synced]
    assert not left


def test_the_best_weights_are_those_of_the_step_that_is_told(tmp_path, monkeypatch):
    """Killed behind better ones, and resumed so that these are never found again."""
    file, out = written(tmp_path / "reviews.jsonl", reviews(40)), tmp_path / "out"
    losses, step = {2: 0.5, 4: 0.4, 6: 0.9}, Training.step
    at = 0

    def counted(self, number):
        nonlocal at
        at = number + 1
        if at == killed:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(Training, "step", counted)
    monkeypatch.setattr(TextObjective, "evaluate", lambda *given: {"eval_loss": losses[at]})
    killed = 5
    argument = argv(file, TINY, "--full", out, "--save-every", 3, "--keep", 9)
    assert call(*argument).code == 130
    killed = None
    assert call(*argument, "--eval-every", 6).code == 0
    assert json_in(out / "manifest.json")["metrics"]["step"] == 2
    every = argv(file, TINY, "--full", tmp_path / "every", "--keep", 9)
    assert call(*every).code == 0
    weights = (tmp_path / "every" / "checkpoint-2" / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == weights
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("methods", [("--frozen", "--full"), ("--full", "--frozen")])
def test_overwriting_a_run_of_another_method(methods, tmp_path):
    """Nothing of it stays: modules, what limits texts, parts of another tokenizer, vectors."""
    file, out, fresh = (
        written(tmp_path / "r.jsonl", reviews(40)),
        tmp_path / "out",
        tmp_path / "new",
    )
    assert call(*argv(file, TINY, methods[0], out)).code == 0
    (out / "spm.model").write_bytes(b"of another model")
    (out / "notes.txt").write_text("the user's")
    (out / "2026_Reports").mkdir()
    over = [word for word in argv(file, TINY, methods[1], out, "--overwrite") if word != "--resume"]
    assert call(*over).code == 0
    assert call(*argv(file, TINY, methods[1], fresh)).code == 0
    found, (_, _, kept, _) = result(out), result(fresh)
    assert set(found[0]) == {*result(fresh)[0], "notes.txt"}
    assert found[2] == {**kept, "notes.txt": b"the user's"}
    (out / "2026_Reports").rmdir()  # the user's too
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        path.name for path in fresh.iterdir() if path.is_dir()
    }


@pytest.mark.parametrize(
    ("method", "rows"),
    [("--full", reviews(40)), ("--frozen", reviews(40)), ("--full", belonging(40, negatives=True))],
    ids=["full", "frozen", "pairs"],
)
def test_two_processes_train_as_one(method, rows, forked, models, tmp_path):
    file, base = written(tmp_path / "e.jsonl", rows), models("BertForMaskedLM", **STILL)
    assert call(*argv(file, base, method, tmp_path / "one")).code == 0
    two = argv(file, base, method, tmp_path / "two")
    assert forked.together(two, as_torchrun(2)) == [0, 0]
    names = ["model.safetensors", *(["2_Dense/model.safetensors"] if method == "--frozen" else [])]
    for name in names:
        ours, theirs = (load_file(tmp_path / out / name) for out in ("two", "one"))
        close(ours, theirs)
    for line, other in zip(lines(tmp_path / "two"), lines(tmp_path / "one"), strict=True):
        assert line == pytest.approx(other, rel=1e-4)
