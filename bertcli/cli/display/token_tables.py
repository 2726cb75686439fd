"""Tokens, pieces of texts and their statistics as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.screen import plain, screen_of_stdout, show
from bertcli.cli.display.tables import HEADED, MOST, Bar, Inputs, pairs, show_batches, shown, table
from bertcli.errors import counted

if TYPE_CHECKING:
    from bertcli.tokenizing.chunks import Chunk
    from bertcli.tokenizing.columns import Encoded
    from bertcli.tokenizing.tokenizer import Tokenizer


TABLE_COLUMNS = (
    "input_ids",
    "token_type_ids",
    "attention_mask",
    "special_tokens_mask",
    "tokens",
    "offset_mapping",
)
BAR = 40  # characters of the longest bar of a histogram

# Of the summaries of files: what is shown, what is left out first, and the room for names.
COUNTED = ("p50", "p90", "p99", "max", "longer", "unknown")
SPARE = ("p90", "p50", "p99", "unknown", "longer", "max")
NAMED = 16


def show_tokens(windows: Iterable[Sequence[Encoded]], tokenizer: Tokenizer, inputs: Inputs) -> None:
    """Draw the first records of these inputs, each once it is read."""

    def view(records: Sequence[Encoded]) -> Group:
        return Group(*(token_table(encoded, tokenizer) for encoded in records))

    show_batches(windows, view, inputs, lambda encoded: min(encoded.length, MOST))


def token_table(encoded: Encoded, tokenizer: Tokenizer) -> Table:
    """Draw one record, a token a row."""
    columns = ("#", "id", "token", "type", "mask", "span", "special")
    drawn = table(
        *columns, figures=("#", "id", "type", "mask", "span"), title=shown(encoded), **HEADED
    )
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


def show_stats(summary: dict[str, Any]) -> None:
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
        unknown = ", ".join(f"{word} {count}" for word, count in summary["unknown_words"].items())
        parts += [Text(), plain(f"most unknown: {unknown}")]
    show(Group(*parts))


def show_file_counts(rows: Sequence[dict[str, Any]]) -> None:
    """Draw counts or summaries of files, the total last.

    Where they do not fit beside the name of the file, some lengths are left out.
    """
    with screen_of_stdout() as screen:
        counts = [{**row, **row.get("length", {})} for row in rows]
        names = ["texts", "tokens", *(name for name in COUNTED if name in counts[0])]
        spare = [name for name in SPARE if name in names]
        cells = {name: [f"{row[name]:,}" for row in counts] for name in names}
        room = screen.width - NAMED
        while spare and sum(max(map(len, (n, *cells[n]))) + 3 for n in names) > room:
            names.remove(spare.pop(0))
        drawn = table("file", *names, figures=names)
        for at, row in enumerate(rows):
            style = "bold" if row["file"] is None else None
            name = "total" if row["file"] is None else row["file"]
            drawn.add_row(name, *(cells[name][at] for name in names), style=style)
        screen.print(drawn)


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
