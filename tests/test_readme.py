"""README and docs are true: their commands and their Python run and print what they show.

`python tests/test_readme.py [PAGE...]` writes what they print now into the pages.

A block of commands (console) starts in a fresh folder with the samples. Python blocks of README are
independent of each other; those of another page run in order, in one process. Rows of a table with
the header `| transformers | bertcli |` are two expressions with equal values.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = [page for page in sorted(ROOT.glob("docs/*.md")) if page.name != "serve.md"]  # tests/server
PAGES = [README, *DOCS, ROOT / "samples" / "README.md"]
FOR_USERS = README.read_text("utf-8").partition("## Contributing")[0]  # see test_contributing.py
REVIEWS = b"id,text,stars\n1,A lovely film.,5\n2,Far too long.,2\n"  # a dataset for docs/formats.md
USER_LINES = 250  # of README, before "Contributing"
PAGE_CODE = ROOT / "tests" / "support" / "page_code.py"
DECIMAL = re.compile(r"-?\d+\.\d+")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
CONSOLE = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
PYTHON = re.compile(r"```python\n(?P<code>(?:.*\n)*?)(?P<printed>(?:# .*\n)*)```\n")
TABLE = re.compile(
    r"^\| (?P<theirs>transformers(?: 4)?) \| bertcli \|.*\n\|[-|: ]+\n(?P<rows>(?:\|.*\n)+)", re.M
)
ROW = re.compile(r"^\| `(?P<theirs>[^`]*)` \| `(?P<ours>[^`]*)` \|", re.M)


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def sessions():
    """Yield each page with the commands of each block, and what they print."""
    for page in PAGES:
        for block in CONSOLE.findall(page.read_text("utf-8")):
            commands = COMMAND.findall(block)
            yield pytest.param(commands, id=f"{name_of(page)}: {commands[0][0][:40]}")


def python_steps(page):
    """Return the steps of page_code.py for a page, each with what the page says it prints."""
    text = page.read_text("utf-8")
    found = []
    for match in PYTHON.finditer(text):
        printed = "".join(line[2:] for line in match["printed"].splitlines(keepends=True))
        found.append((match.start(), {"code": match["code"], "fresh": page == README}, printed))
    for table in TABLE.finditer(text):
        for row in ROW.finditer(table["rows"]):
            theirs = row["theirs"] if table["theirs"] == "transformers" else ""
            step = {"theirs": theirs, "ours": row["ours"]}
            found.append((table.start("rows") + row.start(), step, ""))
    return [(step, printed) for _, step, printed in sorted(found, key=lambda entry: entry[0])]


@pytest.fixture
def folder(tmp_path):
    return furnished(tmp_path)


def furnished(folder):
    """Put into a folder the samples, a dataset of the hub, and a `bertcli` that is this package."""
    shutil.copytree(ROOT / "samples", folder / "samples")
    from hub_cache import put_dataset

    put_dataset(folder / "hub", "me/reviews", {"data/train.csv": REVIEWS})
    programs = folder / "bin"
    programs.mkdir()
    for name, call in {"bertcli": "-m bertcli", "python": ""}.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        script.chmod(0o755)
    return folder


def environment(folder):
    return os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "100",
        "TERM": "dumb",
    }


def run(command, folder, shown, shell="bash"):
    """Return what a command prints now, as far as it is shown: "..." stands for the rest."""
    done = subprocess.run(
        [shell, "-c", command],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,  # against hanging only
    )
    # A page may show an error; its session then ends with the exit code: `bertcli ...; echo $?`.
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return [*lines[: len(shown) - 1], "..."] if shown[-1:] == ["..."] else lines


def run_python(page, folder):
    """Return what each step of a page prints now."""
    steps = [step for step, _ in python_steps(page)]
    done = subprocess.run(
        [sys.executable, PAGE_CODE],
        cwd=folder,
        env=environment(folder),
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def alike(line, expected):
    """Return True if a line is as expected, except for last digits, which depend on the CPU."""
    if DECIMAL.sub("", line) != DECIMAL.sub("", expected):
        return False
    numbers = (list(map(float, DECIMAL.findall(text))) for text in (line, expected))
    return all(abs(one - other) < 2e-3 for one, other in zip(*numbers, strict=True))


def check(session, folder, shell):
    for command, shown in session:
        expected = [line.rstrip() for line in shown.splitlines()]
        found = run(command, folder, expected, shell)
        assert len(found) == len(expected), f"{command}\n{found}"
        assert [
            line for line, was in zip(found, expected, strict=True) if not alike(line, was)
        ] == []


@pytest.mark.parametrize("session", list(sessions()))
def test_what_it_shows_is_what_happens(session, folder):
    check(session, folder, "bash")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
@pytest.mark.parametrize("session", [entry for entry in sessions() if "README.md: " in entry.id])
def test_the_same_happens_in_zsh(session, folder):
    check(session, folder, "zsh")


@pytest.mark.parametrize("page", [page for page in PAGES if python_steps(page)], ids=name_of)
def test_the_python_prints_what_the_page_says(page, folder):
    if "import transformers" in page.read_text("utf-8") and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")  # it has no release for Python 3.10
    outputs = run_python(page, folder)
    wrong = []
    for (step, expected), output in zip(python_steps(page), outputs, strict=True):
        same_count = output.count("\n") == expected.count("\n")
        if not same_count or not all(map(alike, output.splitlines(), expected.splitlines())):
            wrong.append(f"{step.get('code', '')}\n{output}")
        assert "Traceback" not in output, output
    assert "\n".join(wrong) == ""


def test_every_block_of_python_is_run():
    for page in PAGES:
        text = page.read_text("utf-8")
        assert text.count("```python\n") == len(PYTHON.findall(text)), page
        rows = [line for table in TABLE.finditer(text) for line in table["rows"].splitlines()]
        assert len(rows) == sum("ours" in step for step, _ in python_steps(page)), page


def test_it_is_short_and_its_lines_fit():
    assert len(FOR_USERS.splitlines()) <= USER_LINES
    for line in README.read_text("utf-8").splitlines():
        assert len(line) <= 120 or line.startswith("|"), line


def test_no_quotes_that_shells_take_for_history():
    """ "!" in double quotes is history in zsh and in an interactive bash."""
    files = [*(ROOT / "bertcli").rglob("*.py"), *ROOT.glob("*.md"), *ROOT.glob("[bds]*/*.md")]
    words = re.compile(r'"[^"\n]*NLP!"')
    found = []
    for path in files:
        text = path.read_text("utf-8")
        if path.suffix == ".py":
            tree = ast.parse(text)
            scopes = (ast.Module, ast.ClassDef, ast.FunctionDef)
            nodes = (node for node in ast.walk(tree) if isinstance(node, scopes))
            text = "\n".join(ast.get_docstring(node) or "" for node in nodes)
        found += [f"{path}: {quoted}" for quoted in words.findall(text)]
    assert found == []


def test_links_and_pictures_lead_to_files_and_headings():
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith("https://"):
                continue
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {link}"
            if heading:
                assert heading in headings(target), f"{page}: {link}"


def headings(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_ci_runs_the_commands_of_the_readme():
    text = README.read_text("utf-8")
    commands = re.findall(r"^(?:pip install|python3 -m venv .*pip install) .*$", text, re.MULTILINE)
    assert len(commands) == 2
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {*commands} <= {*map(str.strip, lines)}


def test_every_command_is_in_the_readme():
    from bertcli.cli.app import COMMANDS

    text = README.read_text("utf-8")
    assert [name for name in COMMANDS if f"bertcli {name}" not in text] == []


def test_every_page_of_docs_is_linked_from_the_readme():
    text = README.read_text("utf-8")
    assert [page.name for page in PAGES[1:] if f"({name_of(page)}" not in text] == []


def test_samples_are_what_their_script_makes(tmp_path):
    script = ROOT / "samples" / "make_model.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    for made in tmp_path.iterdir():
        assert made.read_bytes() == (ROOT / "samples" / "tiny-bert" / made.name).read_bytes()


def renew(page):
    """Write what the commands and the Python of a page print now into it."""

    def renewed_command(match):
        command, shown = match.groups()
        return "\n".join([f"$ {command}", *run(command, folder, shown.splitlines())]) + "\n"

    def renewed_session(block):
        nonlocal folder
        with tempfile.TemporaryDirectory() as scratch:
            folder = furnished(Path(scratch))
            return COMMAND.sub(renewed_command, block[0])

    folder = ROOT
    text = CONSOLE.sub(renewed_session, page.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        outputs = run_python(page, furnished(Path(scratch))) if python_steps(page) else []
    blocks = iter(
        output
        for (step, _), output in zip(python_steps(page), outputs, strict=True)
        if "code" in step
    )
    text = PYTHON.sub(
        lambda match: "".join(
            [
                "```python\n",
                match["code"],
                *(f"# {line}\n" for line in next(blocks).splitlines()),
                "```\n",
            ]
        ),
        text,
    )
    page.write_text(text, "utf-8")
    for (step, _), output in zip(python_steps(page), outputs, strict=True):
        if "ours" in step and output:
            print(output)


if __name__ == "__main__":
    sys.path.append(str(ROOT / "tests" / "support"))
    for chosen in map(Path.resolve, map(Path, sys.argv[1:])) if sys.argv[1:] else PAGES:
        renew(chosen)
