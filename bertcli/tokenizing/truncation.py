"""Truncation: the tokens of a text or a pair that fit into a window of bounded length.

`token_windows` handles one record with lists and without numpy, to avoid its import for a single
text; `kept_of_many` and `windows_of_many` handle arrays of lengths. `dropped_tokens` counts the
tokens that truncation drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from bertcli.errors import InputError, counted, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Lengths = NDArray[np.int64]


Span = tuple[int, int]
Window = tuple[Span, Span]  # the token span [start, stop) of each text


def token_windows(
    first: int,
    second: int | None,
    room: int,
    strategy: str,
    *,
    side: str = "right",
    stride: int = 0,
) -> list[Window]:
    """Return all windows of sequences of these lengths; the first is the truncated text.

    ``room`` is the number of tokens without special tokens, ``second`` is None for a single text,
    ``stride`` is the number of tokens that consecutive windows share. If everything fits, there is
    one window. If both sequences are truncated, every span of one is combined with every span of
    the other.

    Raises InputError if ``strategy`` (longest_first, only_first, only_second) cannot truncate
    enough.
    """
    if first + (second or 0) <= room:
        return [((0, first), (0, second or 0))]
    if second is None:
        if strategy == "only_second":
            raise InputError(
                "only_second cannot shorten a text that has no pair",
                f"use another {option('truncation')}",
            )
        return [(span, (0, 0)) for span in _spans(first, room, side, stride)]
    kept_first, kept_second = kept_lengths(first, second, room, strategy)
    first_spans = _spans(first, kept_first, side, stride)
    second_spans = _spans(second, kept_second, side, stride)
    return [
        (first_spans[0], second_spans[0]),
        *product(first_spans[1:], second_spans),
        *product(first_spans[:1], second_spans[1:]),
    ]


def kept_lengths(first: int, second: int, room: int, strategy: str) -> Span:
    """Return how many tokens of each of two sequences a window keeps, if the pair is too long.

    Raises InputError as `token_windows` does.
    """
    if strategy == "longest_first":
        shorter = min(first, second, room // 2)
        return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
    truncates_first = strategy == "only_first"
    fixed = second if truncates_first else first
    if room <= fixed:
        name = "second" if truncates_first else "first"
        raise InputError(
            f"{strategy}: the {name} text alone has {counted(fixed, 'token')}, and {room:,} fit",
            "shorten that text",
        )
    return (room - fixed, fixed) if truncates_first else (fixed, room - fixed)


def dropped_tokens(lengths: Sequence[int], window: Window) -> int:
    """Return how many tokens of texts of these lengths are outside of a window."""
    return sum(lengths) - sum(stop - start for start, stop in window)


def kept_of_many(lengths: Lengths, room: int, strategy: str) -> Lengths:
    """Return how many tokens of texts [1, B], or of pairs [2, B], fit into ``room`` tokens each.

    Raises InputError as `token_windows` does.
    """
    import numpy as np

    kept = np.minimum(lengths, room)
    if len(lengths) == 2:
        for row in np.flatnonzero(lengths.sum(axis=0) > room).tolist():
            first, second = lengths[:, row].tolist()
            kept[:, row] = kept_lengths(first, second, room, strategy)
    return kept


def windows_of_many(lengths: Lengths, room: int, stride: int) -> tuple[Lengths, Lengths, Lengths]:
    """Return the windows of texts [B]: the text index, first token and length of each.

    A window has at most ``room`` tokens, and shares ``stride`` tokens with the previous window.
    """
    import numpy as np

    counts = np.ones(len(lengths), np.int64)
    if room:
        is_long = lengths > room
        counts[is_long] = -(-(lengths[is_long] - stride) // (room - stride))
    texts = np.repeat(np.arange(len(lengths)), counts)
    window_numbers = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = window_numbers * (room - stride)
    return texts, starts, np.minimum(lengths[texts] - starts, room)


def _spans(length: int, size: int, side: str, stride: int) -> list[Span]:
    """Return spans of ``size`` tokens of a sequence, from its start or its end (side "left").

    Raises InputError if spans cannot share ``stride`` tokens.
    """
    if length <= size or size == 0:
        return [(0, min(length, size))]
    if size <= stride:
        raise InputError(
            f"windows of {size} tokens cannot share {stride}", f"use a smaller {option('stride')}"
        )
    starts = range(0, length - stride, size - stride)
    spans = [(start, min(start + size, length)) for start in starts]
    if side == "left":
        return [(length - stop, length - start) for start, stop in spans]
    return spans


def layout_strategies(
    padding: str | None,
    truncation: str | None,
    max_length: int | None,
    *,
    overflowing: bool = False,
) -> tuple[str, str]:
    """Return the padding and truncation strategies for these values, as in transformers.

    "true" means longest, or longest_first. A length alone turns on truncation, unless a padding
    strategy (even do_not_pad) is given; so does ``overflowing``.
    """
    paddings = {None: "do_not_pad", "false": "do_not_pad", "true": "longest"}
    truncations = {"false": "do_not_truncate", "true": "longest_first"}
    if truncation is None:
        has_only_length = max_length is not None and padding in (None, "false")
        truncation = "true" if has_only_length or overflowing else "false"
    return paddings.get(padding, padding or ""), truncations.get(truncation, truncation)
