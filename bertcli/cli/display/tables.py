"""Tables and facts on a terminal, drawn by Rich: safe for untrusted text, folded to the width.

`table` has rows, `facts` have names beside values, and `opened_table` is the writer of the format
"table". Figures are in one line, whatever the width; all else is folded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bertcli.errors import counted
from bertcli.files.printable import printable
from bertcli.files.tables import fields_of, lines_of
from bertcli.files.writers import open_output
from bertcli.records.records import Record
from bertcli.tasks.results import Result, flat_rows

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.pooling import Embedded
    from bertcli.embedding.sparse import TermNames
    from bertcli.tasks.results import Result
    from bertcli.tokenizing.columns import Encoded
    from bertcli.tokenizing.tokenizer import Tokenizer
    from bertcli.vectors.duplicates import DuplicateGroup, Duplicates
    from bertcli.vectors.search import Answer, Hit, Search

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


PREVIEW, TERMS = 3, 8  # numbers of a vector, or terms of a text
TEXT, HIT = 40, 160  # characters of a text beside numbers, and of a numbered hit
FEW = range(2, 11)  # texts whose similarities are shown


def vector_views(
    items: Sequence[Embedded], records: int, names: TermNames | None
) -> Iterator[RenderableType]:
    """Draw the first vectors of so many texts, or of their tokens, or weights of their terms."""
    if items and items[0].pieces is not None:
        yield from map(pieces_view, items)
        yield from not_drawn(records - len(items))
        return
    what = ("norm", "first values") if names is None else ("terms", "largest weights")
    drawn = table("text", "tokens", *what, figures=("tokens", what[0]))
    for encoded, vector, _ in items:
        preview = numbers(vector) if names is None else terms(vector, names)
        drawn.add_row(shortened(shown(encoded), TEXT), str(encoded.length), *preview)
    yield drawn
    yield from not_drawn(records - len(items))
    if items and names is None:
        yield shape_of(records, *items[0].vector.shape)
        if records in FEW:
            yield Text("cosine similarity", "bold")
            yield similarities(items)


def shape_of(*sizes: int) -> Text:
    """Say how many numbers there are."""
    return Text(f"shape {' x '.join(f'{size:,}' for size in sizes)}, float32", "dim")


def numbers(vector: np.ndarray) -> tuple[str, str]:
    """Return the norm of a vector and its first values."""
    import numpy as np

    values = vector.reshape(-1)
    first = " ".join(f"{value:+.4f}" for value in values[:PREVIEW])
    return f"{np.linalg.norm(values):.4f}", f"{first} ..."


def terms(weights: np.ndarray, names: TermNames) -> tuple[str, str]:
    """Return how many terms a text has, and those with the largest weights."""
    from bertcli.embedding.sparse import largest

    best = islice(names.of(largest(weights, TERMS)).items(), TERMS)
    return f"{len(weights):,}", ", ".join(f"{name} {weight:.2f}" for name, weight in best)


def similarities(items: Sequence[Embedded]) -> Table:
    """Draw the cosines of a few texts."""
    import numpy as np

    vectors = np.stack([item.vector.reshape(-1) for item in items])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    places = [str(number) for number in range(1, len(items) + 1)]
    drawn = table("", *places, figures=places, box=None, padding=(0, 1, 0, 0))
    for place, row in zip(places, (vectors @ vectors.T).tolist(), strict=True):
        drawn.add_row(place, *(f"{cosine:.2f}".replace("0.", ".") for cosine in row))
    return drawn


def pieces_view(item: Embedded) -> Group:
    """Draw the tokens or words of a text, and the shape of their vectors."""
    encoded, vectors, pieces = item
    assert pieces is not None
    figures = ("#", "span", "norm")
    names = ("#", pieces.name[:-1], "span", "norm", "first values")
    drawn = table(*names, figures=figures, title=shown(encoded))
    rows = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    for number, (text, (start, stop), sequence, vector) in enumerate(islice(rows, MOST)):
        span = "" if sequence is None else f"{start}-{stop}"
        drawn.add_row(str(number), text, span, *numbers(vector))
    more = not_drawn(len(vectors) - len(drawn.rows), f"more {pieces.name}")
    return Group(drawn, *more, shape_of(*vectors.shape))


def comparison_view(reports: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """Draw what two files of vectors agree on, and their worst rows."""
    (fields,) = reports

    def shown_value(name: str, value: Any) -> str:
        if isinstance(value, list):
            return (" x " if name == "shape" else " and ").join(map(str, value))
        return f"{value:.9g}" if isinstance(value, float) else str(value)

    rows = {name: value for name, value in fields.items() if name != "worst" and value is not None}
    yield facts((name.replace("_", " "), shown_value(name, rows[name])) for name in rows)
    if fields["worst"] and not fields["identical"]:
        worst = [
            {name.replace("_", " "): shown_value(name, value) for name, value in row.items()}
            for row in fields["worst"]
        ]
        yield rows_table(worst, title="worst rows")


def hit_row(score: Any, row: int, record: Record, longest: int = LONGEST) -> dict[str, Any]:
    """Return the row of a text that was found, and where it is from."""
    extra = record.extra or {}
    place = f"{extra['file']}:{extra['line']}" if {"file", "line"} <= {*extra} else ""
    hit = {"score": score, "row": row, "id": place or str(row if record.id is None else record.id)}
    return hit if record.text is None else {**hit, "text": shortened(str(record.text), longest)}


def answer_views(answers: Sequence[Answer]) -> Iterator[RenderableType]:
    """Draw the nearest texts of each query."""
    return map(answer_view, answers)


def answer_view(answer: Answer, *, numbered: bool = False) -> RenderableType:
    """Draw the nearest texts of a query, the nearest first; ``numbered`` from 1, and shortened."""
    drawn = []
    for rank, hit in enumerate(answer.hits, 1):
        row = hit_row(hit.score, hit.row, hit.record, HIT if numbered else LONGEST)
        drawn.append({"#": rank, **row} if numbered else row)
    title = "" if numbered else str(answer.query.text)
    return rows_table(drawn, title=title, leading=1) if drawn else Group(title, "no results")


def ranking_view(results: Sequence[Result]) -> Iterator[Table]:
    """Draw texts with their scores, in the order of the results."""
    yield rows_table([hit_row(r.fields["score"], r.sample, r.record) for r in results])


def duplicates_view(run: Duplicates, groups: Sequence[DuplicateGroup]) -> Iterator[RenderableType]:
    """Draw groups of near-duplicates, each below the text that is kept."""
    for group in groups:
        scores = ["kept", *(f"{score:.4f}" for score in group.scores[:MOST].tolist())]
        numbered = zip(scores, [group.keep, *group.rows[:MOST].tolist()], strict=True)
        yield rows_table([hit_row(score, row, run.record_of(row)) for score, row in numbered])
        yield from not_drawn(len(group.rows[MOST:]))


def hit_view(hit: Hit) -> Group:
    """Draw one result in full: its fields, then its text."""
    fields = facts((name, cell(value)) for name, value in hit.fields().items() if name != "text")
    lines = (hit.text or "").splitlines()
    text = [Text(), *(plain(line.expandtabs(4)) for line in lines), Text()] if lines else []
    return Group(fields, *text)


PROMPT = "query> "
USAGE = "type a query; a number shows that result in full; Ctrl-D ends"


def typed_lines() -> Iterator[str]:
    """Yield what is typed at the prompt, with history and editing where there is readline."""
    with suppress(ImportError):  # Windows has none, and edits lines itself
        import readline  # noqa: F401 - input() uses it once it is there
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    with suppress(EOFError):
        while True:
            if line := input(PROMPT).strip():
                yield line
    sys.stdout.write("\n")


def search_at_prompt(search: Search) -> None:
    """Answer queries until the end of the input; a number shows a hit of the last one."""
    hits: list[Hit] = []
    with drawing() as screen:

        def queries() -> Iterator[list[Record]]:
            for line in typed_lines():
                if line.isdecimal() and 1 <= int(line) <= len(hits):
                    screen.print(hit_view(hits[int(line) - 1]))
                else:
                    yield [Record(line)]

        for (answer,) in search.answering(queries()):
            hits[:] = answer.hits
            screen.print(answer_view(answer, numbered=True))
