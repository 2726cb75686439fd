"""Tables and facts on a terminal, drawn by Rich: safe for untrusted text, folded to the width.

`rows_table` draws rows, `facts` draws names beside values, and `open_table` is the writer of the
output format "table". Numbers are never folded; other cells are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from math import exp, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.passages import explained_passage, passage
from bertcli.errors import counted
from bertcli.formats.tables import fields_of, without_headers
from bertcli.formats.writers import open_output
from bertcli.io.printable import printable
from bertcli.records.input import ORIGIN
from bertcli.records.record import Record
from bertcli.tasks.entities import REDACTED
from bertcli.tasks.results import Result, flat_rows
from bertcli.tokenizing.batch import CHUNK_FIELDS

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.pooling import EmbeddedBlock, TokenFields
    from bertcli.embedding.sparse import TermNames
    from bertcli.retrieval.duplicates import DuplicateGroup, DuplicateRun
    from bertcli.retrieval.search import Answer, Search
    from bertcli.tokenizing.batch import Encoded
    from bertcli.tokenizing.tokenizer import Tokenizer

DEFAULT_WIDTH = 100  # width in columns if it is unknown


class Screen(Console):
    """A console that shows any text literally: `[bold]` in brackets, and U+FFFD for ESC."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, margin: int = 0) -> None:
        """Create a console; ``margin`` columns on the right stay empty."""
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)
        if not self.width:  # some programs set COLUMNS=0 for their child processes
            self.width = DEFAULT_WIDTH
        self.margin = margin

    @property
    def options(self) -> ConsoleOptions:
        """The layout for the current width of the terminal, without the margin."""
        options = super().options
        return options.update_width(max(1, options.max_width - self.margin))

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
    with open_output(None, is_drawn=True):
        has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
        yield Screen(width=None if has_width else DEFAULT_WIDTH)


def show(*pictures: RenderableType) -> None:
    """Draw on stdout."""
    with drawing() as screen:
        for picture in pictures:
            screen.print(picture)


MAX_DRAWN = 40  # maximum rows of a run, tokens or words of a text that are drawn
MAX_TEXT_LENGTH = 1000  # maximum characters of a text
MAX_SHORT_CELL = 14  # maximum characters of a word or label, which is not folded
NAME_COLUMNS = ("id", "file", "model")  # columns that users copy: not folded if there is room
UNGROUPED = ("id", "line", "input_ids")  # numeric columns without thousands separators
LINE_ENDS = str.maketrans("\r\n", "  ")
MIN_TEXT_WIDTH = 30  # minimum width of a text column
HIT_LINES = 2  # maximum lines of a hit, in the width of the terminal
EXPLAINED_LINES = 4  # of an explained hit
Inputs = Sequence[str | Path]  # input files; "-" is stdin


def facts(rows: Iterable[tuple[str, Any]]) -> Table:
    """Return a table of names and their values."""
    is_drawn = Table.grid(padding=(0, 2))
    is_drawn.add_column(style="dim", no_wrap=True)
    is_drawn.add_column(overflow="fold")
    for name, value in rows:
        is_drawn.add_row(name.replace("_", " "), described(value))
    return is_drawn


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
    rows: Sequence[Mapping[str, Any]], title: str | None = None, **style: Any
) -> RowsTable:
    """Return a table of rows, with numbers aligned right. Text columns have priority over names.

    ``style`` are parameters of Rich's `Table`.
    """
    names = fields_of(map(dict, rows))
    cells = {name: [row.get(name, "") for row in rows] for name in names}
    style = {"box": SIMPLE_HEAD, "title_justify": "left", "title_style": "bold", **style}
    is_drawn = RowsTable(title=title, **style)
    for name, values in cells.items():
        is_figure = any(isinstance(value, int | float) for value in values)
        is_drawn.add_column(
            name,
            justify="right" if is_figure else "left",
            overflow="fold",
            no_wrap=is_figure
            or name in NAME_COLUMNS
            or max(len(str(value)) for value in values) <= MAX_SHORT_CELL,
        )
    for row in zip(*cells.values(), strict=True):
        is_drawn.add_row(*(cell(value, name) for name, value in zip(cells, row, strict=True)))
    return is_drawn


