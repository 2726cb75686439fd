"""A shortcut for text: the pieces of each word, remembered.

BERT's normalizer changes one character at a time, but for the order of combining marks, and its
pre-tokenizer cuts at blanks, around punctuation and around Chinese characters. None of those is a
combining mark. So a text may be cut there first, and its ids are those of its parts, one after
the other. That holds when no added token stands in it; a text with one takes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from tokenizers import Tokenizer

from bertcli.encoding import Written
from bertcli.records import Text

MOST = 1 << 17  # parts remembered: the common ones of any language, in tens of megabytes
LONGEST = 32  # characters of a part that may come again

_ascii = re.compile(r"[0-9A-Za-z]+|[!-/:-@\[-`{-~]").findall
_PUNCTUATION = r"!-/:-@\[-`{-~、。「」『』！，：；？"
_others = re.compile(f"[{_PUNCTUATION}]|[^{_PUNCTUATION}]+").findall
_CHINESE = r"\u3400-\u4dbf\u4e00-\u9fff"
_chinese = re.compile(f"[{_PUNCTUATION}{_CHINESE}]|[^{_PUNCTUATION}{_CHINESE}]+").findall
_PARTS = ("WordPiece", "BertNormalizer", "BertPreTokenizer")


class Ids(Written):
    """Token ids, joined from those of words."""

    def __init__(self, inner: str) -> None:
        self.json = f"[{inner}]"
        self._inner = inner
        self._length = inner.count(",") + 1 if inner else 0

    @cached_property
    def numbers(self) -> list[int]:
        """The ids."""
        return list(map(int, self._inner.split(","))) if self._inner else []

    def __len__(self) -> int:
        return self._length


class Remembered(NamedTuple):
    """As much of an Encoding as a single text without surprises needs."""

    ids: Ids
    around: tuple[int, int]  # special tokens before and after

    @property
    def sequence_ids(self) -> list[int | None]:
        """0 for the tokens of the text, None for special ones."""
        before, after = self.around
        return [None] * before + [0] * (len(self.ids) - before - after) + [None] * after


class Pieces(dict[str, str]):
    """Part of a text -> its ids, a comma before each: ",17953,2361". Learns what it is asked."""

    def __init__(self, core: Tokenizer) -> None:
        super().__init__()
        # The model alone takes a seventh of the time that the tokenizer needs for a word.
        self.model, self.normalizer, self.cutter = core.model, core.normalizer, core.pre_tokenizer
        self.lowers = self.normalizer.normalize_str("A") == "a"
        self.cut = _chinese if self.normalizer.handle_chinese_chars else _others
        self.clear()

    def clear(self) -> None:
        """Forget all but what stands between parts: nothing where blanks meet, and line ends."""
        super().clear()
        self.update({"": "", "\n": "\n"})

    def __missing__(self, part: str) -> str:
        plain = part.isascii() and part.isprintable()
        parts = (_ascii if plain else self.cut)(part)
        if len(parts) > 1:
            found = "".join([self[some] for some in parts])
        elif plain:
            found = self._ids(part.lower() if self.lowers else part)
        else:
            words = self.cutter.pre_tokenize_str(self.normalizer.normalize_str(part))
            found = "".join([self._ids(word) for word, _ in words])
        if len(part) <= LONGEST:
            if len(self) >= MOST:
                self.clear()
            self[part] = found
        return found

    def _ids(self, word: str) -> str:
        return "".join([f",{token.id}" for token in self.model.tokenize(word)])


class WordMemo:
    """The ids of words seen so far, by the tokenizer they came from."""

    def __init__(self, core: Tokenizer) -> None:
        self.core = core
        self.pieces = Pieces(core)
        self.hits = 0.0  # the share of the last texts that needed nothing else
        self.surprise = _added(core)

    @staticmethod
    def fits(core: Tokenizer) -> bool:
        """Tell whether the shortcut is exact for a tokenizer."""
        parts = (core.model, core.normalizer, core.pre_tokenizer)
        added = core.get_added_tokens_decoder().values()
        return tuple(type(part).__name__ for part in parts) == _PARTS and all(
            token.content.startswith("[") for token in added
        )

    def knows(self, text: Text | None) -> TypeGuard[str]:
        """Tell whether the shortcut is for a text."""
        return (
            isinstance(text, str)
            and "\n" not in text
            and not ("[" in text and self.surprise(text))
        )

    def inner(self, texts: Sequence[str]) -> list[str]:
        """Return the ids of every text, written with a comma before each.

        The texts must be ones that it knows.
        """
        parts = " \n ".join(texts).split(" ")
        return "".join(map(self.pieces.__getitem__, parts)).split("\n") if texts else []

    def encode(self, texts: Sequence[Text | None], *, special: bool) -> list[Remembered | None]:
        """Return the ids of every text; None for one that needs the tokenizer itself."""
        known = [text if self.knows(text) else None for text in texts]
        found = iter(self.inner([text for text in known if text is not None]))
        self.hits = 1 - known.count(None) / len(known)
        before, after = self.around(special=special)
        first, last = (",".join(map(str, ids)) for ids in (before, after))
        last = last and f",{last}"
        around = len(before), len(after)
        return [
            None if text is None else Remembered(Ids((first + next(found) + last).strip(",")), around)
            for text in known
        ]

    def around(self, *, special: bool) -> tuple[list[int], list[int]]:
        """Return the special tokens before and after a text, by the tokenizer's template."""
        if not special:
            return [], []
        encoding = self.core.encode("a")
        at = encoding.sequence_ids.index(0)
        return encoding.ids[:at], encoding.ids[at + encoding.sequence_ids.count(0) :]


def _added(core: Tokenizer) -> Callable[[str], object]:
    """Return a function that tells whether an added token may stand in a text with a "["."""
    added = core.get_added_tokens_decoder().values()
    if any(token.normalized for token in added):  # found in a text that was changed before
        return bool
    return re.compile("|".join(re.escape(token.content) for token in added) or "$^").search
