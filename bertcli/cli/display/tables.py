"""Tables and facts on a terminal, drawn by Rich: safe for untrusted text, folded to the width.

`rows_table` draws rows, `facts` draws names beside values, and `opened_table` is the writer of the
output format "table". Numbers are never folded; other cells are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.passages import passage
from bertcli.errors import counted
from bertcli.formats.tables import fields_of, lines_of
from bertcli.formats.writers import open_output
from bertcli.io.printable import printable
from bertcli.records.input import ORIGIN
from bertcli.records.record import Record
from bertcli.tasks.results import Result, flat_rows
from bertcli.tokenizing.batch import PLACE

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.pooling import EmbeddedBlock, TokenVectors
    from bertcli.embedding.sparse import TermNames
    from bertcli.retrieval.duplicates import DuplicateGroup, Duplicates
    from bertcli.retrieval.search import Answer, Search
    from bertcli.tokenizing.batch import Encoded
    from bertcli.tokenizing.tokenizer import Tokenizer

PIPED = 100  # width in columns if it is unknown


class Screen(Console):
    """A console that shows any text literally: `[bold]` in brackets, and U+FFFD for ESC."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
        if not self.width:  # some programs set COLUMNS=0 for their child processes
            self.width = PIPED

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control characters in its text replaced."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if not control and not text.isprintable():  # "\n" separates lines of Rich's layout
                text = "\n".join(map(printable, text.split("\n")))
            yield Segment(text, style, control)


@contextmanager
def drawing() -> Iterator[Screen]:
    """Yield the screen of stdout. Errors of stdout are handled as for other output formats."""
    with open_output(None, drawn=True):
        told = sys.stdout.isatty() or "COLUMNS" in os.environ
        yield Screen(width=None if told else PIPED)


def show(*pictures: RenderableType) -> None:
    """Draw on stdout."""
    with drawing() as screen:
        for picture in pictures:
            screen.print(picture)


MOST = 40  # maximum rows of a run, tokens or words of a text that are drawn
LONGEST = 1000  # maximum characters of a text
SHORT_CELL = 14  # maximum characters of a word or label, which is not folded
NAMES = ("id", "file", "model")  # columns that users copy: not folded if there is room
UNGROUPED = ("id", "line", "input_ids")  # numeric columns without thousands separators
LEAST_TEXT = 30  # minimum width of a text column
HIT_LINES = 2  # maximum lines of a hit, in the width of the terminal
Inputs = Sequence[str | Path]  # input files; "-" is stdin


def facts(rows: Iterable[tuple[str, Any]]) -> Table:
    """Return a table of names and their values."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in rows:
        drawn.add_row(name.replace("_", " "), described(value))
    return drawn


def described(value: Any) -> str:
    """Return a JSON value as one line of readable text."""
    match value:
        case dict():
            return "; ".join(f"{name} {described(item)}" for name, item in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(described, value)) or "none"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
    return str(value)


def rows_table(
    rows: Sequence[Mapping[str, Any]], title: str | None = None, **look: Any
) -> RowsTable:
    """Return a table of rows, with numbers aligned right. Text columns have priority over names."""
    names = fields_of(map(dict, rows))
    cells = {name: [row.get(name, "") for row in rows] for name in names}
    look = {"box": SIMPLE_HEAD, "title_justify": "left", "title_style": "bold", **look}
    drawn = RowsTable(title=title, **look)
    for name, values in cells.items():
        is_figure = any(isinstance(value, int | float) for value in values)
        drawn.add_column(
            name,
            justify="right" if is_figure else "left",
            overflow="fold",
            no_wrap=is_figure
            or name in NAMES
            or max(len(str(value)) for value in values) <= SHORT_CELL,
        )
    for row in zip(*cells.values(), strict=True):
        drawn.add_row(*(cell(value, name) for name, value in zip(cells, row, strict=True)))
    return drawn


class RowsTable(Table):
    """A table that does not fold columns of names if the text columns have enough room."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table, folding the columns of names if it would not fit otherwise."""
        if not self.fits(console, options):
            for column in self.columns:
                if column.header in NAMES:
                    column.no_wrap = False
        yield from super().__rich_console__(console, options)
        if hidden := self.hidden_columns(console, options):
            line = f"... too narrow for {', '.join(hidden)}; a wider terminal shows them"
            yield Text(line, "dim", overflow="fold")

    def hidden_columns(self, console: Console, options: ConsoleOptions) -> list[str]:
        """Return the names of the columns that Rich leaves out for lack of width."""
        inner = options.update_width(options.max_width - self._extra_width)
        widths = self._calculate_column_widths(console, inner)
        padding = self.padding[1] + self.padding[3]
        columns = zip(self.columns, widths, strict=True)
        return [str(column.header) for column, width in columns if width <= padding]

    def fits(self, console: Console, options: ConsoleOptions) -> bool:
        """Return True if all unfolded columns fit beside at least ``LEAST_TEXT`` of text."""
        width = len(self.columns) + 1
        for column in self.columns:
            wanted = self._measure_column(console, options, column).maximum
            width += wanted if column.no_wrap else min(wanted, LEAST_TEXT)
        return width <= options.max_width


