"""The README is true: its commands run and print what it shows.

`python tests/test_readme.py` writes what they print now into the README.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DECIMAL = re.compile(r"-?\d+\.\d+")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def sessions():
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        yield COMMAND.findall(block)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return furnished(tmp_path_factory.mktemp("readme"))


def furnished(folder):
    """Put the samples into a folder, and a `bertcli` that is this package."""
    shutil.copytree(ROOT / "samples", folder / "samples")
    programs = folder / "bin"
    programs.mkdir()
    for name, call in {"bertcli": "-m bertcli", "python": ""}.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        script.chmod(0o755)
    return folder


def run(command, place, shown):
    """Return what a command prints now, as far as it is shown: "..." stands for the rest."""
    environment = os.environ | {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return [*lines[: len(shown) - 1], "..."] if shown[-1:] == ["..."] else lines


def alike(line, expected):
    """Tell whether a line is as expected, but for last digits: CPUs differ in them."""
    if DECIMAL.sub("", line) != DECIMAL.sub("", expected):
        return False
    numbers = (list(map(float, DECIMAL.findall(text))) for text in (line, expected))
    return all(abs(one - other) < 2e-3 for one, other in zip(*numbers, strict=True))


@pytest.mark.parametrize("session", list(sessions()), ids=lambda session: session[0][0][:40])
def test_what_it_shows_is_what_happens(session, place):
    for command, shown in session:
        expected = [line.rstrip() for line in shown.splitlines()]
        found = run(command, place, expected)
        assert len(found) == len(expected), command
        assert [
            line for line, was in zip(found, expected, strict=True) if not alike(line, was)
        ] == []


def test_the_python_example_runs(place):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    found = subprocess.run(
        [sys.executable, "-c", code[1]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[101, 1045, 2293, 17953, 2361, 999, 102]\n"


def test_ci_runs_the_command_of_the_readme():
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_command_is_in_the_readme():
    from bertcli.cli.app import COMMANDS

    assert [name for name in COMMANDS if f"bertcli {name}" not in README] == []


def test_samples_are_what_their_script_makes(tmp_path):
    script = ROOT / "samples" / "make_model.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (ROOT / "samples" / "tiny-bert" / made.name).read_bytes()


def renew():
    with tempfile.TemporaryDirectory() as folder:
        place = furnished(Path(folder))

        def again(match):
            command, shown = match.groups()
            return "\n".join([f"$ {command}", *run(command, place, shown.splitlines())]) + "\n"

        text = re.sub(
            r"(?<=```console\n).*?(?=```)",
            lambda block: COMMAND.sub(again, block[0]),
            README,
            flags=re.DOTALL,
        )
    (ROOT / "README.md").write_text(text, "utf-8")


if __name__ == "__main__":
    renew()
