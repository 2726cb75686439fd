"""Vectors, what files of them agree on, and what searches find, as tables on a terminal.

At a prompt queries are typed one after another, and the hits of the last one by number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.tables import (
    LONGEST,
    MOST,
    cell,
    drawing,
    facts,
    not_drawn,
    plain,
    rows_table,
    shortened,
    shown,
    table,
)
from bertcli.records.records import Record

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.embedded import Embedded
    from bertcli.embedding.sparse import TermNames
    from bertcli.tasks.results import Result
    from bertcli.vectors.duplicates import DuplicateGroup, Duplicates
    from bertcli.vectors.search import Answer, Hit, Search


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
        record = hit.record._replace(id=hit.id)
        row = hit_row(hit.match.score, hit.match.row, record, HIT if numbered else LONGEST)
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
