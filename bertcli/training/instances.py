"""From documents to pairs of segments, and from a pair to an instance.

Source: ``create_instances_from_document`` of Google's code for Devlin et al. 2018, with one change:
a random segment is always of another document, not only nearly so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple

from bertcli.training.masking import Masked, Masker
from bertcli.training.random_choice import between

SPECIAL = 3  # [CLS] A [SEP] B [SEP]

Other = Callable[[int, Random], Sequence[int]]


@dataclass(frozen=True)
class Recipe:
    """How instances are made; the defaults are those of the BERT paper."""

    max_length: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    dupe_factor: int = 5
    whole_word: bool = False
    seed: int = 0


class Pair(NamedTuple):
    """Two segments of text, as ids."""

    a: Sequence[int]
    b: Sequence[int]
    is_random: bool  # whether B is from another document


class Instance(NamedTuple):
    """A masked sequence [CLS] A [SEP] B [SEP]."""

    masked: Masked
    first: int  # tokens of [CLS] A [SEP]
    is_random: bool


def pairs(
    document: Sequence[Sequence[int]], recipe: Recipe, other: Other, rng: Random
) -> Iterator[Pair]:
    """Yield the pairs of one document, which together use all of its sentences.

    ``other`` returns a stretch of another document, at least one sentence and, if it has them, so
    many tokens.
    """
    room = recipe.max_length - SPECIAL
    target, at = _target(room, recipe, rng), 0
    while at < len(document):
        end, size = at, 0
        while end < len(document) and size < target:
            size += len(document[end])
            end += 1
        alone = end - at == 1
        middle = end if alone else between(rng, at + 1, end - 1)
        a = [*chain.from_iterable(document[at:middle])]
        is_random = alone or rng.random() < 0.5
        if is_random:
            b, at = other(target - len(a), rng), middle  # what B would have been comes again
        else:
            b, at = [*chain.from_iterable(document[middle:end])], end
        yield Pair(*truncated(a, b, room, rng), is_random)


def _target(room: int, recipe: Recipe, rng: Random) -> int:
    """Return the length that the pairs of a document aim at: mostly all there is room for."""
    return between(rng, 2, room) if rng.random() < recipe.short_seq_prob else room


def truncated(
    a: Sequence[int], b: Sequence[int], room: int, rng: Random
) -> tuple[Sequence[int], Sequence[int]]:
    """Cut tokens off the longer segment, at its front or end by chance, until both fit."""
    spans = [[0, len(a)], [0, len(b)]]
    sizes = [len(a), len(b)]
    while sum(sizes) > room:
        longer = int(sizes[1] >= sizes[0])
        sizes[longer] -= 1
        if rng.random() < 0.5:
            spans[longer][0] += 1
        else:
            spans[longer][1] -= 1
    return a[slice(*spans[0])], b[slice(*spans[1])]


def instance(pair: Pair, cls: int, sep: int, masker: Masker, rng: Random) -> Instance:
    """Return a pair with its special tokens, masked."""
    ids = [cls, *pair.a, sep, *pair.b, sep]
    first = len(pair.a) + 2
    segments = range(1, first - 1), range(first, len(ids) - 1)
    return Instance(masker.mask(ids, segments, rng), first, pair.is_random)
