"""What people see of vectors that are compared or searched, drawn with Rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from bertcli.cli.display.screen import drawing, plain
from bertcli.vectors.agreement import Comparison


def show_comparison(found: Comparison) -> None:
    """Draw a comparison."""
    with drawing() as draw:
        for picture in comparison_view(found):
            draw(picture)


def show_matches(rows: Sequence[dict[str, Any]]) -> None:
    """Draw the results of a search."""
    with drawing() as draw:
        for picture in matches_view(rows):
            draw(picture)


def comparison_view(found: Comparison) -> Iterator[RenderableType]:
    """Draw how far apart two files are, and their worst rows."""
    numbers = Table.grid(padding=(0, 2))
    numbers.add_column(style="dim")
    numbers.add_column(overflow="fold")
    kinds = [*found.dtype, "", ""]
    numbers.add_row("a", f"{found.a}  {kinds[0]}")
    numbers.add_row("b", f"{found.b}  {kinds[1]}")
    numbers.add_row("shape", " x ".join(map(str, found.shape)))
    numbers.add_row("identical", "yes" if found.identical else "no")
    for name in ("max_abs", "mean_abs", "cosine_min", "cosine_mean"):
        value = getattr(found, name)
        shown = "-" if value is None else _shown(name, value)
        numbers.add_row(name.replace("_", " "), shown)
    if found.not_finite:
        numbers.add_row("NaN or infinite", f"{found.not_finite:,} rows", style="red")
    yield numbers
    if found.worst and not found.identical:
        table = Table("row", "max abs", "cosine", box=SIMPLE_HEAD, title="worst rows")
        for row in found.worst:
            table.add_row(
                f"{row.row}", _shown("max_abs", row.max_abs), _shown("cosine", row.cosine)
            )
        yield table


def matches_view(rows: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """Draw the nearest texts of each query, the nearest first."""
    for query in dict.fromkeys(row["query"] for row in rows):
        table = Table(box=SIMPLE_HEAD, title=plain(query), title_justify="left", title_style="bold")
        for name in ("score", "row", "id"):
            table.add_column(name, justify="right")
        table.add_column("text", overflow="fold")
        for row in rows:
            if row["query"] == query:
                name = "" if row.get("id") is None else str(row["id"])
                score = f"{row['score']:.4f}"
                table.add_row(score, str(row["row"]), name, str(row["text"]))
        yield table


def _shown(name: str, value: float) -> str:
    return f"{value:.9f}" if name.startswith("cosine") else f"{value:.6g}"
