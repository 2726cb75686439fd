"""Tables and facts on a terminal, drawn by Rich: safe for untrusted text, folded to the width.

`table` has rows, `facts` have names beside values, and `opened_table` is the writer of the format
"table". Figures are in one line, whatever the width; all else is folded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bertcli.errors import counted
from bertcli.files.printable import printable
from bertcli.files.tables import fields_of, lines_of
from bertcli.files.writers import open_output
from bertcli.tasks.results import Result, flat_rows

if TYPE_CHECKING:
    from bertcli.tokenizing.columns import Encoded
    from bertcli.tokenizing.tokenizer import Tokenizer

BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+")
PIPED = 100  # columns, if the width is unknown


class Screen(Console):
    """A console that shows every text as it is: `[bold]` in brackets, and U+FFFD for ESC.

    Cells and titles given as str are filtered before they are measured; what comes in a Text is
    filtered by `plain` then, and as a last resort when it is drawn.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(
            stderr=stderr, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False
        )
        if not self.width:  # COLUMNS=0, as some programs tell those that they start
            self.width = PIPED

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text without control characters, in one line."""
        return super().render_str(printable(in_one_line(text)), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is drawn, without control characters in any text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if not control and not text.isprintable():  # "\n" ends the lines that Rich has laid out
                text = "\n".join(map(printable, text.split("\n")))
            yield Segment(text, style, control)


def plain(text: str, style: str = "") -> Text:
    """Return text from outside, filtered, in a style."""
    return Text(printable(in_one_line(text)), style)


def in_one_line(text: str) -> str:
    """Return a text with spaces for line feeds and tabs."""
    return BREAKS.sub(" ", text)


@contextmanager
def drawing() -> Iterator[Screen]:
    """Yield what prints on stdout; a full disk or a closed pipe ends it like any other format."""
    with open_output(None, drawn=True):
        told = sys.stdout.isatty() or "COLUMNS" in os.environ
        yield Screen(width=None if told else PIPED)


def show(*pictures: RenderableType) -> None:
    """Draw on stdout."""
    with drawing() as screen:
        for picture in pictures:
            screen.print(picture)


MOST = 40  # rows that are drawn of a run, tokens or words of a text
LONGEST = 1000  # characters of a text
SHORT_CELL = 14  # characters of a word or label, which is not folded
NAMES, LONGEST_NAME = ("id", "file"), 20  # columns of names, and their characters
HEADED: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}
Inputs = Sequence[str | Path]  # files that are read, "-" for stdin


def table(*names: str, figures: Iterable[str] = (), **look: Any) -> Table:
    """Return a table with these columns; ``figures`` stay in one line, other long cells are folded.

    Figures are aligned right. Names take no room of a text.
    """
    drawn = Table(**{"box": SIMPLE_HEAD, **HEADED, **look})
    for name in names:
        drawn.add_column(
            name,
            justify="right" if name in figures else "left",
            overflow="fold",
            no_wrap=name in figures,
            max_width=LONGEST_NAME if name in NAMES and "text" in names else None,
        )
    return drawn


def facts(rows: Iterable[tuple[str | Text, Any]], *, width: int = 0, right: bool = False) -> Table:
    """Return names, at least ``width`` characters wide, beside their values."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", min_width=width, no_wrap=True)
    drawn.add_column(justify="right" if right else "left", overflow="fold")
    for name, value in rows:
        drawn.add_row(name, value)
    return drawn


def rows_table(rows: Sequence[Mapping[str, Any]], **look: Any) -> Table:
    """Draw rows of named values."""
    names = fields_of(lines_of([*map(dict, rows)]))
    cells = {name: [row.get(name, "") for row in rows] for name in names}
    figures = [name for name in names if any(isinstance(v, int | float) for v in cells[name])]
    drawn = table(*names, figures=figures, **look)
    for column, values in zip(drawn.columns, cells.values(), strict=True):
        column.no_wrap |= max(len(str(value)) for value in values) <= SHORT_CELL
    for row in zip(*cells.values(), strict=True):
        drawn.add_row(*map(cell, row))
    return drawn


