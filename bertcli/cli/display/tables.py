"""What people see on a terminal, drawn with Rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.screen import drawing, plain
from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedded

TABLE_COLUMNS = (
    "input_ids",
    "token_type_ids",
    "attention_mask",
    "special_tokens_mask",
    "tokens",
    "offset_mapping",
)
BAR = 40  # characters of the longest bar of a histogram


def show_tokens(windows: Iterable[Sequence[Encoded]], tokenizer: Tokenizer) -> None:
    """Draw records, each once it is read."""
    with drawing() as draw:
        for window in windows:
            for encoded in window:
                draw(token_table(encoded, tokenizer))


def token_table(encoded: Encoded, tokenizer: Tokenizer) -> Table:
    """Draw one record, a token a row."""
    title = shown(encoded)
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name, justify in (
        ("#", "right"),
        ("id", "right"),
        ("token", "left"),
        ("type", "right"),
        ("mask", "right"),
        ("span", "right"),
        ("special", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    names = {token: role.removesuffix("_token") for role, token in tokenizer.roles.items()}
    for at, (index, kind, mask, special, token, span) in enumerate(
        zip(*(encoded.columns[name] for name in TABLE_COLUMNS), strict=True)
    ):
        known = token in names and (special or index in tokenizer.special_ids().values())
        table.add_row(
            str(at),
            str(index),
            plain(token, "cyan" if known else ""),
            str(kind),
            str(mask),
            "" if special else f"{span[0]}-{span[1]}",
            names[token] if known else "",
            style="" if mask else "dim",
        )
    if encoded.cut:
        table.caption = f"{encoded.cut} tokens were cut"
    return table


def ids_table(tokens: Sequence[str], ids: Sequence[int]) -> Table:
    """Draw tokens beside their ids."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("token", overflow="fold")
    table.add_column("id", justify="right", overflow="fold")
    for token, index in zip(tokens, ids, strict=True):
        table.add_row(token, str(index))
    return table


def stats_view(summary: dict[str, Any]) -> Group:
    """Draw a corpus summary: numbers, a histogram of lengths, the commonest unknown words."""
    numbers = Table.grid(padding=(0, 2))
    numbers.add_column(style="dim")
    numbers.add_column(justify="right")
    for name in ("texts", "tokens", "words", "pieces_per_word"):
        numbers.add_row(name.replace("_", " "), f"{summary[name]:,}")
    for name, value in summary["length"].items():
        numbers.add_row(f"length {name}", f"{value:,}")
    share = f"{summary['longer']:,} ({summary['longer_share']:.2%})"
    numbers.add_row(f"longer than {summary['max_length']}", share)
    numbers.add_row("unknown words", f"{summary['unknown']:,} ({summary['unknown_share']:.2%})")
    parts: list[RenderableType] = [numbers]
    if summary["histogram"]:
        parts += [Text(), _histogram(summary["histogram"])]
    if summary["unknown_words"]:
        found = ", ".join(f"{word} {count}" for word, count in summary["unknown_words"].items())
        parts += [Text(), plain(f"most unknown: {found}")]
    return Group(*parts)


def _histogram(bars: Sequence[dict[str, int]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column()
    table.add_column(justify="right")
    most = max(bar["texts"] for bar in bars)
    for bar in bars:
        width = round(BAR * bar["texts"] / most)
        low, high = bar["from"], bar["to"]
        label = str(low) if low == high else f"{low}-{high}"
        table.add_row(label, Text("█" * width, style="cyan"), f"{bar['texts']:,}")
    return table


def vector_view(items: Sequence[Embedded]) -> Group:
    """Draw shapes, norms and first values of vectors, and how alike a few texts are."""
    import numpy as np

    table = Table(box=SIMPLE_HEAD)
    for name, justify in (("text", "left"), ("tokens", "right"), ("norm", "right"), ("", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for encoded, vector, _ in items:
        flat = vector.reshape(-1)
        first = " ".join(f"{value:+.4f}" for value in flat[:4])
        norm = f"{np.linalg.norm(flat):.4f}"
        table.add_row(_short(encoded), str(encoded.length), norm, f"{first} ...")
    shape = " x ".join(map(str, (len(items), *items[0].vector.shape)))
    alike = [_similarity(items)] if 2 <= len(items) <= 10 else []
    return Group(table, Text(f"shape {shape}, float32", style="dim"), *alike)


def _similarity(items: Sequence[Embedded]) -> Table:
    import numpy as np

    vectors = np.stack([item.vector.reshape(-1) for item in items])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    table = Table(title="cosine similarity", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for number in range(1, len(items) + 1):
        table.add_column(str(number), justify="right")
    for number, (item, row) in enumerate(zip(items, vectors @ vectors.T, strict=True), 1):
        cells = [Text(f"{value:.2f}", style=_warmth(value)) for value in row]
        table.add_row(plain(f"{number} {_short(item.encoded)}"), *cells)
    return table


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