def rows_view(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Draw rows of named values."""
    yield rows_table(rows)


def cell(value: Any, column: str = "") -> str | Text:
    """Return the text of a value in a cell of a column."""
    if isinstance(value, Text):
        return value
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool) and column not in UNGROUPED:
        return f"{value:,}"
    return "" if value is None else shortened(str(value))


def shortened(text: str, most: int = LONGEST) -> str:
    """Return a text on one line, cut after ``most`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}…"


def kept_cells(record: Record, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the carried fields of a record for a table. Long values are shortened."""
    return {
        name: shortened(described(value), TEXT) if isinstance(value, str | list | dict) else value
        for name, value in (record.extra or {}).items()
        if name not in without
    }


def shown(item: Encoded | Result) -> str:
    """Return the text and the pair of an item, shortened."""
    texts = []
    for text in (item.record.text, item.record.pair):
        if text is not None:
            texts.append(" ".join(text) if isinstance(text, list) else text)
    return shortened(" | ".join(texts))


@contextmanager
def opened_table(
    inputs: Inputs, view: Callable[[Any], Iterable[RenderableType]]
) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Yield a function that draws the first rows of a run, or all rows for typed input."""
    typed = "-" in inputs and sys.stdin is not None and sys.stdin.isatty()
    left = inf if typed else MOST
    more = 0
    with drawing() as screen:

        def write(rows: Sequence[Any]) -> None:
            nonlocal left, more
            rows = lines_of(rows)
            first = rows[: int(min(left, len(rows)))]
            left = left - len(first)
            more = more + len(rows) - len(first)
            for picture in view(first) if first else ():
                screen.print(picture)

        yield write
        for note in not_drawn(more):
            screen.print(note)


def not_drawn(count: int, noun: str = "more") -> list[Text]:
    """Return a note with the number of items that were not drawn, if any."""
    return [Text(f"... {count:,} {noun}; -f jsonl for all", "dim")] if count > 0 else []


# --- tokens ---


TABLE_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "tokens", "offset_mapping")
COUNTED = ("texts", "tokens", "p50", "p99", "max", "longer")  # columns of a file summary


def token_views(tokenizer: Tokenizer, records: Sequence[Encoded]) -> Iterator[RenderableType]:
    """Draw one table per record, with one token per row."""
    roles = {token: role.removesuffix("_token") for role, token in tokenizer.roles.items()}
    for encoded in records:
        columns = zip(*(encoded.columns[name] for name in TABLE_COLUMNS), strict=True)
        rows = []
        for number, column in enumerate(islice(columns, MOST)):
            token_id, token_type, mask, token, (start, stop) = column
            role = roles.get(token, "")
            rows.append(
                {
                    "#": number,
                    "id": token_id,
                    "token": Text(token, "cyan" if role else ""),
                    "type": token_type,
                    "mask": mask,
                    "span": f"{start}-{stop}" if stop else "",
                    "special": role,
                }
            )
        kept = "".join(f"\n{name}: {value}" for name, value in kept_cells(encoded.record).items())
        yield rows_table(rows, shown(encoded) + kept)
        yield from not_drawn(encoded.length - MOST, "more tokens")


def stats_view(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Draw a corpus summary and a histogram of text lengths."""
    yield facts(item for item in summary.items() if item[0] != "histogram")
    yield rows_table(summary["histogram"])


def counts_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Draw counts or summaries of files, with the total in the last row."""
    counts = [{**row, **row.get("length", {})} for row in rows]
    names = [name for name in COUNTED if name in counts[0]]
    return rows_table(
        [{"file": row["file"] or "total"} | {name: row[name] for name in names} for row in counts]
    )


# --- results ---


HIDDEN = ("id", "truncated")  # fields of task results that are not shown


def results_view(results: Sequence[Result]) -> Iterator[Table]:
    """Draw results with one item per row. The text is in the row of its first item."""
    rows = []
    for result in results:
        text = shown(result)
        for line in flat_rows(result):
            fields = {name: value for name, value in line.items() if name not in HIDDEN}
            rows.append({"text": text, **fields})
            text = ""
    yield rows_table(rows)


def models_view(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Draw the models on this machine, with their state, size, family and problems."""
    names = ("model", "state", "bytes", "family", "width", "problem")
    yield rows_table([{name: row[name] for name in names} for row in rows])


WIDEST = 12  # maximum number of labels in a confusion matrix


def evaluation_view(reports: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Draw a single report: metrics, per-class scores and the confusion matrix."""
    (report,) = reports
    rows = []
    for name, (low, high) in report["intervals"].items():
        interval = f"{low:.4f} to {high:.4f}"
        metric = name.replace("_", " ")
        row = {"metric": metric, "value": report[name], "95 % interval": interval}
        if other := report.get("compare"):
            low, high = other["intervals"][name]
            row |= {"other": other[name], "better by": other["differences"][name]}
            row["95 %"] = f"{low:.4f} to {high:.4f}"
        rows.append(row)
    yield rows_table(rows, f"{report['task']}, {counted(report['n'], 'example')}")
    if "per_class" in report:
        classes = report["per_class"].items()
        yield rows_table([{"label": name, **values} for name, values in classes])
        if len(labels := report["labels"]) <= WIDEST:
            counts = zip(labels, report["confusion"], strict=True)
            names = [f"as {label}" for label in labels]
            confusion = [
                {"true": label} | dict(zip(names, row, strict=True)) for label, row in counts
            ]
            yield rows_table(confusion, "confusion")
        yield f"calibration error {report['calibration']['error']:.4f}"


PREVIEW, TERMS = 3, 8  # numbers shown of a vector, terms shown of a text
TEXT = 40  # maximum characters of a text beside numbers
FEW = range(2, 11)  # numbers of texts for which similarities are shown


def vector_views(
    blocks: Sequence[EmbeddedBlock], records: int, names: TermNames | None
) -> Iterator[RenderableType]:
    """Draw the first vectors of ``records`` texts, of their tokens, or their term weights."""
    encoded = [*islice(chain.from_iterable(block.batch for block in blocks), MOST)]
    vectors = [*islice(chain.from_iterable(block.vectors for block in blocks), MOST)]
    pieces = [*islice(chain.from_iterable(block.pieces or () for block in blocks), MOST)]
    of_texts = encoded and not pieces
    if of_texts:
        yield rows_table(
            [
                {"text": shortened(shown(item), TEXT), "tokens": item.length}
                | (numbers(vector) if names is None else terms(vector, names))
                | kept_cells(item.record)
                for item, vector in zip(encoded, vectors, strict=True)
            ]
        )
    else:
        yield from map(pieces_view, encoded, vectors, pieces)
    yield from not_drawn(records - len(encoded))
    if of_texts and names is None:
        yield shape_of(records, *vectors[0].shape)
        if records in FEW:
            yield Text("cosine similarity", "bold")  # may be wider than the table, unlike a title
            yield similarities(vectors)


def shape_of(*sizes: int) -> Text:
    """Return the shape of an array as text."""
    return Text(f"shape {' x '.join(f'{size:,}' for size in sizes)}, float32", "dim")


def numbers(vector: np.ndarray) -> dict[str, Any]:
    """Return the norm and the first values of a vector."""
    import numpy as np

    values = vector.reshape(-1)
    first = " ".join(f"{value:+.4f}" for value in values[:PREVIEW])
    return {"norm": float(np.linalg.norm(values)), "first values": f"{first} ..."}


def terms(weights: np.ndarray, names: TermNames) -> dict[str, Any]:
    """Return the number of terms of a text, and the terms with the largest weights."""
    from bertcli.embedding.sparse import largest

    best = islice(names.of(largest(weights, TERMS)).items(), TERMS)
    shown_terms = ", ".join(f"{name} {weight:.2f}" for name, weight in best)
    return {"terms": len(weights), "largest weights": shown_terms}


def similarities(vectors: Sequence[np.ndarray]) -> Table:
    """Draw the cosine similarities of the vectors of a few texts."""
    import numpy as np

    flat = np.stack([vector.reshape(-1) for vector in vectors])
    flat = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    rows = enumerate((flat @ flat.T).tolist(), 1)
    return rows_table(
        [
            {"": place} | {str(at): f"{cosine:.2f}" for at, cosine in enumerate(row, 1)}
            for place, row in rows
        ],
        box=None,
        padding=(0, 1, 0, 0),
    )


def pieces_view(encoded: Encoded, vectors: np.ndarray, pieces: TokenVectors) -> Group:
    """Draw the tokens or words of a text, and the shape of their vectors."""
    columns = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    rows = [
        {"#": at, pieces.name[:-1]: text, "span": "" if sequence is None else f"{start}-{stop}"}
        | numbers(vector)
        for at, (text, (start, stop), sequence, vector) in enumerate(islice(columns, MOST))
    ]
    more = not_drawn(len(vectors) - len(rows), f"more {pieces.name}")
    drawn = rows_table(rows, shown(encoded)) if rows else Text(shown(encoded), "bold")
    return Group(drawn, *more, shape_of(*vectors.shape))


def comparison_view(reports: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Draw the comparison of two files of vectors, and the rows that differ most."""
    (fields,) = reports
    yield facts(item for item in fields.items() if item[0] != "worst" and item[1] is not None)
    if fields["worst"] and not fields["identical"]:
        worst = [{name: described(value) for name, value in row.items()} for row in fields["worst"]]
        yield rows_table(worst, "worst rows")


def hit_row(score: Any, row: int, record: Record) -> dict[str, Any]:
    """Return the table row of a search hit; its id may be its file and line."""
    extra = record.extra or {}
    place = f"{extra['file']}:{extra['line']}" if {"file", "line"} <= {*extra} else ""
    hit = {"score": score, "row": row, "id": place or str(row if record.id is None else record.id)}
    text = {} if record.text is None else {"text": str(record.text)}
    return hit | text | kept_cells(record, without=(*ORIGIN, *PLACE, *hit, "text"))


class HitsView:
    """Search hits in the width of the screen: a passage of each, beside its id.

    If the id leaves too little room, the passage is below it. A column `row` that equals `id` is
    left out.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], query: str = "", title: str | None = None
    ) -> None:
        self.query = query
        self.title = title
        self.rows = [dict(row) for row in rows]
        if all(str(row["row"]) == row["id"] for row in self.rows):
            for row in self.rows:
                del row["row"]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table, or a line and a passage for each row."""
        length = HIT_LINES * options.max_width
        rows = [
            row | {"text": passage(row["text"], self.query, length)} if "text" in row else row
            for row in self.rows
        ]
        table = rows_table(rows, self.title, leading=1 if self.query else 0)
        if table.fits(console, options) or not any("text" in row for row in rows):
            yield table
            return
        if self.title:
            yield Text(self.title, "bold")
        for row in rows:
            yield Text("")
            yield from stacked(row)
        yield Text("")


def stacked(row: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Draw a row as a line with its numbers and id, followed by the text."""
    figures = {name: cell(value, name) for name, value in row.items() if name not in ("id", "text")}
    line = [str(figures.pop("score")), *(f"{name} {value}" for name, value in figures.items())]
    yield Text("  ".join([*line, str(row["id"])]), "bold", overflow="fold")
    if "text" in row:
        yield Padding(row["text"], (0, 0, 0, 2), expand=False)


def answer_views(answers: Sequence[Answer]) -> Iterator[RenderableType]:
    """Draw the hits of each query, best first."""
    for answer in answers:
        rows = [
            {"score": hit.score, **hit.ranks, **hit_row(hit.score, hit.row, hit.record)}
            for hit in answer.hits
        ]
        query = str(answer.query.text)
        title = shortened(query)
        yield HitsView(rows, query, title) if rows else Group(title, "no results")


def ranking_view(query: str, results: Sequence[Result]) -> Iterator[RenderableType]:
    """Draw texts with their scores for a query, in the order of the results."""
    from bertcli.tasks.rerank import corpus_row

    rows = [hit_row(r.fields["score"], corpus_row(r), r.record) for r in results]
    yield HitsView(rows, query)


def duplicates_view(run: Duplicates, groups: Sequence[DuplicateGroup]) -> Iterator[RenderableType]:
    """Draw groups of near-duplicates, each below the text that is kept."""
    for group in groups:
        scores = ["kept", *(f"{score:.4f}" for score in group.scores[:MOST].tolist())]
        numbered = zip(scores, [group.keep, *group.rows[:MOST].tolist()], strict=True)
        yield HitsView([hit_row(score, row, run.record_of(row)) for score, row in numbered])
        yield from not_drawn(len(group.rows[MOST:]))


PROMPT = "query> "
USAGE = "type a query; Ctrl-D ends"


def typed_lines() -> Iterator[list[Record]]:
    """Yield lines typed at the prompt, with history and editing if readline is available."""
    with suppress(ImportError):  # not on Windows, whose console has line editing
        import readline  # noqa: F401 - input() uses it after the import
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    with suppress(EOFError):
        while True:
            if line := input(PROMPT).strip():
                yield [Record(line)]
    sys.stdout.write("\n")


def search_at_prompt(search: Search) -> None:
    """Answer queries until the end of the input."""
    with drawing() as screen:
        for answers in search.answering(typed_lines()):
            for picture in answer_views(answers):
                screen.print(picture)
