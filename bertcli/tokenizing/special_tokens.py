"""The special tokens that a tokenizer adds around a text or a pair."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from bertcli.tokenizing.batch import sequence_span

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core


class SpecialTokens(NamedTuple):
    """The special tokens around a text or a pair.

    A row is a sequence of parts: special tokens, text, special tokens (for a pair: text, special
    tokens).
    """

    special: list[list[int]]  # ids before, between and after the texts
    types: list[int]  # the token type of each part, texts included


def special_tokens_around(core: Core, *, pair: bool, special: bool = True) -> SpecialTokens | None:
    """Return the special tokens around a text or a pair; without any if not ``special``.

    Return None if the tokenizer changes the order of the texts, or a part mixes token types.
    """
    encoding = core.encode("a", "a" if pair else None, add_special_tokens=special)
    texts = [sequence_span(encoding.sequence_ids, sequence) for sequence in range(1 + pair)]
    boundaries = [0, *chain.from_iterable(texts), len(encoding)]
    parts = [*pairwise(boundaries)]
    types_of_parts = [{*encoding.type_ids[start:stop]} or {0} for start, stop in parts]
    has_order = boundaries == sorted(boundaries) and all(start < stop for start, stop in texts)
    if not has_order or any(len(types) > 1 for types in types_of_parts):
        return None
    special_ids = [encoding.ids[start:stop] for start, stop in parts[::2]]
    return SpecialTokens(special_ids, [*chain.from_iterable(types_of_parts)])
