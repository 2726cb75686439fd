"""Training instances: documents to sentence pairs, pairs to masked sequences.

Sources: Devlin et al. 2018, section 3.1, and `create_instances_from_document` and
`create_masked_lm_predictions` of Google's code, with two changes: a random segment always comes
from another document, and a random token is never a special one.

Python promises the same sequence of `Random.random` for a seed on every machine and in every
version, and promises it of no other method; NumPy promises nothing of the kind. So every random
choice here is built on `Random.random` alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import NamedTuple, TypeVar

from bertcli.errors import ModelError
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.tokenizing.tokenizer_classes import PREFIX

T = TypeVar("T")
Token = int | tuple[int, ...]  # its id; with extra embeddings, and its id of each


def below(rng: Random, count: int) -> int:
    """Return one of 0 ... count - 1, each as likely as the others."""
    return int(rng.random() * count)


def between(rng: Random, low: int, high: int) -> int:
    """Return one of low ... high, each as likely as the others."""
    return low + below(rng, high - low + 1)


def drawn(rng: Random, items: Sequence[T]) -> Iterator[T]:
    """Yield all items in random order; each costs one step, so a few of many cost little."""
    left = list(items)
    while left:
        place = below(rng, len(left))
        left[place], left[-1] = left[-1], left[place]
        yield left.pop()


@dataclass(frozen=True)
class PrepareOptions:
    """How instances are made; the defaults are those of the BERT paper."""

    max_length: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    dupe_factor: int = 5
    whole_word: bool = False
    seed: int = 0


MASK, KEEP = 0.8, 0.9  # below the first: [MASK]; below the second: the token itself; else another
_UNUSED = re.compile(r"\[unused\d+\]")


class Masked(NamedTuple):
    """A sequence with its predictions; positions ascend."""

    ids: list[int]
    positions: list[int]
    labels: list[int]  # the original tokens


@dataclass(frozen=True)
class Masker:
    """Masks sequences of one vocabulary.

    A random token is never a special or unused one: no text has these, so they would reveal the
    replacement. (Google's code allows any.)
    """

    mask_id: int
    replacements: Sequence[int]  # candidates for a random token
    continuing: frozenset[int]  # tokens that continue a word
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    whole_word: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: PrepareOptions) -> Masker:
        """Return the masker of a tokenizer. Raises ModelError without [MASK] or words."""
        special, mask = tokenizer.special_ids(), tokenizer.roles["mask_token"]
        if mask not in special:
            raise ModelError(
                f"the vocabulary has no {mask}, which masks the tokens to predict",
                "choose another --model, or train a vocabulary with bertcli pretrain vocab",
            )
        core = tokenizer.core
        added = {id for id, token in core.get_added_tokens_decoder().items() if token.special}
        outside = added | set(special.values())
        vocabulary = core.get_vocab()
        words = sorted(
            id
            for token, id in vocabulary.items()
            if id not in outside and not _UNUSED.fullmatch(token)
        )
        if not words:
            raise ModelError("the vocabulary has only special tokens", "choose another --model")
        pieces = frozenset(id for token, id in vocabulary.items() if token.startswith(PREFIX))
        if options.whole_word and not pieces:
            raise ModelError(
                f"no token begins with {PREFIX}: --whole-word cannot tell what is one word",
                "leave out --whole-word, or choose a --model with WordPiece",
            )
        chosen = options.masked_lm_prob, options.max_predictions, options.whole_word
        return cls(special[mask], words, pieces, *chosen)

    def mask(self, ids: Sequence[int], segments: Sequence[range], rng: Random) -> Masked:
        """Return a sequence masked; only positions in ``segments`` are ever touched."""
        count = min(self.max_predictions, max(1, round(len(ids) * self.masked_lm_prob)))
        positions = sorted(self._chosen(ids, segments, count, rng))
        masked = list(ids)
        for position in positions:
            chance = rng.random()
            if chance < MASK:
                masked[position] = self.mask_id
            elif chance >= KEEP:
                masked[position] = self.replacements[below(rng, len(self.replacements))]
        return Masked(masked, positions, [ids[position] for position in positions])

    def _chosen(
        self, ids: Sequence[int], segments: Sequence[range], count: int, rng: Random
    ) -> list[int]:
        """Choose random positions; a word longer than what is left to choose is skipped."""
        if not self.whole_word:
            return [*islice(drawn(rng, [*chain.from_iterable(segments)]), count)]
        chosen: list[int] = []
        for word in drawn(rng, [word for part in segments for word in self._words(ids, part)]):
            if len(chosen) + len(word) <= count:
                chosen += word
            if len(chosen) == count:
                break
        return chosen

    def _words(self, ids: Sequence[int], part: range) -> Iterator[range]:
        """Yield the positions of each word; the first token of a segment always starts one."""
        start = part.start
        for position in part[1:]:
            if ids[position] not in self.continuing:
                yield range(start, position)
                start = position
        yield range(start, part.stop)


SPECIAL = 3  # [CLS] A [SEP] B [SEP]

Other = Callable[[int, Random], Sequence[Token]]


class Pair(NamedTuple):
    """Two segments of text."""

    a: Sequence[Token]
    b: Sequence[Token]
    is_random: bool  # whether B is from another document


class Instance(NamedTuple):
    """A masked sequence [CLS] A [SEP] B [SEP]."""

    masked: Masked
    first: int  # tokens of [CLS] A [SEP]
    is_random: bool
    extra: Sequence[list[int]] = ()  # of each extra embedding, the ids of the tokens


def pairs(
    document: Sequence[Sequence[Token]], options: PrepareOptions, other: Other, rng: Random
) -> Iterator[Pair]:
    """Yield the pairs of one document, which together use all of its sentences.

    ``other`` returns sentences of another document: at least one, up to about this many tokens.
    """
    room = options.max_length - SPECIAL
    short = rng.random() < options.short_seq_prob  # mostly, pairs fill all of the room
    target, start = between(rng, 2, room) if short else room, 0
    while start < len(document):
        end, size = start, 0
        while end < len(document) and size < target:
            size += len(document[end])
            end += 1
        alone = end - start == 1
        middle = end if alone else between(rng, start + 1, end - 1)
        a = [*chain.from_iterable(document[start:middle])]
        is_random = alone or rng.random() < 0.5
        b: Sequence[Token]
        if is_random:  # the sentences that B did not use come again
            b, start = other(target - len(a), rng), middle
        else:
            b, start = [*chain.from_iterable(document[middle:end])], end
        yield Pair(*truncated(a, b, room, rng), is_random)


def truncated(
    a: Sequence[Token], b: Sequence[Token], room: int, rng: Random
) -> tuple[Sequence[Token], Sequence[Token]]:
    """Remove tokens of the longer segment, randomly at its start or end, until both fit."""
    start_a, end_a, start_b, end_b = 0, len(a), 0, len(b)
    while (size_a := end_a - start_a) + (size_b := end_b - start_b) > room:
        at_start = rng.random() < 0.5
        if size_b >= size_a:
            start_b, end_b = (start_b + 1, end_b) if at_start else (start_b, end_b - 1)
        else:
            start_a, end_a = (start_a + 1, end_a) if at_start else (start_a, end_a - 1)
    return a[start_a:end_a], b[start_b:end_b]


def instance(pair: Pair, cls: int, sep: int, masker: Masker, rng: Random) -> Instance:
    """Return a pair with its special tokens, masked.

    Masked tokens keep their ids of extra embeddings, as they keep their positions: these ids are
    given, not predicted, and they would hardly be learnt if they never stood where a word is
    predicted. Special tokens have id 0.
    """
    (a, *extra_a), (b, *extra_b) = by_column(pair.a), by_column(pair.b)
    ids = [cls, *a, sep, *b, sep]
    extra = [[0, *left, 0, *right, 0] for left, right in zip(extra_a, extra_b, strict=True)]
    first = len(a) + 2
    segments = range(1, first - 1), range(first, len(ids) - 1)
    return Instance(masker.mask(ids, segments, rng), first, pair.is_random, extra)


def by_column(tokens: Sequence[Token]) -> list[list[int]]:
    """Return the ids of tokens, and those of each extra embedding."""
    plain = [token for token in tokens if isinstance(token, int)]
    if plain:
        return [plain]
    several = (token for token in tokens if not isinstance(token, int))
    return [[*column] for column in zip(*several, strict=True)]
