"""Sentences of words in windows, where they have more tokens than the model takes.

Neighbours share a quarter of their tokens. A word belongs to one window: the one that has most
tokens around its first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from bertcli.tokenizing.columns import Encoded, Layout

SHARED = 4  # a window shares one of so many tokens with the next one


def word_windows(layout: Layout) -> Layout:
    """Return the layout of windows as long as the layout's texts."""
    return replace(layout, overflowing=True, stride=(layout.max_length or 0) // SHARED)


def own_words(items: Sequence[Encoded]) -> Iterator[dict[int, int]]:
    """Yield the words of each window, and the places of their first tokens; each word once."""
    for _, windows in groupby(items, key=lambda item: item.sample):
        yield from _of_sentence(list(windows))


def _of_sentence(windows: Sequence[Encoded]) -> list[dict[int, int]]:
    best: dict[int, tuple[float, int, int]] = {}  # tokens around it, the window, the place
    for number, item in enumerate(windows):
        found: set[int] = set()
        for place, word in enumerate(item.columns["word_ids"]):
            if word is None or word in found:
                continue
            begun_before = word in best and not found  # then its first token may be elsewhere
            found.add(word)
            left = place if number else inf
            right = item.length - place if number + 1 < len(windows) else inf
            around = min(left, right)
            if word not in best or (around > best[word][0] and not begun_before):
                best[word] = around, number, place
    own: list[dict[int, int]] = [{} for _ in windows]
    for word, (_, number, place) in best.items():
        own[number][word] = place
    return own
