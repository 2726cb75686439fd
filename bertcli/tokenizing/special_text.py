"""Special tokens written out in texts, which the tokenizer parses as special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class SpecialTextCounter:
    """Finds the special tokens of a tokenizer in texts."""

    def __init__(self, core: Tokenizer) -> None:
        added = core.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special]
        used = {character for name in names for character in name}
        self.between = next(chr(code) for code in count(10) if chr(code) not in used)
        self.patterns = [
            (first, _any_of(name for name in names if name[0] == first))
            for first in dict.fromkeys(name[0] for name in names)
        ]

    def count(self, texts: Iterable[str]) -> int:
        """Return how often they occur; texts without their first character cost little."""
        whole = self.between.join(texts)
        return sum(
            len(pattern.findall(whole)) for first, pattern in self.patterns if first in whole
        )


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
