"""Write a man page for each command, from the same descriptions as --help.

    python scripts/make_man.py [FOLDER]  # default: build/man
    man -M build/man bertcli-embed

Pages have no date, so that the same version gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from bertcli.cli.app import build
from bertcli.cli.display.help import MAX_WIDTH, panels_of, split_docstring
from bertcli.versions import __version__

ROOT = Path(__file__).parents[1]
STATUS = (
    ("0", "Done."),
    ("1", "Failed on this input or model, or a record was skipped."),
    ("2", "Wrong usage."),
    ("130", "Interrupted."),
)


def roff(text: str) -> str:
    """Return a text with the characters escaped that roff interprets."""
    escaped = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    )
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def section(title: str, *lines: str) -> list[str]:
    """Return a section of a page."""
    return [f'.SH "{roff(title.upper())}"', *lines]


def definitions(rows: list[tuple[str, str]]) -> list[str]:
    """Return rows of a name and its description."""
    lines = []
    for name, description in rows:
        lines += [".TP", f"\\fB{roff(name)}\\fR", roff(description) or "\\&"]
    return lines


def page_of(context: typer.Context) -> str:
    """Return the man page of a command."""
    command: Any = context.command
    path = context.command_path
    summary, notes, examples = split_docstring(command.help or "")
    arguments = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{roff(path.upper().replace(" ", "-"))}" 1 "" "bertcli {__version__}"',
        *section("Name", f"{roff(path.replace(' ', '-'))} \\- {roff(summary.rstrip('.'))}"),
        *section("Synopsis", f"\\fB{roff(path)}\\fR {roff(arguments)}"),
    ]
    if notes:
        paragraphs = [roff(note) for note in notes]
        lines += section("Description", "\n.PP\n".join(paragraphs))
    for title, rows in panels_of(context, everything=True).items():
        lines += section(title, *definitions(rows))
    if examples:
        lines += section("Examples", ".nf", *map(roff, examples), ".fi")
    lines += section("Exit status", *definitions(list(STATUS)))
    return "\n".join(lines) + "\n"


def contexts(command: Any, name: str, parent: Any = None) -> list[typer.Context]:
    """Return the contexts of a command and of its subcommands."""
    context = command.context_class(command, info_name=name, parent=parent)
    context.max_content_width = MAX_WIDTH
    found = [context]
    for inner_name, inner in getattr(command, "commands", {}).items():
        found += contexts(inner, inner_name, context)
    return found


def main(folder: Path) -> None:
    """Write the pages."""
    pages = folder / "man1"
    pages.mkdir(parents=True, exist_ok=True)
    for context in contexts(get_command(build()), "bertcli"):
        name = context.command_path.replace(" ", "-")
        (pages / f"{name}.1").write_text(page_of(context), "utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "man")
