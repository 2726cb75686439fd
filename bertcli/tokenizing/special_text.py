"""Special tokens that stand written out in texts, where the tokenizer takes them as such."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SpecialTextCounter:
    """Finds the special tokens of a tokenizer in texts."""

    def __init__(self, core: Tokenizer) -> None:
        added = core.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special]
        self.patterns = [
            (first, _any_of(name for name in names if name[0] == first))
            for first in dict.fromkeys(name[0] for name in names)
        ]

    def count(self, texts: Iterable[str]) -> int:
        """Return how often they occur; a text without their first character costs little."""
        return sum(
            len(pattern.findall(text))
            for text in texts
            for first, pattern in self.patterns
            if first in text
        )


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
