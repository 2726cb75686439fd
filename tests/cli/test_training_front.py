"""Training at the front door: how threads wait, lines in a pipe, fields that are missing."""

import os
from unittest import mock

import pytest
from front import TINY, call, jsonl, process

from bertcli.cli.app import main


def spin_count(environment):
    with mock.patch.dict(os.environ, environment):
        for name in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}.difference(environment):
            os.environ.pop(name, None)
        main(["--version"])
        return os.environ.get("GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_idle_threads_sleep_early_unless_the_environment_says_otherwise(
    environment, expected, capsys
):
    assert spin_count(environment) == expected


def test_lines_of_a_training_run_in_a_pipe_are_about_ten(tmp_path):
    file = tmp_path / "texts.csv"
    rows = [f"a {word} text {n},{word}\n" for n in range(60) for word in ("good", "bad")]
    file.write_text("text,label\n" + "".join(rows))
    argv = ("train", file, "-o", tmp_path / "m", "--steps", "200", "--eval-every", "2")
    done = process(*argv, "--log-every", "2")
    lines = [line for line in done.err.splitlines() if line.startswith("note: step ")]
    assert done.code == 0 and 5 <= len(lines) <= 12
    assert lines[-1].startswith("note: step 200/200 loss") and "held out" in lines[-1]
    assert "weights of step" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("header", "options", "error", "hint"),
    [
        (
            "review_id,title,stars",
            [],
            "an example needs a text and a label, and none of the fields text, words, question, "
            "anchor is there",
            "available: review_id, title, stars; name both: --text-field NAME --label-field NAME",
        ),
        (
            "body,stars,id2",
            ["--text-field", "body"],
            "an example needs the fields body and label, labels, score, tags, answer with context "
            "or positive",
            "available: body, stars, id2; others are named by --text-field, --pair-field, "
            "--label-field",
        ),
    ],
)
def test_fields_that_train_needs_are_named_at_once(tmp_path, header, options, error, hint):
    file = tmp_path / "examples.csv"
    file.write_text(f"{header}\na,b,c\n")
    done = process("train", file, "-o", tmp_path / "m", *options)
    assert done.error.endswith(error)
    assert done.hint == hint


def train(tmp_path, rows, *more):
    """Return the notes about labels of a training run."""
    file = tmp_path / "texts.jsonl"
    file.write_text(jsonl({"text": text, "label": label} for text, label in rows))
    argv = ("train", file, "-o", tmp_path / "m", "-m", TINY, "--steps", 1, "--eval-fraction", 0)
    done = call(*argv, "--overwrite", *more)
    assert done.code == 0, done
    return [line for line in done.err.splitlines() if "label" in line]


def test_labels_that_are_rare_unbalanced_or_conflicting_have_a_note(tmp_path):
    good_texts = [(f"good text {number}", "good") for number in range(40)]
    bad_texts = [("bad text", "bad"), ("poor text", "bad")]
    assert train(tmp_path, [*good_texts[:9], *bad_texts]) == []
    assert train(tmp_path, [*good_texts, *bad_texts]) == [
        "note: labels are unbalanced: 40 examples of good, 2 of bad; --class-weights balanced "
        "gives them equal weight"
    ]
    assert train(tmp_path, [*good_texts, *bad_texts], "--class-weights", "balanced") == []
    assert train(tmp_path, [*good_texts, *bad_texts, ("odd text", "odd")]) == [
        "note: 1 label has fewer than 2 examples to train on: odd"
    ]
    (note,) = train(tmp_path, [*bad_texts, *good_texts[:2], ("bad text", "good")])
    assert note == (
        "note: 1 text has conflicting labels, for example bad in "
        f"{tmp_path}/texts.jsonl:1 and good in {tmp_path}/texts.jsonl:5"
    )
