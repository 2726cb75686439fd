"""Select the passage of a long text that best matches a query, with matching words in bold.

    passage("... We ship the release in March. ...", "when do we ship?", 160)
    explained_passage(text, explanation, 320)       # tokens coloured by their shares of the score

Query words that are rare in the text weigh most. A text without any of them is represented by its
beginning.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.text import Text

from bertcli.errors import counted

WORD = re.compile(r"\w+")
SENTENCE_START = re.compile(r"(?<=[.!?])\s+(?=\S)|\s+(?=#)")
MIN_PREFIX = 4  # minimum letters of a query word that also matches longer words of the text
MAX_LEAD = 0.3  # maximum share of the passage before the first matching word
ELLIPSIS = "…"
# Least share of a token, relative to the largest, and the style of its characters.
SHARE_STYLES = (
    (0.75, "bold white on color(22)"),
    (0.5, "black on color(71)"),
    (0.25, "black on color(151)"),
    (-0.25, ""),
    (-0.5, "black on color(224)"),
    (float("-inf"), "black on color(210)"),
)
LEAST_MATCH = 0.25  # share, relative to the largest, of tokens around which a passage is selected
MAX_SHARES = 8  # words whose shares are written out


class WordMatch(NamedTuple):
    """A word of the text that matches a query word."""

    start: int
    stop: int
    word: str  # the query word


def passage(text: str, query: str, length: int) -> Text:
    """Return at most ``length`` characters around the matching words, on one line."""
    text = " ".join(text.split())
    matches = word_matches(text, query)
    drawn, shift = cut_passage(text, matches, length)
    for match in matches:
        stylize(drawn, "bold", match.start + shift, match.stop + shift)
    return drawn


def cut_passage(text: str, matches: list[WordMatch], length: int) -> tuple[Text, int]:
    """Return the best passage, and what to add to an offset in the text to find it there."""
    start = 0
    stop = len(text)
    if len(text) > length:
        start, stop = passage_bounds(text, matches, length)
    before = ELLIPSIS if start else ""
    after = ELLIPSIS if stop < len(text) else ""
    return Text(f"{before}{text[start:stop]}{after}"), len(before) - start


def stylize(drawn: Text, style: str, start: int, stop: int) -> None:
    """Add a style to characters of a passage, if it has them all."""
    is_cut = drawn.plain.endswith(ELLIPSIS)
    if int(drawn.plain.startswith(ELLIPSIS)) <= start and stop <= len(drawn) - int(is_cut):
        drawn.stylize(style, start, stop)


def explained_passage(text: str, explanation: Mapping[str, Any], length: int) -> Text:
    """Return the passage with the largest shares, coloured by them, above the largest shares.

    ``explanation`` has the tokens (or words), offsets and shares of a hit.
    """
    collapsed, positions = collapse(text)
    tokens = explanation.get("tokens") or explanation.get("words") or []
    shares = explanation["shares"]
    largest = max(map(abs, shares), default=0) or 1
    matches = []
    spans = []
    shares_of_words: Counter[str] = Counter()
    sequences = explanation.get("sequence_ids") or [0] * len(tokens)
    for token, (start, stop), share, sequence in zip(
        tokens, explanation["offsets"], shares, sequences, strict=True
    ):
        is_in_text = stop > start and sequence == 0
        word = text[start:stop].strip() if is_in_text else token
        shares_of_words[word or token] += share
        if is_in_text:
            span = positions[start], positions[stop]
            spans.append((span, share / largest))
            if share >= LEAST_MATCH * largest:
                matches.append(WordMatch(*span, word))
    drawn, shift = cut_passage(collapsed, matches, length)
    for (start, stop), share in spans:
        style = next(style for least, style in SHARE_STYLES if share >= least)
        stylize(drawn, style, start + shift, stop + shift)
    return drawn.append(f"\n{largest_shares(shares_of_words)}", "dim")


def largest_shares(shares: Mapping[str, float]) -> str:
    """Return the words with the largest shares, and the sum of the others."""
    ranked = sorted(shares, key=lambda word: -abs(shares[word]))
    items = [f"{word}={shares[word]:.3g}" for word in ranked[:MAX_SHARES]]
    if others := ranked[MAX_SHARES:]:
        total = sum(shares[word] for word in others)
        items.append(f"{counted(len(others), 'other')}={total:.3g}")
    return "  ".join(items)


def collapse(text: str) -> tuple[str, list[int]]:
    """Return a text with each white space as one blank, and the new offset of each old one."""
    characters: list[str] = []
    positions = []
    for character in text:
        positions.append(len(characters))
        if not character.isspace():
            characters.append(character)
        elif characters and characters[-1] != " ":
            characters.append(" ")
    positions.append(len(characters))
    return "".join(characters), positions


def word_matches(text: str, query: str) -> list[WordMatch]:
    """Return the matching words of a text, in text order."""
    words = content_words(query)
    matches = []
    for text_word in WORD.finditer(text):
        folded = text_word[0].casefold()
        if folded in words:
            matches.append(WordMatch(*text_word.span(), folded))
            continue
        for word in words:
            if folded.startswith(word) and len(word) >= MIN_PREFIX:
                matches.append(WordMatch(*text_word.span(), word))
                break
            if not word.isascii() and word in folded:  # for scripts without spaces between words
                start = text_word.start() + folded.index(word)
                matches.append(WordMatch(start, start + len(word), word))
                break
    return matches


def content_words(query: str) -> set[str]:
    """Return the lower-case words of a query, without short ones unless all are short.

    Acronyms, numbers and words of non-Latin scripts are always kept.
    """
    words = WORD.findall(query)
    longest = max(map(len, words), default=0)
    return {
        word.casefold()
        for word in words
        if len(word) >= min(longest, MIN_PREFIX)
        or word.isupper()
        or not (word.isascii() and word.isalpha())
    }


def passage_bounds(text: str, matches: list[WordMatch], length: int) -> tuple[int, int]:
    """Return the start and stop of the best passage of at most ``length`` characters."""
    if not matches:
        return 0, word_end(text, length)
    counts = Counter(match.word for match in matches)
    starts = [match.start for match in matches]
    reach = int(length * (1 - MAX_LEAD))
    best_score = 0.0
    best = 0
    best_stop = 0
    for index, match in enumerate(matches):
        stop = bisect_left(starts, match.start + reach)
        covered = [other for other in matches[index:stop] if other.stop <= match.start + reach]
        words = {covered_match.word for covered_match in covered}
        score = sum(1 / counts[word] for word in words)
        is_tighter = index < best_stop and score > best_score - 1e-9
        if score > best_score + 1e-9 or is_tighter:
            best_score = score
            best = index
            best_stop = best_stop if is_tighter else stop
    first_match = matches[best].start
    if first_match <= length * MAX_LEAD:
        return 0, word_end(text, length)
    start = passage_start(text, first_match, int(length * MAX_LEAD))
    if len(text) - start < length:
        start = next_word(text, len(text) - length)
    return start, word_end(text, start + length)


def passage_start(text: str, offset: int, max_lead: int) -> int:
    """Return the start of the sentence that contains ``offset``.

    If it is more than ``max_lead`` characters earlier, return the start of a word within that
    range.
    """
    earliest = offset - max_lead
    sentences = [start.end() for start in SENTENCE_START.finditer(text, earliest, offset + 1)]
    return sentences[-1] if sentences else next_word(text, earliest)


def next_word(text: str, offset: int) -> int:
    """Return the start of the next word, or ``offset`` if none starts within 40 characters."""
    blank = text.find(" ", max(offset - 1, 0), offset + 40)
    return offset if blank < 0 else blank + 1


def word_end(text: str, offset: int) -> int:
    """Return the end of the previous word, or ``offset`` if none ends within 40 characters."""
    if offset >= len(text):
        return len(text)
    blank = text.rfind(" ", offset - 40, offset + 1)
    return offset if blank <= 0 else blank
