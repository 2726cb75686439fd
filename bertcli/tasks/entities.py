"""Labels of tokens to entities, by the rules of transformers' TokenClassificationPipeline.

none      every token with a label of its own
simple    neighbours with the same label are one entity; B- begins another
first, average, max
          first each word gets one label: that of its first token, of the mean of its tokens'
          scores, or of its most certain token
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcli.tokenizing.columns import Encoded
from bertcli.tokenizing.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """A token, or a word of several, with its scores of all labels [labels] and its span."""

    word: str
    scores: np.ndarray
    start: int
    end: int
    index: int = 0
    continues: bool = False  # the word of the token before

    @property
    def best(self) -> int:
        """The number of the likeliest label."""
        return int(self.scores.argmax())

    @property
    def score(self) -> float:
        """The score of the likeliest label."""
        return float(self.scores.max())


@dataclass(frozen=True)
class Grouping:
    """How labelled tokens become entities. Labels in ``ignored`` are left out."""

    tokenizer: Tokenizer
    labels: Sequence[str]
    aggregation: str = "simple"
    ignored: tuple[str, ...] = ("O",)

    def entities(self, item: Encoded, scores: np.ndarray) -> list[dict[str, Any]]:
        """Return the entities of one window from its scores [L, labels], in their order."""
        pieces = list(pieces_of(item, scores, self.tokenizer))
        match self.aggregation:
            case "none":
                found = [self._token(piece) for piece in pieces]
                return [one for one in found if one["entity"] not in self.ignored]
            case "simple":
                groups = self._groups(pieces)
            case _:
                groups = self._groups([self._word(word) for word in words_of(pieces)])
        found = [self._entity(group) for group in groups]
        return [one for one in found if one["entity_group"] not in self.ignored]

    @property
    def blank(self) -> dict[str, Any]:
        """An entity of nothing."""
        piece = Piece("", np.zeros(len(self.labels)), 0, 0)
        return self._token(piece) if self.aggregation == "none" else self._entity([piece])

    def _token(self, piece: Piece) -> dict[str, Any]:
        return {
            "entity": self.labels[piece.best],
            "score": piece.score,
            "index": piece.index,
            "word": piece.word,
            "start": piece.start,
            "end": piece.end,
        }

    def _word(self, pieces: Sequence[Piece]) -> Piece:
        """Make the tokens of a word one piece with one label."""
        match self.aggregation:
            case "first":
                scores = pieces[0].scores
            case "average":
                scores = np.mean([piece.scores for piece in pieces], axis=0)
            case _:
                scores = max(pieces, key=lambda piece: piece.score).scores
        text = self._text([piece.word for piece in pieces])
        return replace(pieces[0], word=text, scores=scores, end=pieces[-1].end)

    def _groups(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        """Gather neighbours with the same label; one that is marked B- begins another group."""
        group: list[Piece] = []
        for piece in pieces:
            begins, kind = self._tag(piece)
            if group and (begins or kind != self._tag(group[-1])[1]):
                yield group
                group = []
            group.append(piece)
        if group:
            yield group

    def _tag(self, piece: Piece) -> tuple[bool, str]:
        label = self.labels[piece.best]
        return label.startswith("B-"), label[2:] if label.startswith(("B-", "I-")) else label

    def _entity(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {
            "entity_group": self.labels[pieces[0].best].split("-", 1)[-1],
            "score": float(np.mean([piece.score for piece in pieces])),
            "word": self._text([piece.word for piece in pieces]),
            "start": pieces[0].start,
            "end": pieces[-1].end,
        }

    def _text(self, words: list[str]) -> str:
        decoder = self.tokenizer.core.decoder
        return decoder.decode(words) if decoder else " ".join(words)


def pieces_of(item: Encoded, scores: np.ndarray, tokenizer: Tokenizer) -> Iterator[Piece]:
    """Yield the tokens of a text without the special ones; spans count from its start.

    The spans of a text that is split into words count in the words joined by blanks. The tokens of
    its pair are left out: their spans would count in another text.
    """
    text, starts = joined(item.record.text)
    unknown = tokenizer.special_ids().get(tokenizer.roles["unk_token"])
    marked = getattr(tokenizer.core.model, "continuing_subword_prefix", None)
    columns = ("tokens", "input_ids", "offset_mapping", "word_ids", "sequence_ids")
    for at, (token, index, (start, end), word, sequence) in enumerate(
        zip(*(item.columns[name] for name in columns), strict=True)
    ):
        if sequence != 0:
            continue
        if starts is not None and word is not None:
            start, end = start + starts[word], end + starts[word]
        if index == unknown:
            yield Piece(text[start:end], scores[at], start, end, at)
            continue
        if marked:  # "##ing" is longer than what it stands for
            continues = len(token) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        yield Piece(token, scores[at], start, end, at, continues)


def joined(text: str | list[str]) -> tuple[str, list[int] | None]:
    """Return a text, and where its words begin when it comes in words."""
    if isinstance(text, str):
        return text, None
    starts, at = [], 0
    for word in text:
        starts.append(at)
        at += len(word) + 1
    return " ".join(text), starts


def words_of(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Gather the tokens of each word."""
    word: list[Piece] = []
    for piece in pieces:
        if word and not piece.continues:
            yield word
            word = []
        word.append(piece)
    if word:
        yield word


def without_overlap(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep of the entities that windows share the longest one, of equal ones the most certain."""
    found: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda one: one["start"]):
        if found and found[-1]["start"] <= entity["start"] < found[-1]["end"]:
            found[-1] = max(found[-1], entity, key=_rank)
        else:
            found.append(entity)
    return found


def _rank(entity: dict[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
