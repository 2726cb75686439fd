"""The README is true: its commands run and print what it shows.

`python tests/test_readme.py` writes what they print now into the README.
"""

import ast
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
FOR_USERS = README.partition("## Contributing")[0]  # the rest is in test_contributing.py
DECIMAL = re.compile(r"-?\d+\.\d+")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def sessions():
    """Yield the blocks of commands. None needs what another has written: they run in any order."""
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        yield COMMAND.findall(block)


@pytest.fixture
def place(tmp_path):
    return furnished(tmp_path)


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


def run(command, place, shown, shell="bash"):
    """Return what a command prints now, as far as it is shown: "..." stands for the rest."""
    environment = os.environ | {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
        "TERM": "dumb",
    }
    done = subprocess.run(
        [shell, "-c", command],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,  # against hanging only
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return [*lines[: len(shown) - 1], "..."] if shown[-1:] == ["..."] else lines


def alike(line, expected):
    """Tell whether a line is as expected, but for last digits: CPUs differ in them."""
    if DECIMAL.sub("", line) != DECIMAL.sub("", expected):
        return False
    numbers = (list(map(float, DECIMAL.findall(text))) for text in (line, expected))
    return all(abs(one - other) < 2e-3 for one, other in zip(*numbers, strict=True))


def check(session, place, shell):
    for command, shown in session:
        expected = [line.rstrip() for line in shown.splitlines()]
        found = run(command, place, expected, shell)
        assert len(found) == len(expected), f"{command}\n{found}"
        assert [
            line for line, was in zip(found, expected, strict=True) if not alike(line, was)
        ] == []


@pytest.mark.parametrize("session", list(sessions()), ids=lambda session: session[0][0][:40])
def test_what_it_shows_is_what_happens(session, place):
    check(session, place, "bash")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
@pytest.mark.parametrize("session", list(sessions()), ids=lambda session: session[0][0][:40])
def test_the_same_happens_in_zsh(session, place):
    check(session, place, "zsh")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", FOR_USERS, re.DOTALL))
def test_the_python_examples_print_what_they_say(code, tmp_path):
    told = "".join(f"{line[2:]}\n" for line in code.splitlines() if line.startswith("# "))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == told != ""


def test_it_is_short_and_its_lines_fit():
    lines = README.splitlines()
    assert len(FOR_USERS.splitlines()) <= 280
    assert [line for line in lines if len(line) > 120] == []


def test_no_quotes_that_shells_take_for_history():
    """ "!" in double quotes is history in zsh and in an interactive bash."""
    files = [*(ROOT / "bertcli").rglob("*.py"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]
    words = re.compile(r'"[^"\n]*NLP!"')
    found = []
    for path in files:
        text = path.read_text("utf-8")
        if path.suffix == ".py":
            tree = ast.parse(text)
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
            text = "\n".join(ast.get_docstring(node) or "" for node in nodes)
        found += [f"{path}: {quoted}" for quoted in words.findall(text)]
    assert found == []


def test_its_pictures_are_there():
    for name in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / name).stat().st_size > 1000


def test_ci_runs_the_commands_of_the_readme():
    commands = re.findall(r"^(?:pip install|python3 -m venv) .*$", README, re.MULTILINE)
    assert len(commands) == 2
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {*commands} <= {*map(str.strip, lines)}


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
