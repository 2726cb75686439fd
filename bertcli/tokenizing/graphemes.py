r"""Grapheme boundaries: positions where a text can be cut without splitting a visible character.

    divides("e\u0301", 1)   # True: a letter and its accent

Source: Unicode Standard Annex 29, extended grapheme clusters, rules GB3 to GB13, without the
conjuncts of Indic scripts (GB9c) and the rare prepended marks (GB9b).
"""

from __future__ import annotations

from unicodedata import category

JOINER = "\u200d"
FIRST_MARK = "\u0300"  # no character below it extends another
MARKS = frozenset(("Mn", "Me", "Mc"))
REGIONAL = range(0x1F1E6, 0x1F200)  # regional indicators: two of them are a flag
SKIN_TONES = range(0x1F3FB, 0x1F400)
TAGS = range(0xE0020, 0xE0080)  # in flags of regions
FIRST_PICTURE = "\u00a9"  # first character that a joiner may attach to the one before
LEADING = (range(0x1100, 0x1160), range(0xA960, 0xA97D))  # leading Hangul consonants
VOWELS = (range(0x1160, 0x11A8), range(0xD7B0, 0xD7C7))
TRAILING = (range(0x11A8, 0x1200), range(0xD7CB, 0xD7FC))
SYLLABLES = range(0xAC00, 0xD7A4)
SYLLABLES_PER_VOWEL = 28  # the first of them has no trailing consonant


def divides(text: str, index: int) -> bool:
    """Return True if a cut before text[index] would split a grapheme."""
    if not 0 < index < len(text):
        return False
    before = text[index - 1]
    after = text[index]
    if before == JOINER:
        return after >= FIRST_PICTURE and not after.isalnum()
    if after < FIRST_MARK:
        return before + after == "\r\n"
    code = ord(after)
    if after == JOINER or code in SKIN_TONES or code in TAGS or category(after) in MARKS:
        return not before.isspace()
    if code in REGIONAL:
        return _regional_before(text, index) % 2 == 1
    return _joins_hangul(ord(before), code)


def _regional_before(text: str, index: int) -> int:
    start = index
    while start and ord(text[start - 1]) in REGIONAL:
        start -= 1
    return index - start


def _joins_hangul(before: int, after: int) -> bool:
    is_vowel = _within(after, VOWELS)
    is_trailing = _within(after, TRAILING)
    if _within(before, LEADING):
        return is_vowel or after in SYLLABLES or _within(after, LEADING)
    if before in SYLLABLES:
        ends_in_vowel = (before - SYLLABLES.start) % SYLLABLES_PER_VOWEL == 0
        return is_trailing or (is_vowel and ends_in_vowel)
    if _within(before, VOWELS):
        return is_vowel or is_trailing
    return _within(before, TRAILING) and is_trailing


def _within(code: int, ranges: tuple[range, ...]) -> bool:
    return any(code in codes for codes in ranges)
