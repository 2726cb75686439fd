"""Results as tables on a terminal; those of tokens, vectors and searches have their own modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.console import stdin_is_terminal
from bertcli.cli.display.screen import drawing, plain, show
from bertcli.errors import counted

if TYPE_CHECKING:
    from bertcli.tasks.results import Result
    from bertcli.tokenizing.columns import Encoded


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


SHORT_CELL = 14  # characters of a word or label, which is not folded
NAMES, LONGEST_NAME = ("id", "source", "file"), 20  # columns of names, and their characters
MOST = 40  # tokens or words of a text that are drawn
MOST_CHARACTERS = 1000  # of a text above them
HIDDEN = ("id", "truncated")  # fields of task results that are not drawn
HEADED: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}


def table(
    *names: str, figures: Iterable[str] = (), right: Iterable[str] = (), **look: Any
) -> Table:
    """Return a table with these columns; ``figures`` stay in one line, other long cells are folded.

    Figures are aligned right, and so are the columns in ``right``. Names take no room of a text.
    """
    drawn = Table(box=SIMPLE_HEAD, **look)
    for name in names:
        side: Any = "right" if name in figures or name in right else "left"
        most = LONGEST_NAME if name in NAMES and "text" in names else None
        drawn.add_column(
            name, justify=side, overflow="fold", no_wrap=name in figures, max_width=most
        )
    return drawn


def pairs(
    rows: Iterable[tuple[str | Text, Any]], *, right: bool = False, width: int | None = None
) -> Table:
    """Return names, at least ``width`` characters wide, beside their values."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", min_width=width, no_wrap=True)
    drawn.add_column(justify="right" if right else "left", overflow="fold")
    for name, value in rows:
        drawn.add_row(name, value)
    return drawn


def shown(item: Encoded | Result) -> Text:
    """Return the text of an item and its pair, or how they begin."""
    parts = [part for part in (item.record.text, item.record.pair) if part is not None]
    return shortened(
        " | ".join(" ".join(part) if isinstance(part, list) else part for part in parts)
    )


def shortened(text: str, most: int = MOST_CHARACTERS) -> Text:
    """Return a text, or how it begins."""
    return plain(text if len(text) <= most else f"{text[:most]}…")


def show_batches(
    batches: Iterable[Sequence[T]],
    view: Callable[[Sequence[T]], RenderableType],
    inputs: Inputs,
    height: Callable[[T], int] = lambda item: 1,
) -> None:
    """Draw the first items that come of these inputs; ``height`` is the rows of one."""
    drawn = DrawnTexts.of(inputs)
    with drawing() as draw:
        for batch in batches:
            if first := drawn.take(batch, height):
                draw(view(first))
        for text in drawn.rest():
            draw(text)


def results_table(results: Sequence[Result]) -> Table:
    """Draw results, one item per row; the text is in the row of its first item."""
    from bertcli.tasks.results import flat_rows

    rows = [list(flat_rows(result)) for result in results]
    every_line = [line for lines in rows for line in lines]
    names = dict.fromkeys(name for line in every_line for name in line)
    columns = [name for name in names if name not in HIDDEN]
    numbers = {name for line in every_line for name in line if isinstance(line[name], int | float)}
    drawn = table("text", *columns, figures=numbers)
    for name, column in zip(columns, drawn.columns[1:], strict=True):
        cells = (len(str(line.get(name, ""))) for line in every_line)
        column.no_wrap |= max([len(name), *cells]) <= SHORT_CELL
    for result, lines in zip(results, rows, strict=True):
        text = shown(result)
        for line in lines or [{}]:
            drawn.add_row(text, *(cell(line.get(name)) for name in columns))
            text = Text()
    return drawn


def cell(value: Any) -> Text:
    """Return a value as it stands in a cell."""
    if value is None:
        return Text()
    return plain(f"{value:.4f}" if isinstance(value, float) else str(value))


def show_models(rows: Sequence[dict[str, Any]]) -> None:
    """Draw what is on this machine: under the name of each model, what there is of it."""
    named: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        named.setdefault(row["model"] or row["path"], []).append(row)
    drawn: list[RenderableType] = []
    for name, entries in named.items():
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=0)
        grid.add_column(no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for row in entries:
            grid.add_row("", row["state"], f"{row['bytes'] / 1e6:,.1f} MB", _known(row))
        drawn += [plain(name, "bold"), grid]
    show(Group(*drawn) if drawn else plain("no models"))


def _known(row: Mapping[str, Any]) -> Text:
    """Return what is known of a model."""
    if not row["loads"]:
        return plain(f"does not load: {row['problem'].removeprefix(row['model'] + ': ')}")
    width = f"width {row['width']}" if row["width"] else ""
    return plain(", ".join(filter(None, (row["family"], width, row["license"]))))


WIDEST = 12  # labels of a confusion matrix that is shown


def evaluation_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of a report: metrics, classes and the confusion."""
    other = report.get("compare")
    names = ["metric", "value", "95 %" if other else "95 % interval"]
    names += ["other", "better by", "95 %"] if other else []  # short: they fit 60 columns
    title = f"{report['task']}, {counted(report['n'], 'example')}"
    metrics = table(*names, figures=names[1:], title=title, **HEADED)
    metrics.columns[0].no_wrap = True
    for name, interval in report["intervals"].items():
        cells = [name.replace("_", " "), _measured(report[name]), _interval(interval)]
        if other:
            difference = other["differences"][name], other["intervals"][name]
            cells += [_measured(other[name]), f"{difference[0]:+.4f}", _interval(difference[1])]
        metrics.add_row(*cells)
    yield metrics
    if "per_class" in report:
        measures = ("precision", "recall", "f1")
        classes = table("label", *measures, "examples", figures=(*measures, "examples"))
        for name, values in report["per_class"].items():
            numbers = [_measured(values[measure]) for measure in measures]
            classes.add_row(name, *numbers, f"{values['support']:,}")
        yield classes
        if len(report["labels"]) <= WIDEST:
            confusion = Table("true \\ predicted", box=SIMPLE_HEAD, title="confusion", **HEADED)
            for name in report["labels"]:
                confusion.add_column(name, justify="right")
            for name, counts in zip(report["labels"], report["confusion"], strict=True):
                confusion.add_row(name, *(f"{count:,}" for count in counts))
            yield confusion
        yield plain(f"calibration error {report['calibration']['error']:.4f}")


def _measured(value: float) -> str:
    return f"{value:.4f}"


def _interval(edges: list[float]) -> str:
    return f"{edges[0]:.4f} to {edges[1]:.4f}"
