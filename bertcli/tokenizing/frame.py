"""What a tokenizer puts around a text or a pair, learned from an example."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core


EXAMPLES = ("a", "0", ".", "的", "а", "ا", "अ")  # one of which has a token


class Frame(NamedTuple):
    """The special tokens of a text or a pair, and the token type of each of the seven parts."""

    before: list[int]
    between: list[int]
    after: list[int]
    types: list[int]


def frame_of(core: Core, *, pair: bool, special: bool) -> Frame | None:
    """Return what a tokenizer puts around texts; None where no such frame tells it all."""
    text = next((text for text in EXAMPLES if core.encode(text, add_special_tokens=False).ids), "")
    made = core.encode(text, text if pair else None, add_special_tokens=special)
    which, ids, types = made.sequence_ids, made.ids, made.type_ids
    if 0 not in which or (pair and 1 not in which):
        return None
    ends = [which.index(0), len(which) - which[::-1].index(0)]
    ends += [which.index(1), len(which) - which[::-1].index(1)] if pair else [ends[1], ends[1]]
    cuts = [0, *ends, len(ids)]
    if cuts != sorted(cuts):  # the second text comes first
        return None
    parts = [types[start:stop] for start, stop in pairwise(cuts)]
    if any(len({*part}) > 1 for part in parts):
        return None
    found = [0, *(part[0] if part else 0 for part in parts), 0]
    return Frame(ids[: ends[0]], ids[ends[1] : ends[2]], ids[ends[3] :], found)
