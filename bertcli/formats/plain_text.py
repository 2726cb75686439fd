"""Plain text: one row per line, with tabs between its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bertcli.errors import OutputError, option
from bertcli.formats.tables import Row, cell, without_headers


def encoder() -> Callable[[Sequence[Row]], bytes]:
    """Return a function from rows to lines."""

    def encode(rows: Sequence[Row]) -> bytes:
        return "".join(map(to_text, without_headers(rows))).encode()

    return encode


def to_text(row: Row) -> str:
    """Return a row as a plain line. Raises OutputError for a value with a line end, or a tab.

    A single value may contain tabs.
    """
    values = [
        " ".join(map(str, value)) if isinstance(value, list) else str(cell(value))
        for value in row.values()
    ]
    if any(end in value for value in values for end in ("\t\r\n" if len(values) > 1 else "\n")):
        raise OutputError(
            "a value holds a tab or a line end, which a plain line cannot hold",
            f"{option('format', 'jsonl')} can hold it",
        )
    return "\t".join(values) + "\n"


def ended_text(text: str, where: str, noun: str, *, null: bool) -> bytes:
    """Return a text with its end, a newline or NUL, as UTF-8.

    Raises OutputError for a text that contains its end; ``noun`` says what it is in the message.
    """
    end = "\0" if null else "\n"
    if end in text:
        raise OutputError(
            f"{where}: a {noun} holds {end!r}, which ends it",
            f"-0 ends {noun}s with NUL, {option('format', 'jsonl')} holds any text",
        )
    return (text + end).encode()
