"""Training at the front door: how threads wait, lines in a pipe, fields that are missing."""

import os
from unittest import mock

import pytest
from front import process

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
