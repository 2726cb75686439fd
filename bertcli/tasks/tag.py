"""Which tokens of a text are a name, a place, a drug ...: entities with their spans.

Results are those of transformers' token-classification pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from bertcli.errors import UsageError
from bertcli.records.reader import Reader
from bertcli.tasks.entities import Grouping, without_overlap
from bertcli.tasks.head import Head, Stream, streamed, token_logits
from bertcli.tasks.results import Result
from bertcli.tasks.scores import softmax
from bertcli.tokenizing.columns import Encoded, Layout

COLUMNS = ("tokens", "offset_mapping", "word_ids", "sequence_ids")


@dataclass(frozen=True)
class TagTask:
    """A tagger that is ready to run. With a stride long texts are tagged in windows."""

    head: Head
    aggregation: str = "simple"
    ignored: tuple[str, ...] = ("O",)

    def __post_init__(self) -> None:
        if self.head.settings.stride is not None and self.aggregation == "none":
            raise UsageError(
                "--stride cannot be combined with --aggregation none",
                "tokens that windows share would appear twice; use --aggregation simple",
            )

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the texts of a reader."""
        blank = {"entities": [self._grouping.blank]}
        return streamed(self.head, reader, self._layout(), self._judge, blank)

    @property
    def _grouping(self) -> Grouping:
        return Grouping(self.head.tokenizer, self.head.labels, self.aggregation, self.ignored)

    def _layout(self) -> Layout:
        layout, stride = self.head.layout(*COLUMNS), self.head.settings.stride
        return layout if stride is None else replace(layout, overflowing=True, stride=stride)

    @property
    def word_layout(self) -> Layout:
        """How texts that are split into words become tokens for `word_labels`."""
        return word_windows(self.head.layout("word_ids"))

    def word_labels(self, batch: list[Encoded]) -> list[list[str]]:
        """Return the label of each word: that of its first token, "O" where it has none."""
        labels = self.head.labels
        found = {one.sample: ["O"] * len(one.record.text) for one in batch}
        logits = self.head.outputs(batch, token_logits)
        for item, scores, words in zip(batch, logits, own_words(batch), strict=True):
            for word, place in words.items():
                found[item.sample][word] = labels[int(scores[place].argmax())]
        return list(found.values())

    def _judge(self, batch: list[Encoded]) -> list[Result]:
        grouping = self._grouping
        logits = self.head.outputs(batch, token_logits)
        results = []
        pairs = zip(batch, logits, strict=True)
        for _, windows in groupby(pairs, key=lambda pair: pair[0].sample):
            parts = [(item, softmax(one)) for item, one in windows]
            found = [entity for part in parts for entity in grouping.entities(*part)]
            if len(parts) > 1:
                found = without_overlap(found)
            item = parts[0][0]
            results.append(Result(item.record, item.sample, {"entities": found}, item.cut))
        return results


SHARED = 4  # a window shares one of so many tokens with the next one


def word_windows(layout: Layout) -> Layout:
    """Return the layout of windows as long as the layout's texts, for sentences of words."""
    return replace(layout, overflowing=True, stride=(layout.max_length or 0) // SHARED)


def own_words(items: Sequence[Encoded]) -> Iterator[dict[int, int]]:
    """Yield the words of each window, and the places of their first tokens; each word once.

    A word belongs to the window that has most tokens around its first token.
    """
    for _, windows in groupby(items, key=lambda item: item.sample):
        yield from _of_sentence(list(windows))


def _of_sentence(windows: Sequence[Encoded]) -> list[dict[int, int]]:
    best: dict[int, tuple[float, int, int]] = {}  # tokens around it, the window, the place
    for number, item in enumerate(windows):
        found: set[int] = set()
        for place, word in enumerate(item.columns["word_ids"]):
            if word is None or word in found:
                continue
            begun_before = word in best and not found  # then its first token may be elsewhere
            found.add(word)
            left = place if number else inf
            right = item.length - place if number + 1 < len(windows) else inf
            around = min(left, right)
            if word not in best or (around > best[word][0] and not begun_before):
                best[word] = around, number, place
    own: list[dict[int, int]] = [{} for _ in windows]
    for word, (_, number, place) in best.items():
        own[number][word] = place
    return own
