"""The special tokens that a tokenizer puts around a text or a pair."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core


from bertcli.tokenizing.batch import sequence_span


class SpecialTokens(NamedTuple):
    """The special tokens around a text or a pair; its parts are these and the texts, in turn."""

    special: list[list[int]]  # ids before the texts, between them and behind them
    types: list[int]  # the token type of each part


def special_tokens_around(core: Core, *, pair: bool, special: bool) -> SpecialTokens | None:
    """Return what a tokenizer puts around texts; None where no such frame tells it all."""
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
