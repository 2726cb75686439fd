"""Entities of a text: overlaps between windows, and redaction.

    redacted_text("Angela lives in Berlin.", entities, "[{label}]")   # "[PER] lives in [LOC]."

An entity is a mapping with `entity_group`, `score`, and its span `start`, `end` in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from bertcli.tokenizing.graphemes import divides

Entity: TypeAlias = Mapping[str, Any]
REDACTED = "redacted"  # field of a result with the redacted text
# Texts that replace an entity, whose label and score they have.
MASK = "[{label}]"
SCORED_MASK = "[{label} {score}]"


def precedence(entity: Entity) -> tuple[int, float]:
    """Return the sort key of overlapping entities: the longest wins, then the best score."""
    return entity["end"] - entity["start"], entity["score"]


def without_overlaps(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entities without overlap between windows, see `precedence`."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if kept and entity["start"] < kept[-1]["end"]:
            kept[-1] = max(kept[-1], entity, key=precedence)
        else:
            kept.append(entity)
    return kept


class MaskedSpan(NamedTuple):
    """A span of a text that one mask replaces, with the entity that the mask names."""

    start: int
    end: int
    entity: Entity


def redacted_text(text: str, entities: Iterable[Entity], mask: str = MASK) -> str:
    """Return a text with its entities replaced by a mask. All other characters are unchanged."""
    pieces = []
    end = 0
    for span in masked_spans(text, entities):
        score = f"{span.entity['score']:.2f}"
        pieces.append(text[end : span.start])
        pieces.append(
            mask.replace("{score}", score).replace("{label}", span.entity["entity_group"])
        )
        end = span.end
    return "".join([*pieces, text[end:]])


def masked_spans(text: str, entities: Iterable[Entity]) -> list[MaskedSpan]:
    """Return the spans to replace, in text order and without overlap.

    Overlapping entities, as of tokens that are parts of one character, are replaced together, by
    the label of the one with `precedence`.
    """
    spans: list[MaskedSpan] = []
    for found in sorted(
        (visible_span(text, entity) for entity in entities), key=lambda span: span.start
    ):
        if found.start == found.end:
            continue
        if spans and found.start < spans[-1].end:
            previous = spans[-1]
            winner = max(previous.entity, found.entity, key=precedence)
            spans[-1] = MaskedSpan(previous.start, max(previous.end, found.end), winner)
        else:
            spans.append(found)
    return spans


def visible_span(text: str, entity: Entity) -> MaskedSpan:
    """Return the span of an entity without white space at its ends, and with whole graphemes.

    Tokens of some models include the blank before a word, and those of others lack combining
    marks. The span is empty for white space alone.
    """
    words = text[entity["start"] : entity["end"]]
    start = entity["end"] - len(words.lstrip())
    end = max(start, entity["start"] + len(words.rstrip()))
    if start == end:
        return MaskedSpan(start, start, entity)
    while divides(text, start):
        start -= 1
    while divides(text, end):
        end += 1
    return MaskedSpan(start, end, entity)
