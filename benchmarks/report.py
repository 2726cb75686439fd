"""Results as a Markdown table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A title, the heads of the columns, and rows of names and numbers; None is a blank."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]


def markdown(table: Table) -> str:
    """Return a table as Markdown, its title above."""
    lines = [table.heads, ["---", *["---:"] * (len(table.heads) - 1)]]
    lines += [
        [cell(value, head) for value, head in zip(row, table.heads, strict=True)]
        for row in table.rows
    ]
    return "\n".join([f"**{table.title}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


def cell(value: Any, head: str) -> str:
    """Return a value as its column shows it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if "cosine" in head:
        return f"{value:.5f}"
    if "share" in head:
        return f"{value:.0%}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def document(
    about: Mapping[str, Any], left: Mapping[str, str], tables: Mapping[str, Sequence[Table]]
) -> str:
    """Return the whole report: machine, tables of each section, and who is missing."""
    versions = ", ".join(f"{name} {found}" for name, found in about["versions"].items())
    machine = f"{about['cpu']}, {about['cores']} cores ({', '.join(about['flags'])})"
    parts = [f"# bertcli and its peers, {about['date']}", "", machine + ".", "", versions + "."]
    for name, found in tables.items():
        parts += ["", f"## {name}"]
        for table in found:
            parts += ["", markdown(table)]
    if left:
        parts += ["", "Left out:", *(f"- {name}: {reason}" for name, reason in left.items())]
    return "\n".join(parts) + "\n"


def write(folder: Path, text: str, results: Mapping[str, Any]) -> None:
    """Write both forms into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "embedding.md").write_text(text, "utf-8")
    (folder / "embedding.json").write_text(json.dumps(results, indent=1), "utf-8")
