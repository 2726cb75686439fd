"""Entities of tagged words, counted as seqeval counts them by default (those of conlleval)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertcli.evaluation.classes import macro

OUTSIDE = ("O", "", "-")


def entities(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the type, the first and the last word of each entity of a sentence."""
    start, before, kind = 0, "O", ""
    for at, tag in enumerate([*tags, "O"]):
        prefix, now = _parts(tag)
        if before != "O" and _ends(before, prefix, kind, now):
            yield kind, start, at - 1
        if _starts(before, prefix, kind, now):
            start = at
        before, kind = prefix, now


def _parts(tag: str) -> tuple[str, str]:
    if tag in OUTSIDE:
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    return (prefix, kind) if dash else (tag[0], "_")


def _ends(before: str, prefix: str, kind: str, now: str) -> bool:
    return before in ("E", "S") or prefix in ("B", "S", "O") or kind != now


def _starts(before: str, prefix: str, kind: str, now: str) -> bool:
    inside = before in ("E", "S", "O") and prefix in ("E", "I")
    return prefix in ("B", "S") or inside or (prefix != "O" and kind != now)


@dataclass(frozen=True)
class TagPredictions:
    """The tags of the words of n sentences, true and said."""

    truth: Sequence[Sequence[str]]
    said: Sequence[Sequence[str]]

    @cached_property
    def kinds(self) -> list[str]:
        """The types of entities."""
        both = (*self.truth, *self.said)
        return sorted({kind for tags in both for kind, _, _ in entities(tags)})

    @cached_property
    def counts(self) -> np.ndarray:
        """Entities right, true and said of each sentence and type, [n, 3, kinds]."""
        number = {kind: at for at, kind in enumerate(self.kinds)}
        found = np.zeros((len(self.truth), 3, len(number)), np.int64)
        for row, pair in enumerate(zip(self.truth, self.said, strict=True)):
            true, said = ({*entities(tags)} for tags in pair)
            for place, group in enumerate((true & said, true, said)):
                for kind, _, _ in group:
                    found[row, place, number[kind]] += 1
        return found

    @cached_property
    def words(self) -> np.ndarray:
        """Words right, and all words of each sentence, [n, 2]."""
        pairs = zip(self.truth, self.said, strict=True)
        same = [(sum(map(str.__eq__, true, said)), len(true)) for true, said in pairs]
        return np.array(same, np.int64).reshape(-1, 2)

    def metrics(self, rows: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """Return precision, recall and F1 of entities, and the accuracy of words."""
        right, truths, said = self.counts[rows].sum(0)
        words = self.words[rows].sum(0)
        return {
            "precision": float(right.sum() / max(said.sum(), 1)),
            "recall": float(right.sum() / max(truths.sum(), 1)),
            "f1": float(2 * right.sum() / max(truths.sum() + said.sum(), 1)),
            "macro_f1": macro(right, truths, said),
            "accuracy": float(words[0] / max(words[1], 1)),
        }
