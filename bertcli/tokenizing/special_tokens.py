"""The special tokens that a tokenizer adds around a text or a pair."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core


from bertcli.tokenizing.batch import sequence_span


class SpecialTokens(NamedTuple):
    """The special tokens around a text or a pair. Special tokens and texts alternate as parts."""

    special: list[list[int]]  # ids before, between and after the texts
    types: list[int]  # the token type of each part, texts included


def special_tokens_around(core: Core, *, pair: bool, special: bool) -> SpecialTokens | None:
    """Return the special tokens around texts, or None.

    None means that the texts are out of order, or that a part mixes token types.
    """
    encoding = core.encode("a", "a" if pair else None, add_special_tokens=special)
    texts = [sequence_span(encoding.sequence_ids, which) for which in range(1 + pair)]
    cuts = [0, *chain.from_iterable(texts), len(encoding)]
    parts = [*pairwise(cuts)]
    types = [{*encoding.type_ids[start:stop]} or {0} for start, stop in parts]
    in_order = cuts == sorted(cuts) and all(start < stop for start, stop in texts)
    if not in_order or any(len(kinds) > 1 for kinds in types):
        return None
    special_ids = [encoding.ids[start:stop] for start, stop in parts[::2]]
    return SpecialTokens(special_ids, [kind for kinds in types for kind in kinds])
