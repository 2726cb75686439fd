"""What people see of the results of task heads, drawn with Rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.screen import plain
from bertcli.tasks.results import Result, flat_rows

HIDDEN = ("id", "truncated")


def results_table(results: Sequence[Result]) -> Table:
    """Draw results, an item a row; the text stands beside its first one."""
    rows = [list(flat_rows(result)) for result in results]
    names = dict.fromkeys(name for some in rows for line in some for name in line)
    columns = [name for name in names if name not in HIDDEN]
    numbers = {name for some in rows for line in some for name in line if _number(line[name])}
    table = Table(box=SIMPLE_HEAD)
    table.add_column("text", overflow="fold")
    for name in columns:
        right = "right" if name in numbers else "left"
        table.add_column(name, justify=right, overflow="fold")  # type: ignore[arg-type]
    for result, some in zip(results, rows, strict=True):
        said = _text(result)
        for line in some or [{}]:
            table.add_row(said, *(_cell(line.get(name)) for name in columns))
            said = Text()
    return table


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _cell(value: Any) -> Text:
    if value is None:
        return Text()
    return plain(f"{value:.4f}" if isinstance(value, float) else str(value))


def _text(result: Result) -> Text:
    record = result.record
    parts = [part for part in (record.text, record.pair) if part is not None]
    words = [" ".join(part) if isinstance(part, list) else part for part in parts]
    return plain(" | ".join(words))
