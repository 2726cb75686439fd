r"""The filter for untrusted text before it is shown on a terminal or in a picture.

    printable("a\x1b]0;b\x07")   # "a\ufffd]0;b\ufffd"

Ordinary text is unchanged: emoji joined by ZWJ, variation selectors, combining marks, flags of
regions, Arabic, Hebrew and their direction marks. Characters that control a terminal, or hide or
reorder text, become U+FFFD: control characters (C0, C1, DEL), line and paragraph separators,
direction overrides and isolates (https://trojansource.codes), annotations, tag characters outside
of a flag, surrogates, noncharacters and unassigned characters. Exceptions are private use
characters, which fonts of users have, and unassigned characters in blocks of pictographs, which may
be emoji newer than the Unicode data of this Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REPLACEMENT = "\ufffd"
# Unicode Technical Standard 51, ED-14a: a black flag, the tags of a region, the end tag.
_FLAG = "(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f)"
_HIDES = "[\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\U000e0000-\U000e007f]"  # format characters
_NO_TEXT = ("Cc", "Cn", "Cs", "Zl", "Zp")  # general categories
_PICTURES = range(0x1F000, 0x1FC00)  # blocks of symbols and pictographs, without noncharacters


def listed(names: Iterable[str]) -> str:
    """Return names for a hint, quoted if they contain blanks or invisible characters."""
    shown = [
        name if name == name.strip() and name.isprintable() and name else repr(name)
        for name in names
    ]
    return ", ".join(shown) or "none"


def printable(text: str) -> str:
    """Return a text with characters that control a terminal or deceive a reader replaced."""
    if text.isprintable():
        return text
    from unicodedata import category

    shown = (
        REPLACEMENT
        if category(character) in _NO_TEXT and ord(character) not in _PICTURES
        else character
        for character in text
    )
    return re.sub(f"{_FLAG}|{_HIDES}", lambda match: match[1] or REPLACEMENT, "".join(shown))
