"""Run commands as users do: `main(argv)` with captured output, or a separate process."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from typer.main import get_command

from bertcli.cli import app
from bertcli.cli.app import main
from bertcli.embedding.options import EmbedOptions
from bertcli.model_folder import tokenizer_files

PROGRAM = [sys.executable, "-m", "bertcli"]
PACKAGE = Path(__file__).parents[2]
TINY = PACKAGE / "samples" / "tiny-bert"
FOREIGN = ("BERTCLI_", "_BERTCLI", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TTY_")
FOREIGN += ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")  # users' Python caches bytecode
# Output of `bertcli tokenize hello`.
HELLO = '{"input_ids":[101,7592,102],"token_type_ids":[0,0,0],"attention_mask":[1,1,1]}\n'
BACKEND = ""  # in this process, "" is torch, as reference; other processes use the default
DEADLINE = 60  # seconds, to fail instead of hanging
# For processes with a limit on file sizes, which would store truncated bytecode.
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}


on_torch = partial(EmbedOptions, backend="torch")  # in this process


class Result(NamedTuple):
    """The exit code, stdout and stderr of a command."""

    code: int
    stdout: bytes
    err: str

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def rows(self) -> list[Any]:
        """The lines of stdout as JSON."""
        return [json.loads(line) for line in self.out.removesuffix("\n").split("\n") if self.out]

    @property
    def ids(self) -> list[list[int]]:
        return [row["input_ids"] for row in self.rows]

    @property
    def error(self) -> str:
        """The error message, after checking that stderr has only it and at most one hint."""
        lines = self.err.splitlines()
        assert self.code in (1, 2), self
        assert [line.partition(": ")[0] for line in lines] in (["error"], ["error", "hint"]), lines
        return lines[0].removeprefix("error: ")

    @property
    def hint(self) -> str:
        assert self.error
        return self.err.splitlines()[1].removeprefix("hint: ")


def jsonl(rows: Iterable[Any]) -> str:
    """Return rows as lines of JSON."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_in(path: Path) -> list[Any]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def json_in(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text("utf-8"))


def put_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value), "utf-8")


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the environment for a test, without a developer's settings for bertcli or Rich."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    fixed = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    fixed["BERTCLI_BACKEND"] = BACKEND or "auto"
    return kept | fixed | {"TERM": "dumb"} | dict(more)


@cache
def built(names: tuple[str, ...], build: Any = app.build) -> Any:
    """Return the command line with these commands, cached, as building it takes 10 ms."""
    return get_command(build(names))


@cache
def read_once(path: Path, read: Any = tokenizer_files._read_json) -> Any:
    """Return a shared tokenizer, as reading the default one takes 20 ms."""
    return read(path)


def read_tokenizer(path: Path, read: Any = tokenizer_files._read_json) -> Any:
    """Return the tokenizer in a file. Installed ones, which no test changes, are cached."""
    return (read_once if "site-packages" in path.parts else read)(path)


def call(*argv: Any, stdin: bytes | str = b"", **env: str) -> Result:
    """Run a command in this process."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    backend = {"BERTCLI_BACKEND": BACKEND or "torch"}
    helped = len(argv) < 2 or {"-h", "--help", "help"} & {*argv}  # help changes the options
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment(backend | env), clear=True),
        mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8")),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(tokenizer_files, "_read_json", read_tokenizer),
        mock.patch.object(app, "build", app.build if helped else lambda names: built((*names,))),
    ):
        code = main([str(argument) for argument in argv])
    return Result(code, out.buffer.getvalue(), err.buffer.getvalue().decode())


def inspected(*argv: Any, **env: str) -> tuple[int, str, str]:
    """Run `bertcli inspect` in this process; return its exit code, stdout and stderr."""
    done = call("inspect", *argv, **env)
    return done.code, done.out, done.err


def report(*argv: Any) -> Any:
    """Return the report of `bertcli inspect` as JSON, after checking that it has no warnings."""
    return json.loads(good("inspect", *argv, "--json").out)


def good(*argv: Any, stdin: bytes | str = b"", **env: str) -> Result:
    """Run a command, and check that it succeeds without messages."""
    done = call(*argv, stdin=stdin, **env)
    assert (done.code, done.err) == (0, ""), done
    return done


def bad(*argv: Any, code: int = 1, stdin: bytes | str = b"", **env: str) -> Result:
    """Run a command, and check that it fails with an error, at most one hint, and no data."""
    done = call(*argv, stdin=stdin, **env)
    assert (done.code, done.out) == (code, ""), done
    assert done.error
    return done


def start(*argv: Any, env: Mapping[str, str] = {}, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a separate process. Streams that are not given are pipes."""
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*PROGRAM, *map(str, argv)], env=environment(env), **(ends | options))


def process(*argv: Any, stdin: bytes | str = b"", env: Mapping[str, str] = {}, **options: Any):
    """Run a separate process to its end."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    with start(*argv, env=env, **options) as running:
        try:
            out, err = running.communicate(given, timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
    return Result(running.returncode, out or b"", (err or b"").decode())


# Runs the command line, and sends itself a signal after so many commits of its output.
STRUCK = """
import os, signal, sys
from bertcli.__main__ import run
from bertcli.runs.run_folder import RunWriter

left, name = int(sys.argv.pop(1)), sys.argv.pop(1)
commit = RunWriter.commit

def strike(self, state):
    global left
    commit(self, state)
    left -= 1
    if not left:
        os.kill(os.getpid(), getattr(signal, name))

RunWriter.commit = strike
run()
"""


def struck(name: str, *argv: Any, journals: int = 2) -> int:
    """Return the exit code of a separate process that gets a signal during its work."""
    program = [sys.executable, "-c", STRUCK, str(journals), name, *map(str, argv)]
    return subprocess.run(program, env=environment(), timeout=DEADLINE).returncode


def shell(script: str, *, cwd: Path, env: Mapping[str, str] = {}) -> Result:
    """Run a line of bash in which `bertcli` is the command."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "bertcli")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bertcli "$@"\n')
        program.chmod(0o755)
        found = environment(env)
        found["PATH"] = f"{folder}{os.pathsep}{found['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=cwd,
            env=found,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE,
        )
    return Result(done.returncode, done.stdout, done.stderr.decode())


def ids_of(*texts: Any) -> list[list[int]]:
    """Return the token ids of texts with default options, for comparison."""
    return good("tokenize", "--", *texts).ids


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    """Return the bytes of all files below a folder, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def until(condition):
    """Wait until a condition is true; fail after ``DEADLINE`` seconds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


LAUNCHER = """if True:
    import os, subprocess, sys
    running = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    print(usage.ru_maxrss)
    sys.exit(running.returncode)
"""


def peak(*argv: Any, code: int = 0) -> float:
    """Return the peak memory of a run in MB.

    Linux counts the memory of the parent at the start of a process, so a small one starts it.
    """
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", "bertcli", *map(str, argv)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE)
    assert done.returncode == code, done
    return int(done.stdout) / (1 << 20 if sys.platform == "darwin" else 1 << 10)
