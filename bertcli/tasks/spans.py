"""Start and end scores of tokens to answers, by the rules of transformers' question answering.

The softmax is over the context and [CLS], which stands for "no answer". A span scores the product
of its start and its end, grows to whole words, and adds to an equal answer found elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertcli.tokenizing.columns import Encoded, span

NONE = {"answer": "", "score": 0.0, "start": 0, "end": 0}


class Span(NamedTuple):
    """A candidate: its score, and its first and last token."""

    score: float
    first: int
    last: int


@dataclass(frozen=True)
class Choosing:
    """How many answers are given, how many tokens one has, and whether there may be none."""

    top_k: int = 1
    max_answer_length: int = 15
    no_answer: bool = False

    def answers(self, windows: Sequence[tuple[Encoded, np.ndarray]]) -> list[dict[str, Any]]:
        """Return the best answers in the windows of one context, from their logits [L, 2]."""
        found: dict[str, dict[str, Any]] = {}
        nothing = 1.0
        for item, logits in windows:
            start, end = probabilities(item, logits)
            nothing = min(nothing, float(start[0] * end[0]))
            start[0] = end[0] = 0.0
            # spans that become equal when they grow to words leave room for others
            count = 2 * self.top_k + 10
            for best in candidates(start, end, self.max_answer_length, count):
                answer = in_context(item, best)
                same = found.setdefault(answer["answer"].lower(), answer)
                if same is not answer:
                    same["score"] += answer["score"]
        rest = [{**NONE, "score": nothing}] if self.no_answer else []
        return sorted([*found.values(), *rest], key=lambda one: -one["score"])[: self.top_k]


def probabilities(item: Encoded, logits: np.ndarray) -> np.ndarray:
    """Return how likely each token is the start and the end, [2, L]; 0 outside of the context."""
    first, stop = span(item.columns["sequence_ids"], 1)
    allowed = np.zeros(len(logits), dtype=bool)
    allowed[0] = allowed[first:stop] = True
    masked = np.where(allowed, logits.T, -np.inf)
    likely = np.exp(masked - masked.max(axis=1, keepdims=True))
    shares: np.ndarray = likely / likely.sum(axis=1, keepdims=True)
    return shares


def candidates(start: np.ndarray, end: np.ndarray, longest: int, count: int) -> Iterator[Span]:
    """Yield the best spans of at most so many tokens, best first; none that is impossible."""
    length = len(start)
    width = min(longest, length)
    ends = np.concatenate([end, np.zeros(width, end.dtype)])
    scores = start[:, None] * np.lib.stride_tricks.sliding_window_view(ends, width)[:length]
    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    for first, more in zip(*np.unravel_index(order, scores.shape), strict=True):
        if scores[first, more] > 0:
            yield Span(float(scores[first, more]), int(first), int(first + more))


def in_context(item: Encoded, best: Span) -> dict[str, Any]:
    """Return a span as an answer: whole words, with its characters in the context."""
    offsets, words = item.columns["offset_mapping"], item.columns["word_ids"]
    first, stop = span(item.columns["sequence_ids"], 1)
    begin, last = best.first, best.last
    while begin > first and words[begin - 1] == words[begin]:
        begin -= 1
    while last + 1 < stop and words[last + 1] == words[last]:
        last += 1
    start, end = offsets[begin][0], offsets[last][1]
    context = item.record.pair
    text = context[start:end] if isinstance(context, str) else ""
    return {"answer": text, "score": best.score, "start": start, "end": end}
