"""Results as tables on a terminal: tokens, statistics, vectors, task results, searches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.fitted import NARROWEST, Bar, DrawnTexts, FittedTable, Inputs
from bertcli.cli.display.screen import drawing, plain

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.embedder import Embedded
    from bertcli.embedding.token_vectors import TokenVectors
    from bertcli.tasks.results import Result
    from bertcli.tokenizing.chunks import Chunk
    from bertcli.tokenizing.columns import Encoded
    from bertcli.tokenizing.tokenizer import Tokenizer
    from bertcli.vectors.agreement import Agreement
    from bertcli.vectors.duplicates import Duplicates
    from bertcli.vectors.search import Answer, Hit
    from bertcli.vectors.similarity_agreement import SimilarityAgreement

T = TypeVar("T")

TABLE_COLUMNS = (
    "input_ids",
    "token_type_ids",
    "attention_mask",
    "special_tokens_mask",
    "tokens",
    "offset_mapping",
)
BAR = 40  # characters of the longest bar of a histogram
SHORT_CELL = 14  # characters of a word or label, which is not folded
SHORT = 160  # characters of a text among numbered results
MOST = 40  # tokens or words of a text that are drawn
MOST_CHARACTERS = 1000  # of a text above them
PREVIEW = 4  # numbers of a vector
HIDDEN = ("id", "truncated")  # fields of task results that are not drawn
HEADED: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}


# Of the summaries of files: what is shown, what is left out first, and the room for names.
COUNTED = ("p50", "p90", "p99", "max", "longer", "unknown")
SPARE = ("p90", "p50", "p99", "unknown", "longer", "max")
NAMED = 16


def table(
    *names: str, figures: Iterable[str] = (), right: Iterable[str] = (), **look: Any
) -> Table:
    """Return a table with these columns; ``figures`` stay in one line, other long cells are folded.

    Figures are aligned right, and so are the columns in ``right``.
    """
    drawn = Table(box=SIMPLE_HEAD, **look)
    for name in names:
        side: Any = "right" if name in figures or name in right else "left"
        drawn.add_column(name, justify=side, overflow="fold", no_wrap=name in figures)
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


def show_tokens(windows: Iterable[Sequence[Encoded]], tokenizer: Tokenizer, inputs: Inputs) -> None:
    """Draw the first records of these inputs, each once it is read."""
    drawn = DrawnTexts.of(inputs)
    with drawing() as draw:
        for window in windows:
            for encoded in drawn.take(window, lambda one: min(one.length, MOST)):
                draw(token_table(encoded, tokenizer))
        if drawn.more:
            draw(drawn.rest())


def token_table(encoded: Encoded, tokenizer: Tokenizer) -> Table:
    """Draw one record, a token a row."""
    columns = ("#", "id", "token", "type", "mask", "span", "special")
    drawn = table(
        *columns, figures=("#", "id", "type", "mask", "span"), title=shown(encoded), **HEADED
    )
    names = {token: role.removesuffix("_token") for role, token in tokenizer.roles.items()}
    rows = zip(*(encoded.columns[name] for name in TABLE_COLUMNS), strict=True)
    for at, (index, kind, mask, special, token, span) in enumerate(islice(rows, MOST)):
        known = token in names and (special or index in tokenizer.special_ids().values())
        drawn.add_row(
            str(at),
            str(index),
            plain(token, "cyan" if known else ""),
            str(kind),
            str(mask),
            "" if special else f"{span[0]}-{span[1]}",
            names[token] if known else "",
            style="" if mask else "dim",
        )
    said = [f"{encoded.cut} tokens dropped"] if encoded.cut else []
    if encoded.length > MOST:
        said.append(f"... {encoded.length - MOST:,} more tokens; -f jsonl for all")
    drawn.caption = "\n".join(said) or None
    return drawn


def chunk_table(chunks: Sequence[Chunk]) -> Table:
    """Draw pieces of texts, a piece a row."""
    names = ("id", "chunk", "start", "end", "tokens")
    drawn = table(*names, "text", figures=names[1:], right=("id",))
    for chunk in chunks:
        key = chunk.sample if chunk.record.id is None else chunk.record.id
        numbers = (chunk.number, chunk.start, chunk.end, chunk.n_tokens)
        drawn.add_row(plain(str(key)), *map(str, numbers), plain(chunk.text))
    return drawn


def ids_table(tokens: Sequence[str], ids: Sequence[int]) -> Table:
    """Draw tokens beside their ids."""
    drawn = table("token", "id", figures=("id",))
    for token, index in zip(tokens, ids, strict=True):
        drawn.add_row(token, str(index))
    return drawn


def stats_view(summary: dict[str, Any]) -> Group:
    """Draw a corpus summary: numbers, a histogram of lengths, the commonest unknown words."""
    names = ("texts", "tokens", "words", "pieces_per_word")
    rows = [(name.replace("_", " "), f"{summary[name]:,}") for name in names]
    rows += [(f"length {name}", f"{value:,}") for name, value in summary["length"].items()]
    share = f"{summary['longer']:,} ({summary['longer_share']:.2%})"
    rows.append((f"longer than {summary['max_length']}", share))
    rows.append(("unknown words", f"{summary['unknown']:,} ({summary['unknown_share']:.2%})"))
    parts: list[RenderableType] = [pairs(rows, right=True)]
    if summary["histogram"]:
        parts += [Text(), _histogram(summary["histogram"])]
    if summary["unknown_words"]:
        found = ", ".join(f"{word} {count}" for word, count in summary["unknown_words"].items())
        parts += [Text(), plain(f"most unknown: {found}")]
    return Group(*parts)


def file_counts_table(rows: Sequence[dict[str, Any]], width: int) -> Table:
    """Return counts or summaries of files as a table, the total last.

    Where they do not fit beside the name of the file, some lengths are left out.
    """
    found = [{**row, **row.get("length", {})} for row in rows]
    names = ["texts", "tokens", *(name for name in COUNTED if name in found[0])]
    spare = [name for name in SPARE if name in names]
    cells = {name: [f"{row[name]:,}" for row in found] for name in names}
    while spare and sum(max(map(len, (n, *cells[n]))) + 3 for n in names) > width - NAMED:
        names.remove(spare.pop(0))
    drawn = table("file", *names, figures=names)
    for at, row in enumerate(rows):
        style = "bold" if row["file"] is None else None
        name = "total" if row["file"] is None else row["file"]
        drawn.add_row(name, *(cells[name][at] for name in names), style=style)
    return drawn


def _histogram(bars: Sequence[dict[str, int]]) -> Table:
    drawn = Table.grid(padding=(0, 1))
    drawn.add_column(justify="right", style="dim", no_wrap=True)
    drawn.add_column()
    drawn.add_column(justify="right", no_wrap=True)
    most = max(bar["texts"] for bar in bars)
    for bar in bars:
        low, high = bar["from"], bar["to"]
        label = str(low) if low == high else f"{low}-{high}"
        drawn.add_row(label, Bar(bar["texts"] / most, BAR, "cyan"), f"{bar['texts']:,}")
    return drawn


def vector_view(items: Sequence[Embedded], drawn: DrawnTexts) -> Group:
    """Draw shapes, norms and first values of vectors, and the similarity of a few texts."""
    found = FittedTable(("text", "tokens", "norm"), text_at=0)
    for encoded, vector, _ in items:
        norm, preview = _numbers(vector)
        found.add_row([shown(encoded), str(encoded.length), norm], preview)
    shape = " x ".join(f"{size:,}" for size in (len(items) + drawn.more, *items[0].vector.shape))
    rest = [drawn.rest()] if drawn.more else []
    alike = [SimilarityMatrix(items)] if 2 <= len(items) <= 10 and not rest else []
    return Group(found, *rest, Text(f"shape {shape}, float32", style="dim"), *alike)


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


def shown(encoded: Encoded) -> Text:
    """Return the text and its pair, or how they begin."""
    parts = (encoded.record.text, encoded.record.pair)
    whole = " | ".join(str(part) for part in parts if part is not None)
    return plain(whole if len(whole) <= MOST_CHARACTERS else f"{whole[:MOST_CHARACTERS]}…")


def show_vectors(items: Sequence[Embedded], drawn: DrawnTexts) -> None:
    """Draw the vectors of texts, or of their tokens or words."""
    with drawing() as draw:
        if items and items[0].pieces is None:
            draw(vector_view(items, drawn))
            return
        for picture in token_vector_views(items):
            draw(picture)
        if drawn.more:
            draw(drawn.rest())


def token_vector_views(items: Sequence[Embedded]) -> Iterator[Group]:
    """Yield a table of the tokens or words of each text, and the shape of their vectors."""
    for encoded, vectors, pieces in items:
        if pieces is None:
            continue
        drawn = _token_table(pieces, vectors)
        drawn.title = shown(encoded)
        more = len(vectors) - len(drawn.rows)
        shape = " x ".join(map(str, vectors.shape))
        rest = [f"... {more:,} more {pieces.name}; -f jsonl for all"] if more else []
        yield Group(drawn, Text("\n".join([*rest, f"shape {shape}, float32"]), style="dim"))


def _token_table(pieces: TokenVectors, vectors: np.ndarray) -> FittedTable:
    drawn = FittedTable(("#", pieces.name[:-1], "span", "norm"), text_at=1)
    rows = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    for number, (text, (start, stop), sequence, vector) in enumerate(islice(rows, MOST)):
        norm, preview = _numbers(vector)
        span = "" if sequence is None else f"{start}-{stop}"
        drawn.add_row([str(number), text, span, norm], preview)
    return drawn


def results_table(results: Sequence[Result]) -> Table:
    """Draw results, one item per row; the text is in the row of its first item."""
    from bertcli.tasks.results import flat_rows

    rows = [list(flat_rows(result)) for result in results]
    names = dict.fromkeys(name for some in rows for line in some for name in line)
    columns = [name for name in names if name not in HIDDEN]
    numbers = {name for some in rows for line in some for name in line if _number(line[name])}
    drawn = table("text", *columns, figures=numbers)
    for name, column in zip(columns, drawn.columns[1:], strict=True):
        cells = (len(str(line.get(name, ""))) for some in rows for line in some)
        column.no_wrap |= max([len(name), *cells]) <= SHORT_CELL
    for result, some in zip(results, rows, strict=True):
        text = _text(result)
        for line in some or [{}]:
            drawn.add_row(text, *(_cell(line.get(name)) for name in columns))
            text = Text()
    return drawn


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _cell(value: Any) -> Text:
    if value is None:
        return Text()
    return plain(f"{value:.4f}" if isinstance(value, float) else str(value))


def _text(result: Result) -> Text:
    record = result.record
    parts = [part for part in (record.text, record.pair) if part is not None]
    words = [" ".join(part) if isinstance(part, list) else part for part in parts]
    return plain(" | ".join(words))


def show_comparison(found: Agreement) -> None:
    """Draw a comparison."""
    with drawing() as draw:
        for picture in comparison_view(found):
            draw(picture)


def show_batches(
    batches: Iterable[Sequence[T]], view: Callable[[Sequence[T]], Table], inputs: Inputs
) -> None:
    """Draw the first rows that come of these inputs."""
    drawn = DrawnTexts.of(inputs)
    with drawing() as draw:
        for batch in batches:
            if first := drawn.take(batch):
                draw(view(first))
        if drawn.more:
            draw(drawn.rest())


def show_answers(found: Iterable[Sequence[Answer]], inputs: Inputs) -> None:
    """Draw the results of a search, each query as it is answered."""
    drawn = DrawnTexts.of(inputs)
    with drawing() as draw:
        for answers in found:
            for answer in drawn.take(answers, lambda one: len(one.hits)):
                draw(answer_view(answer))
        if drawn.more:
            draw(drawn.rest())


def comparison_view(found: Agreement) -> Iterator[RenderableType]:
    """Draw the differences of two files, and their worst rows."""
    kinds = [*found.dtype, "", ""]
    rows = [("a", f"{found.a}  {kinds[0]}"), ("b", f"{found.b}  {kinds[1]}")]
    if found.similarity is not None:
        yield pairs([*rows, *_similarity_rows(found, found.similarity)])
        return
    rows.append(("shape", " x ".join(map(str, found.shape))))
    rows.append(("identical", "yes" if found.identical else "no"))
    for name in ("max_abs", "mean_abs", "cosine_min", "cosine_mean"):
        value = getattr(found, name)
        rows.append((name.replace("_", " "), "-" if value is None else _shown(name, value)))
    numbers = pairs(rows)
    if found.not_finite:
        numbers.add_row("NaN or infinite", f"{found.not_finite:,} rows", style="red")
    yield numbers
    if found.worst and not found.identical:
        names = ("row", "max abs", "cosine")
        worst = table(*names, figures=names, title="worst rows")
        for row in found.worst:
            worst.add_row(
                f"{row.row}", _shown("max_abs", row.max_abs), _shown("cosine", row.cosine)
            )
        yield worst


def _similarity_rows(
    found: Agreement, similarity: SimilarityAgreement
) -> Iterator[tuple[str, str]]:
    """Yield what vectors of different widths agree on."""
    yield "rows", f"{found.shape[0]:,}"
    yield "widths", " and ".join(map(str, found.widths or ()))
    if similarity.seed is not None:
        yield "sample", f"{similarity.rows_compared:,} rows, seed {similarity.seed}"
    for name in ("similarity_correlation", "neighbour_overlap"):
        value = getattr(similarity, name)
        yield name.replace("_", " "), "-" if value is None else f"{value:.4f}"
    yield "neighbours", f"{similarity.neighbours} of each row, by cosine"
    if found.not_finite:
        yield "NaN or infinite", f"{found.not_finite:,} rows"


def answer_view(answer: Answer, *, numbered: bool = False) -> RenderableType:
    """Draw the nearest texts of a query, the nearest first; ``numbered`` from 1, and shortened."""
    with_text = any(hit.text for hit in answer.hits)
    names = [*(["#"] if numbered else []), "score", "row", "id", *(["text"] if with_text else [])]
    title = None if numbered else plain(str(answer.query.text))
    figures = {"#", "score", "row"}
    drawn = table(*names, figures=figures, right={"id"}, title=title, **HEADED)
    for rank, hit in enumerate(answer.hits, 1):
        cells = [f"{hit.match.score:.4f}", str(hit.match.row), str(hit.id)]
        text = [str(hit.text.text)] if hit.text else []
        if numbered:
            text = [one if len(one) <= SHORT else f"{one[:SHORT]}..." for one in text]
        drawn.add_row(*([str(rank)] if numbered else []), *cells, *text)
    if not answer.hits:
        drawn.caption = "no results"
    return drawn


def show_ranking(results: Sequence[Result]) -> None:
    """Draw texts with their scores, in the order of the results."""
    drawn, first = table("score", "row", "id", "text", figures=("score", "row")), DrawnTexts()
    for result in first.take(results):
        key = result.sample if result.record.id is None else result.record.id
        score = _cell(result.fields["score"])
        drawn.add_row(score, str(result.sample), plain(str(key)), _text(result))
    with drawing() as draw:
        if results:
            draw(drawn)
        if first.more:
            draw(first.rest())


def show_duplicates(run: Duplicates) -> None:
    """Draw groups of near-duplicates, each below the text that is kept."""
    first = DrawnTexts()
    with drawing() as draw:
        for group in first.take(run.groups, lambda one: len(one.rows)):
            drawn = table("score", "row", "id", "text", figures=("score", "row"))
            rows = [(group.keep, "kept"), *zip(group.rows, group.scores, strict=True)]
            shown_rows = DrawnTexts()
            for row, score in shown_rows.take(rows):
                shown_score = score if isinstance(score, str) else f"{score:.4f}"
                text = plain(str(run.texts[row].text))
                drawn.add_row(shown_score, str(row), plain(str(run.id_of(row))), text)
            draw(drawn)
            if shown_rows.more:
                draw(shown_rows.rest())
        if first.more:
            draw(Text(f"... {first.more:,} more groups; -f jsonl for all", "dim"))


def show_models(rows: Sequence[dict[str, Any]]) -> None:
    """Draw what is on this machine."""
    drawn = table("model", "state", "use", "MB", figures=("MB",))
    for row in rows:
        cells = [str(row[name]) for name in ("model", "state", "use")]
        drawn.add_row(*cells, f"{row['bytes'] / 1e6:,.1f}")
    with drawing() as draw:
        draw(drawn if rows else plain("no models"))


def hit_view(hit: Hit) -> RenderableType:
    """Draw one result in full: its fields, then its text."""
    found = {name: value for name, value in hit.fields().items() if name != "text"}
    fields = pairs([(name, _cell(value)) for name, value in found.items()])
    text = [Text(), plain(str(hit.text.text)), Text()] if hit.text else []
    return Group(fields, *text)


def _shown(name: str, value: float) -> str:
    return f"{value:.9f}" if name.startswith("cosine") else f"{value:.6g}"
