"""Vectors, what files of them agree on, and what searches find, as tables on a terminal.

At a prompt queries are typed one after another, and the hits of the last one by number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.screen import Draw, drawing, plain, show
from bertcli.cli.display.tables import (
    HEADED,
    MOST,
    NARROWEST,
    DrawnTexts,
    FittedTable,
    Inputs,
    cell,
    pairs,
    shortened,
    show_batches,
    shown,
    table,
)
from bertcli.errors import counted
from bertcli.records.records import Record

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.embedded import Embedded, TokenVectors
    from bertcli.embedding.term_weights import TermNames
    from bertcli.tasks.results import Result
    from bertcli.vectors.agreement import Agreement, SimilarityAgreement
    from bertcli.vectors.duplicates import Duplicates
    from bertcli.vectors.search import Answer, Hit, Search


PREVIEW = 4  # numbers of a vector
TERMS = 8  # of a text


def show_vectors(
    items: Sequence[Embedded], drawn: DrawnTexts, names: TermNames | None = None
) -> None:
    """Draw the vectors of texts, or of their tokens or words, or the weights of their terms."""
    if names is not None:
        show(term_view(items, drawn, names))
    elif items and items[0].pieces is None:
        show(vector_view(items, drawn))
    else:
        show(*token_vector_views(items), *drawn.rest())


def vector_view(items: Sequence[Embedded], drawn: DrawnTexts) -> Group:
    """Draw shapes, norms and first values of vectors, and the similarity of a few texts."""
    drawn_rows = FittedTable(("text", "tokens", "norm"), text_at=0)
    for encoded, vector, _ in items:
        norm, preview = _numbers(vector)
        drawn_rows.add_row([shown(encoded), str(encoded.length), norm], preview)
    shape = " x ".join(f"{size:,}" for size in (len(items) + drawn.more, *items[0].vector.shape))
    alike = [SimilarityMatrix(items)] if 2 <= len(items) <= 10 and not drawn.more else []
    return Group(drawn_rows, *drawn.rest(), Text(f"shape {shape}, float32", style="dim"), *alike)


def term_view(items: Sequence[Embedded], drawn: DrawnTexts, names: TermNames) -> Group:
    """Draw how many terms texts have, and those with the largest weights."""
    from bertcli.embedding.term_weights import largest

    drawn_rows = FittedTable(("text", "tokens", "terms"), text_at=0)
    for encoded, terms, _ in items:
        best = islice(names.of(largest(terms, TERMS)).items(), TERMS)
        preview = [plain(f"{name} {weight:.2f}").plain for name, weight in best]
        drawn_rows.add_row([shown(encoded), str(encoded.length), f"{len(terms):,}"], preview)
    return Group(drawn_rows, *drawn.rest())


def _numbers(vector: np.ndarray) -> tuple[str, list[str]]:
    """Return the norm of a vector and its first values."""
    import numpy as np

    flat = vector.reshape(-1)
    return f"{np.linalg.norm(flat):.4f}", [f"{value:+.4f}" for value in flat[:PREVIEW]]


class SimilarityMatrix:
    """The cosines of a few texts; where they do not fit, without "0" before the point."""

    def __init__(self, items: Sequence[Embedded]) -> None:
        import numpy as np

        vectors = np.stack([item.vector.reshape(-1) for item in items])
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        self.items, self.cosines = items, (vectors @ vectors.T).tolist()

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Draw the matrix for the width there is."""
        cells = [[f"{value:.2f}" for value in row] for row in self.cosines]
        number = len(str(len(self.items)))
        room = options.max_width - number - 4
        if sum(_widest(cells)) + len(cells) > room:
            cells = [[text.replace("0.", ".", 1) for text in row] for row in cells]
        left = room - sum(_widest(cells)) - len(cells)
        drawn = Table(
            box=None, title="cosine similarity", title_justify="left", padding=(0, 0, 0, 1)
        )
        drawn.add_column(justify="right", no_wrap=True, style="dim")
        if left >= NARROWEST:
            drawn.add_column(no_wrap=True, max_width=min(left, 40))
        for at in range(len(cells)):
            drawn.add_column(str(at + 1), justify="right", no_wrap=True, header_style="dim")
        for at, (item, row) in enumerate(zip(self.items, cells, strict=True)):
            text = [shown(item.encoded)] if left >= NARROWEST else []
            warm = [_warmth(value) for value in self.cosines[at]]
            figures = [Text(cell, style=style) for cell, style in zip(row, warm, strict=True)]
            drawn.add_row(str(at + 1), *text, *figures)
        yield drawn


