"""Tables that fit their screen: a figure is whole or not there, and many rows are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.console import stdin_is_terminal
from bertcli.cli.display.screen import plain

T = TypeVar("T")
Inputs: TypeAlias = Sequence[str | Path]  # files that are read, "-" for stdin

MOST_TEXTS = 20  # that are drawn of a run
MOST_ROWS = 100  # and the rows after which no other text is begun
LEAST_TEXT = 28  # characters of a text that previews leave to it
NARROWEST = 16  # characters that are worth being shown of a text
SHORTEST = 8  # characters of a text, whatever the width


@dataclass
class FittedTable:
    """Rows of a text, figures, and numbers that are a preview of more.

    Figures are never cut. Where the screen is too narrow, previews go first, the last number
    first, then the text is shortened.
    """

    names: Sequence[str]  # of the figures, the text among them at ``text_at``
    text_at: int
    longest: int = 40  # characters of a text
    title: Text | None = None
    rows: list[tuple[list[Text], list[str]]] = field(default_factory=list)

    def add_row(self, cells: Sequence[str | Text], preview: Sequence[str] = ()) -> None:
        """Add the cells of a row, the text among them, and numbers before "..."."""
        texts = [cell if isinstance(cell, Text) else plain(cell) for cell in cells]
        self.rows.append((texts, list(preview)))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Draw the table for the width there is."""
        widths = [
            max([cell_len(name), *(cells[at].cell_len for cells, _ in self.rows)])
            for at, name in enumerate(self.names)
        ]
        text = min(widths[self.text_at], self.longest)
        widths[self.text_at] = 0
        most = max((len(preview) for _, preview in self.rows), default=0)
        for numbers in range(most, -1, -1):
            shown = [" ".join([*preview[:numbers], "..."]) for _, preview in self.rows]
            last = max(map(cell_len, shown), default=0) if numbers else 0
            columns = [*widths, last] if numbers else widths
            room = options.max_width - sum(columns) - 3 * len(columns) - 1  # 2 beside, 1 between
            if room >= min(text, LEAST_TEXT):
                break
        widths[self.text_at] = max(min(text, room), min(text, SHORTEST))
        yield self._drawn(widths, shown if numbers else None)

    def _drawn(self, widths: Sequence[int], previews: Sequence[str] | None) -> Table:
        drawn = Table(box=SIMPLE_HEAD, title=self.title, title_justify="left", title_style="bold")
        for at, (name, width) in enumerate(zip(self.names, widths, strict=True)):
            side: Any = "left" if at == self.text_at else "right"
            drawn.add_column(name, justify=side, width=width, no_wrap=True)
        if previews is not None:
            drawn.add_column("", no_wrap=True)
        for number, (cells, _) in enumerate(self.rows):
            drawn.add_row(*cells, *([previews[number]] if previews is not None else []))
        return drawn


@dataclass
class Bar:
    """A bar of a share of the room there is."""

    share: float
    longest: int
    style: str = ""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Draw the bar."""
        yield Text("█" * round(min(self.longest, options.max_width) * self.share), self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how narrow and how wide a bar may be."""
        return Measurement(1, min(self.longest, options.max_width))


@dataclass
class DrawnTexts:
    """Takes the first texts of a run, which are drawn, and counts the others."""

    texts: int | None = MOST_TEXTS  # None: all
    rows: int = MOST_ROWS
    taken: int = 0
    more: int = 0

    @classmethod
    def of(cls, paths: Inputs) -> DrawnTexts:
        """Return the limit for inputs; what is typed is answered, however long that goes on."""
        return cls(None if "-" in paths and stdin_is_terminal() else MOST_TEXTS)

    def take(self, items: Sequence[T], height: Callable[[T], int] = lambda item: 1) -> list[T]:
        """Return the items that are drawn; ``height`` is the number of their rows."""
        taken = []
        for item in items:
            if self.texts is not None and (self.taken >= self.texts or self.rows <= 0):
                break
            self.taken += 1
            self.rows -= height(item)
            taken.append(item)
        self.more += len(items) - len(taken)
        return taken

    def rest(self, what: str = "more") -> list[Text]:
        """Say how many were not drawn, if any."""
        return [Text(f"... {self.more:,} {what}; -f jsonl for all", "dim")] if self.more else []
