"""Make the pictures of README and docs from real runs: a terminal as SVG, two pages as PNG.

`make pictures`, or `python samples/make_pictures.py [FOLDER]`; needs torch, scikit-learn, Chromium.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 80
COMMANDS = (
    "bertcli tokenize 'I love NLP!'",
    "bertcli embed 'I love NLP!' 'I enjoy language technology.' 'It is raining.'",
)
BRIGHT = ((110, 160, 240), (200, 140, 230), (76, 195, 205), (210, 215, 222))
DARK = TerminalTheme(
    (20, 23, 29),
    (232, 235, 240),
    [*((49, 56, 68), (240, 113, 120), (127, 200, 120), (245, 190, 100)), *BRIGHT],
)
ATTENTION = ("inspect", "--attention", "The cat did not eat.", "--pair", "It was not hungry.")
CHUNKS = ("chunk", "-i", "docs/*.md", "--max-length", "160", "--at", "sentence")


def ran(command, folder):
    """Return what a command prints on a terminal."""
    env = os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    env |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    call = command.replace("bertcli", f"{sys.executable} -m bertcli", 1) + " -q -f table"
    done = subprocess.run(
        ["bash", "-c", call], env=env, cwd=folder, capture_output=True, check=True
    )
    return done.stdout.decode()


def terminal(path, folder):
    """Draw the commands and what they print."""
    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        screen.print(Text.assemble(("$ ", "dim"), command))
        lines = [line.rstrip() for line in ran(command, folder).splitlines()]
        screen.print(Text.from_ansi("\n".join(lines)))
    svg = screen.export_svg(title="bertcli", theme=DARK, unique_id="bertcli")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # nothing is fetched
    path.write_text(svg.replace("Fira Code", "Menlo, Consolas, monospace"), "utf-8")


def run(*arguments):
    """Run bertcli in the root of the checkout."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "bertcli", *map(str, arguments)]
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def photograph(page, path, size, folder):
    """Write what Chromium shows of a page, in a window of this size, as PNG."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("no Chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--disable-background-networking"]
    options += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=5000"]
    options += [f"--window-size={size}", f"--screenshot={path}"]
    subprocess.run([chromium, *options, page.as_uri()], check=True, capture_output=True)


def attention(path, folder):
    """Photograph the attention page."""
    page = Path(folder, "attention.html")
    run(*ATTENTION, "-o", page)
    photograph(page, path, "1060,980", folder)


def corpus_map(path, folder):
    """Photograph the map of the docs."""
    chunks = Path(folder, "docs.jsonl")
    page = Path(folder, "map.html")
    run(*CHUNKS, "-o", chunks)
    run("map", chunks, "-o", page)
    photograph(page, path, "1200,710", folder)


if __name__ == "__main__":
    pictures = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "samples" / "pictures").resolve()
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        terminal(pictures / "terminal.svg", scratch)
        attention(pictures / "attention.png", scratch)
        corpus_map(pictures / "map.png", scratch)
