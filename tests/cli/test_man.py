"""`make man` writes a man page for each command, with what --help shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
OPTION = re.compile(r"--[a-z][a-z-]+")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    script = ROOT / "scripts" / "make_man.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, folder], check=True, env=environment)
    return {page.stem.removeprefix("bertcli-"): page for page in folder.glob("man1/*.1")}


def test_every_command_has_a_page(pages):
    assert set(pages) == {path.stem for path in GOLDEN.glob("*.txt")}


def test_a_page_has_every_option_of_the_help(pages):
    for command, page in pages.items():
        shown = page.read_text("utf-8").replace("\\-", "-")
        options = {*OPTION.findall((GOLDEN / f"{command}.txt").read_text("utf-8"))}
        assert options <= {*OPTION.findall(shown)}, command
        assert "EXIT STATUS" in shown


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_pages_are_rendered_without_warnings(pages):
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n"]
    done = subprocess.run([*command, *pages.values()], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    plain = re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout)
    assert "bertcli-embed - Turn texts into vectors" in plain
    assert "cat texts.txt | bertcli embed -o vectors.npy" in plain
