"""Tables of results on a terminal; those of tokens, vectors and searches have their own modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.fitted import DrawnTexts, Inputs
from bertcli.cli.display.screen import drawing, plain, show

if TYPE_CHECKING:
    from bertcli.tasks.results import Result
    from bertcli.tokenizing.columns import Encoded


T = TypeVar("T")

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
    names = dict.fromkeys(name for lines in rows for line in lines for name in line)
    columns = [name for name in names if name not in HIDDEN]
    numbers = {name for lines in rows for line in lines for name in line if _number(line[name])}
    drawn = table("text", *columns, figures=numbers)
    for name, column in zip(columns, drawn.columns[1:], strict=True):
        cells = (len(str(line.get(name, ""))) for lines in rows for line in lines)
        column.no_wrap |= max([len(name), *cells]) <= SHORT_CELL
    for result, lines in zip(results, rows, strict=True):
        text = shown(result)
        for line in lines or [{}]:
            drawn.add_row(text, *(cell(line.get(name)) for name in columns))
            text = Text()
    return drawn


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


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