def _widest(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _warmth(cosine: float) -> str:
    return "bold" if cosine > 0.7 else "" if cosine > 0.3 else "dim"


def token_vector_views(items: Sequence[Embedded]) -> Iterator[Group]:
    """Yield a table of the tokens or words of each text, and the shape of their vectors."""
    for encoded, vectors, pieces in items:
        if pieces is None:
            continue
        drawn = _token_table(pieces, vectors)
        drawn.title = shown(encoded)
        more = len(vectors) - len(drawn.rows)
        shape = " x ".join(map(str, vectors.shape))
        lines = [f"... {more:,} more {pieces.name}; -f jsonl for all"] if more else []
        yield Group(drawn, Text("\n".join([*lines, f"shape {shape}, float32"]), style="dim"))


def _token_table(pieces: TokenVectors, vectors: np.ndarray) -> FittedTable:
    drawn = FittedTable(("#", pieces.name[:-1], "span", "norm"), text_at=1)
    rows = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    for number, (text, (start, stop), sequence, vector) in enumerate(islice(rows, MOST)):
        norm, preview = _numbers(vector)
        span = "" if sequence is None else f"{start}-{stop}"
        drawn.add_row([str(number), text, span, norm], preview)
    return drawn


def comparison_view(agreement: Agreement) -> Iterator[RenderableType]:
    """Draw the differences of two files, and their worst rows."""
    kinds = [*agreement.dtype, "", ""]
    rows = [("a", f"{agreement.a}  {kinds[0]}"), ("b", f"{agreement.b}  {kinds[1]}")]
    if agreement.similarity is not None:
        yield pairs([*rows, *_similarity_rows(agreement, agreement.similarity)])
        return
    rows.append(("shape", " x ".join(map(str, agreement.shape))))
    rows.append(("identical", "yes" if agreement.identical else "no"))
    for name in ("max_abs", "mean_abs", "cosine_min", "cosine_mean"):
        value = getattr(agreement, name)
        rows.append((name.replace("_", " "), "-" if value is None else _shown(name, value)))
    numbers = pairs(rows)
    if agreement.not_finite:
        numbers.add_row("NaN or infinite", counted(agreement.not_finite, "row"), style="red")
    yield numbers
    if agreement.worst and not agreement.identical:
        names = ("row", "max abs", "cosine")
        worst = table(*names, figures=names, title="worst rows")
        for row in agreement.worst:
            worst.add_row(
                f"{row.row}", _shown("max_abs", row.max_abs), _shown("cosine", row.cosine)
            )
        yield worst


def _similarity_rows(
    agreement: Agreement, similarity: SimilarityAgreement
) -> Iterator[tuple[str, str]]:
    """Yield what vectors of different widths agree on."""
    yield "rows", f"{agreement.shape[0]:,}"
    yield "widths", " and ".join(map(str, agreement.widths or ()))
    if similarity.seed is not None:
        yield "sample", f"{similarity.rows_compared:,} rows, seed {similarity.seed}"
    for name in ("similarity_correlation", "neighbour_overlap"):
        value = getattr(similarity, name)
        yield name.replace("_", " "), "-" if value is None else f"{value:.4f}"
    yield "neighbours", f"{similarity.neighbours} of each row, by cosine"
    if agreement.not_finite:
        yield "NaN or infinite", counted(agreement.not_finite, "row")


def _shown(name: str, value: float) -> str:
    return f"{value:.9f}" if name.startswith("cosine") else f"{value:.6g}"


SHORT, LONGEST_TEXT = 160, 1000  # characters of a text: among numbered results, and among others


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
        text = (
            [] if hit.text is None else [shortened(hit.text, SHORT if numbered else LONGEST_TEXT)]
        )
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
