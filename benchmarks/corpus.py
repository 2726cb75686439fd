"""The texts that are measured: made from a vocabulary, the same on every machine, or read.

Words are drawn from the whole words of the model's own vocabulary, which BERT's authors sorted by
frequency, with the weights 1/rank of Zipf's law; one word in twelve is two words glued together, so
that some fall into pieces. No two texts of a set are equal: bertcli would encode those once. The
lengths of words and sentences are those of English, the meaning is not: give files of your texts
for cosines that tell of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from bertcli import Layout, Record, Tokenizer


class TextSet(NamedTuple):
    """Texts with a name, and the number of tokens of each after the cut at the limit."""

    name: str
    texts: tuple[str, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


class Corpus:
    """Draws texts for one model, and counts their tokens as that model does."""

    def __init__(self, folder: Path, max_length: int) -> None:
        self.tokenizer = Tokenizer.load(folder)
        self.layout = Layout(max_length=max_length, truncation="longest_first")
        ids = self.tokenizer.core.get_vocab()
        vocabulary = sorted(ids, key=ids.__getitem__)
        self.words = [word for word in vocabulary if word.isascii() and word.isalpha()]
        self.weights = list(accumulate(1 / rank for rank in range(1, len(self.words) + 1)))

    def counted(self, name: str, texts: Sequence[str]) -> TextSet:
        """Return texts as a set, without empty ones and repetitions."""
        distinct = tuple(dict.fromkeys(text for text in texts if text.strip()))
        encoded = self.tokenizer.encode_records([Record(text) for text in distinct], self.layout)
        return TextSet(name, distinct, tuple(item.length for item in encoded))

    def read(self, path: Path) -> TextSet:
        """Return the lines of a file, named after it."""
        return self.counted(path.stem, path.read_text("utf-8").splitlines())

    def made(self, name: str, count: int, words: Callable[[random.Random], int]) -> TextSet:
        """Return that many texts; ``words`` draws how many words the next one has."""
        draw = random.Random(f"bertcli {name}")
        found: dict[str, None] = {}
        while len(found) < count:
            found[self._text(draw, words(draw))] = None
        return self.counted(name, list(found))

    def short(self, count: int, name: str = "short") -> TextSet:
        """Return sentences of about 16 tokens."""
        return self.made(name, count, lambda draw: draw.randint(5, 20))

    def long(self, count: int) -> TextSet:
        """Return reviews of about 240 tokens; many are cut at the limit."""
        return self.made("long", count, lambda draw: draw.randint(150, 270))

    def mixed(self, count: int) -> TextSet:
        """Return texts from a word to more than the limit, as many short as long on a log scale."""
        return self.made("mixed", count, lambda draw: round(2 ** draw.uniform(0, 8)))

    def exact(self, length: int, count: int) -> TextSet:
        """Return texts of exactly that many tokens, [CLS] and [SEP] included."""
        draw = random.Random(length)
        whole = [" ".join(self._words(draw, length - 2, glue=0)) for _ in range(count)]
        return self.counted(f"{length} tokens", whole)

    def _words(self, draw: random.Random, count: int, glue: float) -> Iterator[str]:
        for word in draw.choices(self.words, cum_weights=self.weights, k=count):
            yield word + draw.choice(self.words) if draw.random() < glue else word

    def _text(self, draw: random.Random, count: int) -> str:
        """Return sentences of 5 to 20 words, the last cut short where the text ends."""
        words, sentences = list(self._words(draw, count, glue=1 / 12)), []
        while words:
            size = draw.randint(5, 20)
            sentences.append(" ".join(words[:size]).capitalize() + draw.choice(".....!?"))
            words = words[size:]
        return " ".join(sentences)
