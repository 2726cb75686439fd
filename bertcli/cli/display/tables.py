"""Results as tables on a terminal: tokens, statistics, vectors, task results, searches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

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
    from bertcli.vectors.search import Answer, Hit

TABLE_COLUMNS = (
    "input_ids",
    "token_type_ids",
    "attention_mask",
    "special_tokens_mask",
    "tokens",
    "offset_mapping",
)
BAR = 40  # characters of the longest bar of a histogram
MOST_ROWS = 1000  # tokens of a text that have a row of their own
SHORT = 160  # characters of a text among numbered results
MOST = 40  # tokens or words of a text that are drawn
HIDDEN = ("id", "truncated")  # fields of task results that are not drawn
HEADED: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}


def table(*names: str, right: Iterable[str] = (), wrap: bool = True, **look: Any) -> Table:
    """Return a table with these columns; those in ``right`` are aligned right.

    Long cells are folded, or cut off without ``wrap``.
    """
    drawn = Table(box=SIMPLE_HEAD, **look)
    for name in names:
        drawn.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold" if wrap else "ellipsis",
            no_wrap=not wrap,
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


def show_tokens(windows: Iterable[Sequence[Encoded]], tokenizer: Tokenizer) -> None:
    """Draw records, each once it is read."""
    with drawing() as draw:
        for window in windows:
            for encoded in window:
                draw(token_table(encoded, tokenizer))


def token_table(encoded: Encoded, tokenizer: Tokenizer) -> Table:
    """Draw one record, a token a row."""
    columns = ("#", "id", "token", "type", "mask", "span", "special")
    drawn = table(
        *columns, right=("#", "id", "type", "mask", "span"), title=shown(encoded), **HEADED
    )
    names = {token: role.removesuffix("_token") for role, token in tokenizer.roles.items()}
    rows = zip(*(encoded.columns[name] for name in TABLE_COLUMNS), strict=True)
    for at, (index, kind, mask, special, token, span) in enumerate(islice(rows, MOST_ROWS)):
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
    if encoded.length > MOST_ROWS:
        said.append(f"the first {MOST_ROWS} of {encoded.length} tokens: -f jsonl has all")
    drawn.caption = "\n".join(said) or None
    return drawn


def chunk_table(chunks: Sequence[Chunk]) -> Table:
    """Draw pieces of texts, a piece a row."""
    names = ("id", "chunk", "start", "end", "tokens")
    drawn = table(*names, "text", right=names)
    for chunk in chunks:
        key = chunk.sample if chunk.record.id is None else chunk.record.id
        numbers = (chunk.number, chunk.start, chunk.end, chunk.n_tokens)
        drawn.add_row(plain(str(key)), *map(str, numbers), plain(chunk.text))
    return drawn


def ids_table(tokens: Sequence[str], ids: Sequence[int]) -> Table:
    """Draw tokens beside their ids."""
    drawn = table("token", "id", right=("id",))
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


def _histogram(bars: Sequence[dict[str, int]]) -> Table:
    drawn = Table.grid(padding=(0, 1))
    drawn.add_column(justify="right", style="dim")
    drawn.add_column()
    drawn.add_column(justify="right")
    most = max(bar["texts"] for bar in bars)
    for bar in bars:
        width = round(BAR * bar["texts"] / most)
        low, high = bar["from"], bar["to"]
        label = str(low) if low == high else f"{low}-{high}"
        drawn.add_row(label, Text("█" * width, style="cyan"), f"{bar['texts']:,}")
    return drawn


def vector_view(items: Sequence[Embedded]) -> Group:
    """Draw shapes, norms and first values of vectors, and the similarity of a few texts."""
    import numpy as np

    drawn = table("text", "tokens", "norm", "", right=("tokens", "norm"), wrap=False)
    for encoded, vector, _ in items:
        flat = vector.reshape(-1)
        first = " ".join(f"{value:+.4f}" for value in flat[:4])
        norm = f"{np.linalg.norm(flat):.4f}"
        drawn.add_row(_short(encoded), str(encoded.length), norm, f"{first} ...")
    shape = " x ".join(map(str, (len(items), *items[0].vector.shape)))
    alike = [_similarity(items)] if 2 <= len(items) <= 10 else []
    return Group(drawn, Text(f"shape {shape}, float32", style="dim"), *alike)


def _similarity(items: Sequence[Embedded]) -> Table:
    import numpy as np

    vectors = np.stack([item.vector.reshape(-1) for item in items])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    numbers = [str(number) for number in range(1, len(items) + 1)]
    drawn = table("", *numbers, right=numbers, title="cosine similarity", title_justify="left")
    for number, (item, row) in enumerate(zip(items, vectors @ vectors.T, strict=True), 1):
        cells = [Text(f"{value:.2f}", style=_warmth(value)) for value in row]
        drawn.add_row(plain(f"{number} {_short(item.encoded)}"), *cells)
    return drawn


def _warmth(cosine: float) -> str:
    return "bold" if cosine > 0.7 else "" if cosine > 0.3 else "dim"


def _short(encoded: Encoded) -> Text:
    text = shown(encoded)
    text.truncate(40, overflow="ellipsis")
    return text


def shown(encoded: Encoded) -> Text:
    """Return the text and its pair."""
    parts = (encoded.record.text, encoded.record.pair)
    return plain(" | ".join(str(part) for part in parts if part is not None))


def show_vectors(items: Sequence[Embedded]) -> None:
    """Draw the vectors of texts, or of their tokens or words."""
    with drawing() as draw:
        if items and items[0].pieces is None:
            draw(vector_view(items))
        else:
            for picture in token_vector_views(items):
                draw(picture)


def token_vector_views(items: Sequence[Embedded]) -> Iterator[Group]:
    """Yield a table of the tokens or words of each text, and the shape of their vectors."""
    for encoded, vectors, pieces in items:
        if pieces is None:
            continue
        drawn = _token_table(pieces, vectors)
        drawn.title = shown(encoded)
        more = len(vectors) - drawn.row_count
        shape = " x ".join(map(str, vectors.shape))
        said = f"shape {shape}, float32" + (f"; {more} more {pieces.name}" if more else "")
        yield Group(drawn, Text(said, style="dim"))


def _token_table(pieces: TokenVectors, vectors: np.ndarray) -> Table:
    import numpy as np

    columns = ("#", pieces.name[:-1], "span", "norm", "")
    drawn = table(*columns, right=("#", "span", "norm"), wrap=False, **HEADED)
    rows = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    for number, (text, (start, stop), sequence, vector) in enumerate(rows):
        if number == MOST:
            break
        flat = vector.reshape(-1)
        first = " ".join(f"{value:+.4f}" for value in flat[:4])
        span = "" if sequence is None else f"{start}-{stop}"
        drawn.add_row(str(number), text, span, f"{np.linalg.norm(flat):.4f}", f"{first} ...")
    return drawn


def results_table(results: Sequence[Result]) -> Table:
    """Draw results, one item per row; the text is in the row of its first item."""
    from bertcli.tasks.results import flat_rows

    rows = [list(flat_rows(result)) for result in results]
    names = dict.fromkeys(name for some in rows for line in some for name in line)
    columns = [name for name in names if name not in HIDDEN]
    numbers = {name for some in rows for line in some for name in line if _number(line[name])}
    drawn = table("text", *columns, right=numbers)
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


def show_answers(found: Iterable[Sequence[Answer]]) -> None:
    """Draw the results of a search, each query as it is answered."""
    with drawing() as draw:
        for answers in found:
            for answer in answers:
                draw(answer_view(answer))


def comparison_view(found: Agreement) -> Iterator[RenderableType]:
    """Draw the differences of two files, and their worst rows."""
    kinds = [*found.dtype, "", ""]
    rows = [("a", f"{found.a}  {kinds[0]}"), ("b", f"{found.b}  {kinds[1]}")]
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
        worst = Table("row", "max abs", "cosine", box=SIMPLE_HEAD, title="worst rows")
        for row in found.worst:
            worst.add_row(
                f"{row.row}", _shown("max_abs", row.max_abs), _shown("cosine", row.cosine)
            )
        yield worst


def answer_view(answer: Answer, *, numbered: bool = False) -> RenderableType:
    """Draw the nearest texts of a query, the nearest first; ``numbered`` from 1, and shortened."""
    with_text = any(hit.text for hit in answer.hits)
    names = [*(["#"] if numbered else []), "score", "row", "id", *(["text"] if with_text else [])]
    right = {"#", "score", "row", "id"}
    title = None if numbered else plain(str(answer.query.text))
    drawn = table(*names, right=right, title=title, **HEADED)
    for rank, hit in enumerate(answer.hits, 1):
        cells = [f"{hit.match.score:.4f}", str(hit.match.row), str(hit.id)]
        text = [str(hit.text.text)] if hit.text else []
        if numbered:
            text = [one if len(one) <= SHORT else f"{one[:SHORT]}..." for one in text]
        drawn.add_row(*([str(rank)] if numbered else []), *cells, *text)
    if not answer.hits:
        drawn.caption = "no results"
    return drawn


def hit_view(hit: Hit) -> RenderableType:
    """Draw one result in full: its fields, then its text."""
    found = {name: value for name, value in hit.fields().items() if name != "text"}
    fields = pairs([(name, _cell(value)) for name, value in found.items()])
    text = [Text(), plain(str(hit.text.text)), Text()] if hit.text else []
    return Group(fields, *text)


def _shown(name: str, value: float) -> str:
    return f"{value:.9f}" if name.startswith("cosine") else f"{value:.6g}"