def rows_view(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Draw rows of named values."""
    yield rows_table(rows)


def cell(value: Any) -> str:
    """Return a value as it stands in a cell."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else shortened(str(value))


def shortened(text: str, most: int = LONGEST) -> str:
    """Return a text, or how it begins."""
    return text if len(text) <= most else f"{text[:most]}…"


def shown(item: Encoded | Result) -> str:
    """Return the text of an item and its pair, or how they begin."""
    parts = [part for part in (item.record.text, item.record.pair) if part is not None]
    return shortened(
        " | ".join(" ".join(part) if isinstance(part, list) else part for part in parts)
    )


@contextmanager
def opened_table(
    inputs: Inputs, view: Callable[[Any], Iterable[RenderableType]]
) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Yield a function that draws rows, the first of a run; what is typed is answered all along."""
    typed = "-" in inputs and sys.stdin is not None and sys.stdin.isatty()
    left, more = inf if typed else MOST, 0
    with drawing() as screen:

        def write(rows: Sequence[Any]) -> None:
            nonlocal left, more
            rows = lines_of(rows)
            first = rows[: int(min(left, len(rows)))]
            left, more = left - len(first), more + len(rows) - len(first)
            for picture in view(first) if first else ():
                screen.print(picture)

        yield write
        for note in not_drawn(more):
            screen.print(note)


def not_drawn(more: int, what: str = "more") -> list[Text]:
    """Say how many were not drawn, if any."""
    return [Text(f"... {more:,} {what}; -f jsonl for all", "dim")] if more else []


# --- tokens ---


TABLE_COLUMNS = (
    "input_ids",
    "token_type_ids",
    "attention_mask",
    "special_tokens_mask",
    "tokens",
    "offset_mapping",
)
BAR = 40  # characters of the longest bar of a histogram
COUNTED = ("texts", "tokens", "p50", "p99", "max", "longer")  # of the summary of a file


def token_views(tokenizer: Tokenizer, records: Sequence[Encoded]) -> Iterator[Table]:
    """Draw records, a table each."""
    return (token_table(encoded, tokenizer) for encoded in records)


def token_table(encoded: Encoded, tokenizer: Tokenizer) -> Table:
    """Draw one record, a token a row."""
    columns = ("#", "id", "token", "type", "mask", "span", "special")
    drawn = table(*columns, figures=("#", "id", "type", "mask", "span"), title=shown(encoded))
    names = {token: role.removesuffix("_token") for role, token in tokenizer.roles.items()}
    rows = zip(*(encoded.columns[name] for name in TABLE_COLUMNS), strict=True)
    for at, (index, kind, mask, special, token, span) in enumerate(islice(rows, MOST)):
        is_special = token in names and (special or index in tokenizer.special_ids().values())
        drawn.add_row(
            str(at),
            str(index),
            plain(token, "cyan" if is_special else ""),
            str(kind),
            str(mask),
            "" if special else f"{span[0]}-{span[1]}",
            names[token] if is_special else "",
            style="" if mask else "dim",
        )
    notes = [f"{counted(encoded.cut, 'token')} dropped"] if encoded.cut else []
    if encoded.length > MOST:
        notes.append(f"... {counted(encoded.length - MOST, 'more token')}; -f jsonl for all")
    drawn.caption = "\n".join(notes) or None
    return drawn


def stats_view(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Draw a corpus summary: numbers, a histogram of lengths, the commonest unknown words."""
    names = ("texts", "tokens", "words", "pieces_per_word")
    rows = [(name.replace("_", " "), f"{summary[name]:,}") for name in names]
    rows += [(f"length {name}", f"{value:,}") for name, value in summary["length"].items()]
    share = f"{summary['longer']:,} ({summary['longer_share']:.2%})"
    rows.append((f"longer than {summary['max_length']}", share))
    rows.append(("unknown words", f"{summary['unknown']:,} ({summary['unknown_share']:.2%})"))
    yield facts(rows, right=True)
    if bars := summary["histogram"]:
        yield Text()
        most = max(bar["texts"] for bar in bars)
        drawn = Table.grid("", "", "", padding=(0, 1))
        for bar in bars:
            low, high, texts = bar["from"], bar["to"], bar["texts"]
            label = str(low) if low == high else f"{low}-{high}"
            drawn.add_row(label, Bar(most, 0, texts, width=BAR, color="cyan"), f"{texts:,}")
        yield drawn
    if summary["unknown_words"]:
        yield Text()
        unknown = ", ".join(f"{word} {count}" for word, count in summary["unknown_words"].items())
        yield plain(f"most unknown: {unknown}")


def counts_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Draw counts or summaries of files, the total last."""
    counts = [{**row, **row.get("length", {}), "file": row["file"] or "total"} for row in rows]
    names = [name for name in COUNTED if name in counts[0]]
    drawn = table("file", *names, figures=names)
    for row in counts:
        drawn.add_row(row["file"], *(f"{row[name]:,}" for name in names))
    return drawn


# --- results ---


HIDDEN = ("id", "truncated")  # fields of task results that are not drawn


def results_view(results: Sequence[Result]) -> Iterator[Table]:
    """Draw results, one item per row; the text is in the row of its first item."""
    rows = []
    for result in results:
        text = shown(result)
        for line in flat_rows(result):
            fields = {name: value for name, value in line.items() if name not in HIDDEN}
            rows.append({"text": text, **fields})
            text = ""
    yield rows_table(rows)


def models_view(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Draw what is on this machine, and what is known of it."""
    drawn = []
    for row in rows:
        width = f"width {row['width']}" if row["width"] else ""
        about = ", ".join(filter(None, (row["family"], width, row["license"])))
        if not row["loads"]:
            about = f"does not load: {row['problem'].removeprefix(row['model'] + ': ')}"
        size = f"{row['bytes'] / 1e6:,.1f} MB"
        name = row["model"] or row["path"]
        drawn.append({"model": name, "state": row["state"], "size": size, "about": about})
    yield rows_table(drawn)


WIDEST = 12  # labels of a confusion matrix that is shown


def evaluation_view(reports: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Draw the only report: metrics, classes and the confusion."""
    (report,) = reports

    def number(*values: float) -> str:
        return " to ".join(f"{value:.4f}" for value in values)

    rows = []
    for name, interval in report["intervals"].items():
        row = {"metric": name.replace("_", " "), "value": report[name]}
        row["95 % interval"] = number(*interval)
        if other := report.get("compare"):
            difference, interval = other["differences"][name], other["intervals"][name]
            row |= {"other": other[name], "better by": f"{difference:+.4f}"}
            row["95 %"] = number(*interval)
        rows.append(row)
    yield rows_table(rows, title=f"{report['task']}, {counted(report['n'], 'example')}")
    if "per_class" in report:
        classes = report["per_class"].items()
        yield rows_table([{"label": name, **values} for name, values in classes])
        if len(labels := report["labels"]) <= WIDEST:
            counts = zip(labels, report["confusion"], strict=True)
            confusion = table("true \\ predicted", *labels, figures=labels, title="confusion")
            for label, row in counts:
                confusion.add_row(label, *(f"{count:,}" for count in row))
            yield confusion
        yield f"calibration error {report['calibration']['error']:.4f}"
