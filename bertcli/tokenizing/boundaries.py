"""Where a text may be divided: between paragraphs, sentences, words and graphemes.

A boundary is the position of the first character of what follows: white space belongs to what
stands before it. Positions are counted in characters.

- A paragraph ends with a blank line, or U+2029.
- A sentence ends where a paragraph does, and after one of ``. ! ? …`` (and those of other scripts),
  with the quotation marks and brackets that close behind it, before white space; after those of
  Chinese and Japanese also without white space. It does not end before a lower-case letter, nor
  after a full stop behind a single letter (an initial, "e.g."), a number of one or two digits (an
  ordinal) or one of ABBREVIATIONS. A sentence too many is worse than one too few.
- A word ends before the white space behind it ends. Chinese and Japanese are divided between any
  two characters, except before those that begin no line.
- A grapheme is what a person takes for one character: a letter with its marks, or emoji that are
  joined. The rules are those of Unicode (UAX 29), without Hangul in parts, flags and conjuncts.
"""

from __future__ import annotations

import re
from unicodedata import category

LEVELS = ("paragraph", "sentence", "word")  # the coarsest first
ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt no nos vol vols fig figs ch sec art pp
    vs cf al ca approx dept est inc ltd co corp bros jan feb mar apr jun jul aug sep sept oct nov
    dec hr hrn nr str bd abb abs bzw evtl ggf usw vgl mme mlle av sra srta dra ud uds sig dott ing
    """.split()  # noqa: SIM905 - a list of words reads best as lines
)

_LINE = r"(?:\r\n|[\r\n\x85\u2028])"
_PARAGRAPH = rf"{_LINE}[^\S\r\n\x85\u2028\u2029]*{_LINE}\s*|\u2029\s*"
_CLOSING = r"""["'”’»›)\]}」』）】〉》〕］｝]*"""
_ENDS = r"[.!?…‽؟۔।॥።፧፨။៕⸮]+"  # before white space
_WIDE_ENDS = r"[。！？｡．‼⁇⁈⁉]+"  # of scripts without
_CJK = (
    "\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_NOT_FIRST = "々〻ゝゞヽヾーぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶㇰ-ㇿｧ-ｰ\uff9e\uff9f"
_CJK_STOPS = "、。，．！？：；」』）】〉》〕］…"
_PATTERNS = {
    "paragraph": re.compile(_PARAGRAPH),
    "sentence": re.compile(rf"({_ENDS}){_CLOSING}\s+|{_WIDE_ENDS}{_CLOSING}\s*|{_PARAGRAPH}"),
    "word": re.compile(
        rf"\s+|(?<=[{_CJK}{_CJK_STOPS}])(?=[^\W_])(?![{_NOT_FIRST}])"
        rf"|(?<=[^\W_])(?=[{_CJK}])(?![{_NOT_FIRST}])"
    ),
}
_BEFORE_STOP = re.compile(r"[^\W_]+\.$")
_EXTEND = {*"\u200c\u200d\u0e33\u0eb3\uff9e\uff9f", *map(chr, range(0x1F3FB, 0x1F400))}
_EXTEND.update(map(chr, range(0xE0020, 0xE0080)))
FIRST_MARK = "\u0300"  # nothing before it joins what it follows, but for a line feed
_MARKS = ("Mn", "Mc", "Me")


def boundaries(text: str, low: int, high: int, level: str) -> list[int]:
    """Return the boundaries of a level in (low, high], in their order."""
    matches = _PATTERNS[level].finditer(text, low, min(high + 1, len(text)))
    ends = [m.end() for m in matches if level != "sentence" or _ends_sentence(text, m)]
    return [end for end in ends if low < end <= high and is_whole(text, end)]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends where a pattern of its end was found."""
    stop, end = match.group(1), match.end()
    if stop is None or _PATTERNS["paragraph"].search(match.group()):
        return True
    if text[end : end + 1].islower():
        return False
    at = match.end(1)
    before = _BEFORE_STOP.search(text, max(0, at - 12), at)
    if stop != "." or before is None:
        return True
    word = before.group()[:-1]
    if word.isdigit():
        return len(word) > 2
    return len(word) > 1 and word.lower() not in ABBREVIATIONS


def is_whole(text: str, at: int) -> bool:
    """Whether no grapheme is divided at a position."""
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    if after < FIRST_MARK:
        return (before, after) != ("\r", "\n")
    return not (before == "\u200d" or after in _EXTEND or category(after) in _MARKS)