class RowsTable(Table):
    """A table that does not fold columns of names if the text columns have enough room."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table, folding the columns of names if it would not fit otherwise."""
        if not self.fits(console, options):
            for column in self.columns:
                if column.header in NAME_COLUMNS:
                    column.no_wrap = False
        yield from super().__rich_console__(console, options)
        if hidden := self.hidden_columns(console, options):
            line = f"... too narrow for {', '.join(hidden)}; a wider terminal shows them"
            yield Text(line, "dim", overflow="fold")

    def hidden_columns(self, console: Console, options: ConsoleOptions) -> list[str]:
        """Return the names of the columns that Rich leaves out for lack of width."""
        inner_options = options.update_width(options.max_width - self._extra_width)
        widths = self._calculate_column_widths(console, inner_options)
        padding = self.padding[1] + self.padding[3]
        columns = zip(self.columns, widths, strict=True)
        return [str(column.header) for column, width in columns if width <= padding]

    def fits(self, console: Console, options: ConsoleOptions) -> bool:
        """Return True if all unfolded columns fit beside at least ``MIN_TEXT_WIDTH`` of text."""
        width = len(self.columns) + 1
        for column in self.columns:
            full_width = self._measure_column(console, options, column).maximum
            width += full_width if column.no_wrap else min(full_width, MIN_TEXT_WIDTH)
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


def shortened(text: str, length: int = MAX_TEXT_LENGTH) -> str:
    """Return a text on one line, cut after ``length`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[:length]}…"


def field_cells(record: Record, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the carried fields of a record for a table. Long values are shortened."""
    cells = {}
    for name, value in (record.extra or {}).items():
        if name not in without:
            is_long = isinstance(value, str | list | dict)
            cells[name] = shortened(described(value), MAX_PREVIEW_TEXT) if is_long else value
    return cells


def item_text(item: Encoded | Result) -> str:
    """Return the text and the pair of an item, shortened."""
    texts = []
    for text in (item.record.text, item.record.pair):
        if text is not None:
            texts.append(" ".join(text) if isinstance(text, list) else text)
    return shortened(" | ".join(texts))


@contextmanager
def open_table(
    inputs: Inputs, view: Callable[[Any], Iterable[RenderableType]]
) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Yield a function that draws the first rows of a run, or all rows for typed input."""
    is_typed = "-" in inputs and sys.stdin is not None and sys.stdin.isatty()
    remaining = inf if is_typed else MAX_DRAWN
    hidden = 0
    with drawing() as screen:

        def write(rows: Sequence[Any]) -> None:
            nonlocal remaining, hidden
            rows = without_headers(rows)
            drawn_rows = rows[: int(min(remaining, len(rows)))]
            remaining -= len(drawn_rows)
            hidden += len(rows) - len(drawn_rows)
            for picture in view(drawn_rows) if drawn_rows else ():
                screen.print(picture)

        yield write
        for note in notes_of_hidden(hidden):
            screen.print(note)


def notes_of_hidden(count: int, noun: str = "more") -> list[Text]:
    """Return a note with the number of items that were not drawn, if any."""
    return [Text(f"... {count:,} {noun}; -f jsonl for all", "dim")] if count > 0 else []


# --- tokens ---


TOKEN_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "tokens", "offset_mapping")
COUNT_COLUMNS = ("texts", "tokens", "p50", "p99", "max", "longer")  # columns of a file summary


def token_views(tokenizer: Tokenizer, records: Sequence[Encoded]) -> Iterator[RenderableType]:
    """Draw one table per record, with one token per row."""
    roles = {token: role.removesuffix("_token") for role, token in tokenizer.roles.items()}
    for encoded in records:
        columns = zip(*(encoded.columns[name] for name in TOKEN_COLUMNS), strict=True)
        rows = []
        for number, column in enumerate(islice(columns, MAX_DRAWN)):
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
        fields = field_cells(encoded.record).items()
        title = item_text(encoded) + "".join(f"\n{name}: {value}" for name, value in fields)
        yield rows_table(rows, title)
        yield from notes_of_hidden(encoded.length - MAX_DRAWN, "more tokens")


def stats_view(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Draw a corpus summary and a histogram of text lengths."""
    yield facts(item for item in summary.items() if item[0] != "histogram")
    yield rows_table(summary["histogram"])


