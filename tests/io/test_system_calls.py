"""What Windows has not is taken away, and the commands work as before.

All but fcntl: on Windows msvcrt, which Linux has not, takes its place.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from front import bad, environment, good

pytestmark = pytest.mark.usefixtures("usual_engine")

PROC = Path("/proc")

GONE = {
    "os": "fork forkpty fchmod fchown getuid getpgid killpg sched_getaffinity mkfifo "
    "O_NOFOLLOW O_DIRECTORY O_CLOEXEC",
    "signal": "SIGHUP SIGALRM SIGUSR1 SIGQUIT alarm setitimer pthread_sigmask sigwait",
}
MODULES = ("pwd", "grp", "resource", "termios", "tty", "pty")
WITHOUT = f"""
import sys
for name in {MODULES!r}:
    sys.modules[name] = None
import os, signal
for module, names in ((os, {GONE["os"]!r}), (signal, {GONE["signal"]!r})):
    for name in names.split():
        delattr(module, name)
{{more}}
from bertcli.__main__ import run
run()
"""
STOPPED = """
import bertcli.runs.vector_run
bertcli.runs.vector_run.VectorWriter.finish = lambda *_: os._exit(9)
"""


def without(*argv, more="", code=0, cwd=None):
    """Run a command where only what all systems have is there."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(more=more), *map(str, argv)],
        capture_output=True,
        env=environment(),
        cwd=cwd,
    )
    assert (done.returncode, done.stderr.decode()) == (code, "")
    return done.stdout


@pytest.mark.parametrize("workers", [0, 1])
def test_tokenize(tmp_path, workers):
    (tmp_path / "texts.txt").write_text("I love NLP!\nSo do I.\n")
    argv = ["tokenize", "-i", str(tmp_path / "texts.txt"), "--workers", str(workers)]
    assert without(*argv) == good(*argv).stdout
    without(*argv, "-o", tmp_path / "ids.jsonl")
    assert (tmp_path / "ids.jsonl").read_bytes() == good(*argv).stdout


def test_embed_to_a_file_and_resume(tmp_path):
    argv = ["embed", "I love NLP!", "So do I.", "-q", "-o", "out.npy"]
    without(*argv, "--resume", more=STOPPED, code=9, cwd=tmp_path)
    assert (tmp_path / "out.npy.run/journal").exists()
    without(*argv, "--resume", cwd=tmp_path)
    (tmp_path / "whole").mkdir()
    good(*argv[:-1], str(tmp_path / "whole" / "out.npy"))
    assert {path.name for path in tmp_path.glob("out*")} == {"out.npy", "out.npy.manifest.json"}
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.load(tmp_path / "whole" / "out.npy"))


@pytest.mark.skipif(not PROC.exists(), reason="a folder of Linux in which nobody makes files")
def test_where_no_lock_can_be_made_the_reason_is_told():
    assert "/proc/x.npy: cannot be written: " in bad("embed", "hi", "-o", PROC / "x.npy").error
