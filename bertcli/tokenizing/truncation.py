"""Which tokens of a text or a pair are kept when there are too many, and in which windows.

The rules are those of tokenizers (`truncate_encodings`), on plain lengths: no text, no tensor.
"""

from __future__ import annotations

from typing import NamedTuple

from bertcli.errors import counted

Span = tuple[int, int]


class Window(NamedTuple):
    """The tokens [start, stop) of the first and of the second sequence that are kept together."""

    first: Span
    second: Span


class TooShortError(ValueError):
    """The sequence that may be truncated is too short; ``way`` says what to do."""

    def __init__(self, message: str, way: str = "use another --truncation") -> None:
        super().__init__(message)
        self.way = way


def windows(
    first: int,
    second: int | None,
    room: int,
    strategy: str,
    *,
    side: str = "right",
    stride: int = 0,
) -> list[Window]:
    """Return all windows of sequences of these lengths; the first is the truncated text.

    ``room`` is the number of tokens without special ones, ``second`` None for a single text,
    ``stride`` the number of tokens that neighbouring windows share. Without a need to cut there is
    one window. Where both sequences are cut, every part of one meets every part of the other.

    Raises TooShortError when ``strategy`` (longest_first, only_first, only_second) cannot do it.
    """
    over = first + (second or 0) - room
    if over <= 0:
        return [Window((0, first), (0, second or 0))]
    keep_first, keep_second = kept(first, second, room, strategy)
    firsts = _parts(first, keep_first, side, stride)
    if second is None:
        return [Window(part, (0, 0)) for part in firsts]
    seconds = _parts(second, keep_second, side, stride)
    return [
        Window(firsts[0], seconds[0]),
        *(Window(part, other) for part in firsts[1:] for other in seconds),
        *(Window(firsts[0], other) for other in seconds[1:]),
    ]


def kept(first: int, second: int | None, room: int, strategy: str) -> Span:
    """Return how many tokens of each of two sequences that are too long one window holds.

    Raises TooShortError as `windows`.
    """
    if second is None:
        if strategy == "only_second":
            raise TooShortError("only_second cannot shorten a text that has no pair")
        return room, 0
    match strategy:
        case "longest_first":
            shorter = min(first, second)
            longer = max(shorter, room - shorter)
            if shorter + longer > room:
                shorter, longer = room // 2, room - room // 2
            return (shorter, longer) if first <= second else (longer, shorter)
        case "only_first":
            keep, fixed, name = room - second, second, "second"
        case "only_second":
            keep, fixed, name = room - first, first, "first"
        case unknown:
            raise ValueError(f"unknown truncation strategy {unknown!r}")
    if keep <= 0:
        raise TooShortError(
            f"{strategy}: the {name} text alone has {counted(fixed, 'token')}, and {room:,} fit",
            "shorten that text",
        )
    return (keep, second) if strategy == "only_first" else (first, keep)


def _parts(length: int, size: int, side: str, stride: int) -> list[Span]:
    """Split a sequence into parts of ``size`` from its start, or from its end (side "left")."""
    if length <= size or size == 0:
        return [(0, min(length, size))]
    if size <= stride:
        raise TooShortError(
            f"windows of {size} tokens cannot share {stride}", "use a smaller --stride"
        )
    starts = range(0, length - stride, size - stride)
    parts = [(start, min(start + size, length)) for start in starts]
    if side == "left":
        return [(length - stop, length - start) for start, stop in parts]
    return parts