def counts_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Draw counts or summaries of files, with the total in the last row."""
    counts = [{**row, **row.get("length", {})} for row in rows]
    names = [name for name in COUNT_COLUMNS if name in counts[0]]
    return rows_table(
        [{"file": row["file"] or "total"} | {name: row[name] for name in names} for row in counts]
    )


# --- results ---


HIDDEN_FIELDS = ("id", "truncated")  # fields of task results that are not shown


def results_view(results: Sequence[Result]) -> Iterator[Table]:
    """Draw results with one item per row. The text is in the row of its first item."""
    rows = []
    for result in results:
        text = item_text(result)
        for line in flat_rows(result):
            fields = {name: value for name, value in line.items() if name not in HIDDEN_FIELDS}
            rows.append({"text": text, **fields})
            text = ""
    yield rows_table(rows)


def redacted_view(results: Sequence[Result]) -> Iterator[Table]:
    """Draw redacted texts, one per row, with their carried fields."""
    yield rows_table(
        [{REDACTED: result.fields[REDACTED], **field_cells(result.record)} for result in results]
    )


LIKELY_STYLES = (  # minimum probability of a token, and its colour
    (0.5, "green"),
    (0.1, ""),
    (0.01, "yellow"),
    (0.0, "red"),
)


def token_scores_view(results: Sequence[Result]) -> Iterator[RenderableType]:
    """Draw each text with its tokens coloured by probability, above a table of them."""
    for result in results:
        tokens = result.fields["tokens"]
        yield Text("")
        yield text_by_probability(result)
        rows = [
            {
                "token": Text(token["token"], likely_style(token["logprob"])),
                "logprob": token["logprob"],
                "probability": exp(token["logprob"]),
                "span": f"{token['start']}-{token['end']}",
            }
            for token in tokens[:MAX_DRAWN]
        ]
        yield rows_table(rows) if rows else Text("no tokens", "dim")
        yield from notes_of_hidden(len(tokens) - len(rows), "more tokens")
        names = ("score", "n_tokens", "perplexity")
        yield facts((name, result.fields[name]) for name in names)


def text_by_probability(result: Result) -> Text:
    """Return the text of a result with its tokens coloured by probability."""
    text = result.record.text
    if not isinstance(text, str) or len(text) > MAX_TEXT_LENGTH:
        return Text(item_text(result), "bold")  # the tokens below are coloured
    drawn = Text(text.translate(LINE_ENDS), "bold")
    for token in result.fields["tokens"]:
        drawn.stylize(likely_style(token["logprob"]), token["start"], token["end"])
    return drawn


def likely_style(logprob: float) -> str:
    """Return the colour of a token with this log probability."""
    return next(style for minimum, style in LIKELY_STYLES if exp(logprob) >= minimum)


def models_view(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Draw the models on this machine, with their state, size, family and problems."""
    names = ("model", "state", "bytes", "family", "width", "problem")
    yield rows_table([{name: row[name] for name in names} for row in rows])


MAX_CONFUSION_LABELS = 12  # maximum number of labels in a confusion matrix


