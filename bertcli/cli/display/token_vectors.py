"""The vectors of tokens or words as people see them on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.screen import drawing
from bertcli.cli.display.tables import shown, vector_view

if TYPE_CHECKING:
    import numpy as np

    from bertcli.embedding.embedder import Embedded
    from bertcli.embedding.token_vectors import TokenVectors

MOST = 40  # tokens or words of a text that are drawn


def show_vectors(items: Sequence[Embedded]) -> None:
    """Draw the vectors of texts, or of their tokens or words."""
    with drawing() as draw:
        if items and items[0].pieces is None:
            draw(vector_view(items))
        else:
            for picture in pieces_view(items):
                draw(picture)


def pieces_view(items: Sequence[Embedded]) -> Iterator[Group]:
    """Yield for each text a table of its tokens or words, and the shape of their vectors."""
    for encoded, vectors, pieces in items:
        if pieces is None:
            continue
        table = _table(pieces, vectors)
        table.title = shown(encoded)
        more = len(vectors) - table.row_count
        shape = " x ".join(map(str, vectors.shape))
        said = f"shape {shape}, float32" + (f"; {more} more {pieces.name}" if more else "")
        yield Group(table, Text(said, style="dim"))


def _table(pieces: TokenVectors, vectors: np.ndarray) -> Table:
    import numpy as np

    table = Table(title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in ("#", pieces.name[:-1], "span", "norm", ""):
        justify = "right" if name in ("#", "span", "norm") else "left"
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    rows = zip(pieces.texts, pieces.offsets, pieces.sequences, vectors, strict=True)
    for number, (text, (start, stop), sequence, vector) in enumerate(rows):
        if number == MOST:
            break
        flat = vector.reshape(-1)
        first = " ".join(f"{value:+.4f}" for value in flat[:4])
        span = "" if sequence is None else f"{start}-{stop}"
        table.add_row(str(number), text, span, f"{np.linalg.norm(flat):.4f}", f"{first} ...")
    return table
