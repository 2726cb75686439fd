"""A shortcut for text: the pieces of each word, remembered.

BERT's normalizer maps one character at a time, but for combining marks, which change places among
themselves. Its pre-tokenizer cuts at blanks and around some characters. So the ids of a text are
those of the parts between its blanks, one after the other; and those of a part are found by a table
of characters, unless a mark is in it. That holds when no added token stands in the text; one with
such a token takes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeGuard, TypeVar

if TYPE_CHECKING:
    from tokenizers import Tokenizer

from bertcli.files.tables import Written
from bertcli.records.records import Text

K = TypeVar("K")

MOST = 1 << 17  # parts remembered: the common ones of any language, in tens of megabytes
LONGEST = 32  # characters of a part that may come again
MARK = "\n"  # between texts, which have none; in the table, for a character that is not alone

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


class Bounded(dict[K, str]):
    """A dictionary that forgets everything when it is full."""

    def keep(self, key: K, value: str) -> str:
        """Remember a value, and return it."""
        if len(self) >= MOST:
            self.clear()
        self[key] = value
        return value


class Characters(Bounded[int]):
    """Code point -> what becomes of it, with blanks where words are cut; for str.translate."""

    def __init__(self, core: Tokenizer) -> None:
        self.normalize, self.cut = (
            core.normalizer.normalize_str,
            core.pre_tokenizer.pre_tokenize_str,
        )
        self.takes_apart = self.normalize("é") != "é"  # letters and marks, and sorts the marks

    def __missing__(self, code: int) -> str:
        alone = self.normalize(chr(code))
        if self.takes_apart and alone and _is_mark(chr(code)):
            return self.keep(code, MARK)
        return self.keep(code, " ".join([word for word, _ in self.cut(f"a{alone}a")])[1:-1])


class WordCache(Bounded[str]):
    """Word, as the model sees it -> its ids, a comma before each."""

    def __init__(self, core: Tokenizer) -> None:
        self.tokenize = core.model.tokenize  # a seventh of the time that core.encode takes

    def __missing__(self, word: str) -> str:
        ids = "".join([f",{token.id}" for token in self.tokenize(word)]) if word else ""
        return self.keep(word, ids) if len(word) <= LONGEST else ids


class PieceCache(Bounded[str]):
    """Part of a text without blanks -> its ids, a comma before each: ",17953,2361"."""

    def __init__(self, core: Tokenizer) -> None:
        self.core = core
        self.characters, self.words = Characters(core), WordCache(core)

    def __missing__(self, part: str) -> str:
        changed = part.translate(self.characters)
        if part == MARK:
            ids = MARK
        elif MARK in changed:
            ids = "".join([f",{i}" for i in self.core.encode(part, add_special_tokens=False).ids])
        else:
            ids = "".join(map(self.words.__getitem__, changed.split(" ")))
        return self.keep(part, ids) if len(part) <= LONGEST else ids


class WordMemo:
    """The ids of words seen so far, by the tokenizer they came from."""

    def __init__(self, core: Tokenizer) -> None:
        self.core = core
        self.pieces = PieceCache(core)
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
            isinstance(text, str) and MARK not in text and not ("[" in text and self.surprise(text))
        )

    def inner(self, texts: Sequence[str]) -> list[str]:
        """Return the ids of every text, written with a comma before each.

        The texts must be ones that it knows.
        """
        parts = f" {MARK} ".join(texts).split(" ")
        return "".join(map(self.pieces.__getitem__, parts)).split(MARK) if texts else []

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
            None
            if text is None
            else Remembered(Ids((first + next(found) + last).strip(",")), around)
            for text in known
        ]

    def around(self, *, special: bool) -> tuple[list[int], list[int]]:
        """Return the special tokens before and after a text, by the tokenizer's template."""
        if not special:
            return [], []
        encoding = self.core.encode("a")
        at = encoding.sequence_ids.index(0)
        return encoding.ids[:at], encoding.ids[at + encoding.sequence_ids.count(0) :]


def state(core: Tokenizer) -> tuple[object, ...]:
    """Return what the shortcut depends on and a caller may change, in a form that is cheap to make.

    The words of the model itself are left out: nothing adds to those but a new model.
    """
    added = core.get_added_tokens_decoder()
    return (
        core.get_vocab_size(),
        type(core.model).__name__,
        tuple((index, t.content, t.special, t.normalized) for index, t in added.items()),
        *(part and part.__getstate__() for part in (core.normalizer, core.pre_tokenizer)),
    )


def _added(core: Tokenizer) -> Callable[[str], object]:
    """Return a function that tells whether an added token may stand in a text with a "["."""
    added = core.get_added_tokens_decoder().values()
    if any(token.normalized for token in added):  # found in a text that was changed before
        return bool
    return re.compile("|".join(re.escape(token.content) for token in added) or "$^").search


def _is_mark(character: str) -> bool:
    """Tell whether a character may be, or begin with, a mark that changes places with others.

    A class of combining marks never changes once it is assigned, so this holds for any version of
    Unicode that the tokenizer knows.
    """
    import unicodedata

    first = unicodedata.normalize("NFD", character)[0]
    return unicodedata.combining(first) != 0 or unicodedata.category(first) == "Cn"
