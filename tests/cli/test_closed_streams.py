"""Standard streams that are closed, full or read twice: exit codes, messages and files."""

from pathlib import Path

import pytest
from front import (
    TINY,
    bad,
    shell,
)

FULL = "No space left on device"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@needs_full
@pytest.mark.parametrize("command", [f"inspect {TINY}", "--help", "embed -h", "--version"])
def test_stdout_that_is_closed_or_full(command, tmp_path):
    done = shell(f"bertcli {command} >&-", cwd=tmp_path)
    assert (done.code, done.err.splitlines()[0]) == (1, "error: stdout is closed")
    for unbuffered in ("", "1"):
        script = f"PYTHONUNBUFFERED={unbuffered} bertcli {command} >/dev/full"
        done = shell(script, cwd=tmp_path)
        assert done.code == 1
        assert done.err.splitlines()[0] == f"error: stdout: cannot be written: {FULL}"


@needs_full
@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&- >&-", "2>/dev/full"])
def test_a_run_needs_no_stderr(closed, tmp_path):
    (tmp_path / "in.txt").write_text("I love NLP!\n")
    embed = f"bertcli embed -m {TINY} -i in.txt --normalize -o"
    script = f"{embed} a.npy; {embed} b.npy {closed}; echo $?; cmp a.npy b.npy"
    done = shell(script, cwd=tmp_path, env={"BERTCLI_BACKEND": "auto"})
    assert (done.code, done.out) == (0, "0\n")


@needs_full
@pytest.mark.parametrize(("wrong", "code"), [("embed -i none", 1), ("embed -z", 2)])
def test_a_failure_without_stderr_has_its_exit_code(wrong, code, tmp_path):
    for closed in ("2>&-", "2>/dev/full"):
        assert shell(f"bertcli {wrong} {closed}", cwd=tmp_path).code == code


def test_stdin_can_be_read_once():
    done = bad("tokenize", "-i", "-", "-i", "-", stdin="hello\n", code=2)
    assert done.error == "stdin can be read once: one - among --input and --files-from"