def evaluation_view(reports: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Draw a single report: metrics, per-class scores and the confusion matrix."""
    (report,) = reports
    rows = []
    for name, (low, high) in report["intervals"].items():
        interval = f"{low:.4f} to {high:.4f}"
        metric = name.replace("_", " ")
        row = {"metric": metric, "value": report[name], "95 % interval": interval}
        if comparison := report.get("compare"):
            low, high = comparison["intervals"][name]
            row |= {"other": comparison[name], "better by": comparison["differences"][name]}
            row["95 %"] = f"{low:.4f} to {high:.4f}"
        rows.append(row)
    yield rows_table(rows, f"{report['task']}, {counted(report['n'], 'example')}")
    if "per_class" in report:
        classes = report["per_class"].items()
        yield rows_table([{"label": name, **values} for name, values in classes])
        if len(labels := report["labels"]) <= MAX_CONFUSION_LABELS:
            counts = zip(labels, report["confusion"], strict=True)
            names = [f"as {label}" for label in labels]
            confusion = [
                {"true": label} | dict(zip(names, row, strict=True)) for label, row in counts
            ]
            yield rows_table(confusion, "confusion")
        yield f"calibration error {report['calibration']['error']:.4f}"


PREVIEW_NUMBERS = 3  # numbers shown of a vector
PREVIEW_TERMS = 8  # terms shown of a text
MAX_PREVIEW_TEXT = 40  # maximum characters of a text beside numbers
SIMILARITY_TEXTS = range(2, 11)  # numbers of texts for which similarities are shown


def vector_views(
    blocks: Sequence[EmbeddedBlock], records: int, term_names: TermNames | None
) -> Iterator[RenderableType]:
    """Draw the first vectors of ``records`` texts, of their tokens, or their term weights."""
    encoded = [*islice(chain.from_iterable(block.batch for block in blocks), MAX_DRAWN)]
    vectors = [*islice(chain.from_iterable(block.vectors for block in blocks), MAX_DRAWN)]
    pieces = [*islice(chain.from_iterable(block.token_fields or () for block in blocks), MAX_DRAWN)]
    are_texts = encoded and not pieces
    if are_texts:
        yield rows_table(
            [
                {"text": shortened(item_text(item), MAX_PREVIEW_TEXT), "tokens": item.length}
                | (vector_cells(vector) if term_names is None else term_cells(vector, term_names))
                | field_cells(item.record)
                for item, vector in zip(encoded, vectors, strict=True)
            ]
        )
    else:
        yield from map(token_vectors_view, encoded, vectors, pieces)
    yield from notes_of_hidden(records - len(encoded))
    if are_texts and term_names is None:
        yield shape_of(records, *vectors[0].shape)
        if records in SIMILARITY_TEXTS:
            yield Text("cosine similarity", "bold")  # may be wider than the table, unlike a title
            yield similarities(vectors)


def shape_of(*sizes: int) -> Text:
    """Return the shape of an array as text."""
    return Text(f"shape {' x '.join(f'{size:,}' for size in sizes)}, float32", "dim")


def vector_cells(vector: np.ndarray) -> dict[str, Any]:
    """Return the norm and the first values of a vector."""
    import numpy as np

    values = vector.reshape(-1)
    preview = " ".join(f"{value:+.4f}" for value in values[:PREVIEW_NUMBERS])
    return {"norm": float(np.linalg.norm(values)), "first values": f"{preview} ..."}


def term_cells(weights: np.ndarray, term_names: TermNames) -> dict[str, Any]:
    """Return the number of terms of a text, and the terms with the largest weights."""
    from bertcli.embedding.sparse import largest_terms

    best = islice(term_names.of(largest_terms(weights, PREVIEW_TERMS)).items(), PREVIEW_TERMS)
    shown_terms = ", ".join(f"{name} {weight:.2f}" for name, weight in best)
    return {"terms": len(weights), "largest weights": shown_terms}


def similarities(vectors: Sequence[np.ndarray]) -> Table:
    """Draw the cosine similarities of the vectors of a few texts."""
    import numpy as np

    flat = np.stack([vector.reshape(-1) for vector in vectors])
    flat = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    rows = enumerate((flat @ flat.T).tolist(), 1)
    table = rows_table(
        [
            {"": row_number}
            | {str(number): f"{cosine:.2f}" for number, cosine in enumerate(row, 1)}
            for row_number, row in rows
        ],
        box=None,
        padding=(0, 1, 0, 0),
    )
    for column in table.columns:
        column.justify = "right"
    return table


def token_vectors_view(encoded: Encoded, vectors: np.ndarray, pieces: TokenFields) -> Group:
    """Draw the tokens or words of a text, and the shape of their vectors."""
    columns = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    rows = [
        {"#": index, pieces.name[:-1]: text, "span": "" if sequence is None else f"{start}-{stop}"}
        | vector_cells(vector)
        for index, (text, (start, stop), sequence, vector) in enumerate(islice(columns, MAX_DRAWN))
    ]
    notes = notes_of_hidden(len(vectors) - len(rows), f"more {pieces.name}")
    is_drawn = rows_table(rows, item_text(encoded)) if rows else Text(item_text(encoded), "bold")
    return Group(is_drawn, *notes, shape_of(*vectors.shape))


def comparison_view(reports: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Draw the comparison of two files of vectors, and the rows that differ most."""
    (fields,) = reports
    yield facts(item for item in fields.items() if item[0] != "worst" and item[1] is not None)
    if fields["worst"] and not fields["identical"]:
        worst = [{name: described(value) for name, value in row.items()} for row in fields["worst"]]
        yield rows_table(worst, "worst rows")


def hit_row(score: Any, row: int, record: Record) -> dict[str, Any]:
    """Return the table row of a search hit; its id may be its file and line."""
    fields = record.extra or {}
    hit_id = str(row if record.id is None else record.id)
    if "file" in fields and "line" in fields:
        hit_id = f"{fields['file']}:{fields['line']}"
    hit = {"score": score, "row": row, "id": hit_id}
    text = {} if record.text is None else {"text": str(record.text)}
    return hit | text | field_cells(record, without=(*ORIGIN, *CHUNK_FIELDS, *hit, "text"))


class HitsView:
    """Search hits in the width of the screen: a passage of each, beside its id.

    If the id leaves too little room, the passage is below it. A column `row` that equals `id` is
    left out.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        query: str = "",
        title: str | None = None,
        explanations: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.query = query
        self.title = title
        self.rows = [dict(row) for row in rows]
        self.explanations = explanations or [{}] * len(self.rows)  # of the hits
        if all(str(row["row"]) == row["id"] for row in self.rows):
            for row in self.rows:
                del row["row"]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the table, or a line and a passage for each row."""
        rows = []
        for row, explanation in zip(self.rows, self.explanations, strict=True):
            if explanation:
                length = EXPLAINED_LINES * options.max_width
                row = row | {"text": explained_passage(row["text"], explanation, length)}
            elif "text" in row:
                length = HIT_LINES * options.max_width
                row = row | {"text": passage(row["text"], self.query, length)}
            rows.append(row)
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
        explanations = [hit.explanation for hit in answer.hits]
        yield (HitsView(rows, query, title, explanations) if rows else Group(title, "no results"))


def ranking_view(query: str, results: Sequence[Result]) -> Iterator[RenderableType]:
    """Draw texts with their scores for a query, in the order of the results."""
    from bertcli.tasks.rerank import corpus_row

    rows = [
        hit_row(result.fields["score"], corpus_row(result), result.record) for result in results
    ]
    yield HitsView(rows, query)


def duplicates_view(
    run: DuplicateRun, groups: Sequence[DuplicateGroup]
) -> Iterator[RenderableType]:
    """Draw groups of near-duplicates, each below the text that is kept."""
    label = {"keep": "kept"}.get(run.kept_key, run.kept_key)
    for group in groups:
        rows = [hit_row(label, group.keep, run.kept_members.record(group.keep))]
        duplicates = zip(group.rows[:MAX_DRAWN].tolist(), group.scores.tolist(), strict=False)
        for row, score in duplicates:
            rows.append(hit_row(f"{score:.4f}", row, run.members.record(row)))
        yield HitsView(rows)
        yield from notes_of_hidden(len(group.rows[MAX_DRAWN:]))


QUERY_PROMPT = "query> "
QUERY_USAGE = "type a query; Ctrl-D ends"


def queries_at_prompt() -> Iterator[list[Record]]:
    """Yield lines typed at the prompt, with history and editing if readline is available."""
    with suppress(ImportError):  # not on Windows, whose console has line editing
        import readline  # noqa: F401 - input() uses it after the import
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    with suppress(EOFError):
        while True:
            if line := input(QUERY_PROMPT).strip():
                yield [Record(line)]
    sys.stdout.write("\n")


def search_at_prompt(search: Search) -> None:
    """Answer queries until the end of the input."""
    with drawing() as screen:
        for answers in search.answering(queries_at_prompt()):
            for picture in answer_views(answers):
                screen.print(picture)
