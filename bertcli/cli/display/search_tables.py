"""What searches find, as tables on a terminal: nearest texts, rankings, near-duplicates.

At a prompt queries are typed one after another, and the hits of the last one by number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from bertcli.cli.display.screen import Draw, drawing, plain, show
from bertcli.cli.display.tables import (
    HEADED,
    DrawnTexts,
    Inputs,
    cell,
    pairs,
    shortened,
    show_batches,
    shown,
    table,
)
from bertcli.records.records import Record

if TYPE_CHECKING:
    from bertcli.tasks.results import Result
    from bertcli.vectors.duplicates import Duplicates
    from bertcli.vectors.search import Answer, Hit, Search


SHORT, MOST = 160, 1000  # characters of a text: among numbered results, and among others


def show_answers(batches: Iterable[Sequence[Answer]], inputs: Inputs) -> None:
    """Draw the results of a search, each query as it is answered."""

    def view(answers: Sequence[Answer]) -> Group:
        return Group(*map(answer_view, answers))

    show_batches(batches, view, inputs, lambda answer: len(answer.hits))


def answer_view(answer: Answer, *, numbered: bool = False) -> RenderableType:
    """Draw the nearest texts of a query, the nearest first; ``numbered`` from 1, and shortened."""
    with_text = any(hit.text is not None for hit in answer.hits)
    sources = [source_of(hit.record) for hit in answer.hits]
    own = ["source"] if any(sources) else ["row", "id"]
    names = [*(["#"] if numbered else []), "score", *own, *(["text"] if with_text else [])]
    title = None if numbered else plain(str(answer.query.text))
    drawn = table(*names, figures=("#", "score", "row"), title=title, leading=1, **HEADED)
    for rank, (hit, source) in enumerate(zip(answer.hits, sources, strict=True), 1):
        own = [source] if any(sources) else [str(hit.match.row), str(hit.id)]
        cells = [f"{hit.match.score:.4f}", *own]
        text = [] if hit.text is None else [shortened(hit.text, SHORT if numbered else MOST)]
        drawn.add_row(*([str(rank)] if numbered else []), *cells, *text)
    if not answer.hits:
        drawn.caption = "no results"
    return drawn


def source_of(record: Record) -> str:
    """Return the file and line that a record carries, as editors take them."""
    extra = record.extra or {}
    return f"{extra['file']}:{extra['line']}" if "file" in extra and "line" in extra else ""


def show_ranking(results: Sequence[Result]) -> None:
    """Draw texts with their scores, in the order of the results."""
    drawn, first = table("score", "row", "id", "text", figures=("score", "row")), DrawnTexts()
    for result in first.take(results):
        key = source_of(result.record) or result.record.id
        key = result.sample if key is None else key
        score = cell(result.fields["score"])
        drawn.add_row(score, str(result.sample), plain(str(key)), shown(result))
    show(*([drawn] if results else []), *first.rest())


def show_duplicates(run: Duplicates) -> None:
    """Draw groups of near-duplicates, each below the text that is kept."""
    first = DrawnTexts()
    with drawing() as draw:
        for group in first.take(run.groups, lambda duplicates: len(duplicates.rows)):
            drawn = table("score", "row", "id", "text", figures=("score", "row"))
            duplicates = zip(group.rows.tolist(), group.scores.tolist(), strict=True)
            rows = [(group.keep, "kept"), *duplicates]
            shown_rows = DrawnTexts()
            for row, score in shown_rows.take(rows):
                shown_score = score if isinstance(score, str) else f"{score:.4f}"
                record = run.record_of(row)
                own = plain(source_of(record) or str(record.id))
                drawn.add_row(shown_score, str(row), own, plain(str(record.text)))
            draw(Group(drawn, *shown_rows.rest()))
        for text in first.rest("more groups"):
            draw(text)


def hit_view(hit: Hit) -> RenderableType:
    """Draw one result in full: its fields, then its text."""
    fields = pairs((name, cell(value)) for name, value in hit.fields().items() if name != "text")
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
    """Answer queries until the end of the input."""
    with drawing() as draw:
        prompt = _Prompt(draw)
        for answers in search.answering(prompt.queries()):
            prompt.show(answers[0])


class _Prompt:
    """The hits of the last query, which a number names from 1."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.last: Answer | None = None

    def queries(self) -> Iterator[list[Record]]:
        """Yield queries; numbers of hits are answered here."""
        for line in typed_lines():
            hits = self.last.hits if self.last else []
            if line.isdecimal() and 1 <= int(line) <= len(hits):
                self.draw(hit_view(hits[int(line) - 1]))
            else:
                yield [Record(line)]

    def show(self, answer: Answer) -> None:
        """Draw an answer, and keep it for the numbers."""
        self.last = answer
        self.draw(answer_view(answer, numbered=True))
