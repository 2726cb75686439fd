"""Token statistics of a corpus, or of each of its files, in one pass and in constant memory."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import accumulate, groupby, pairwise
from typing import Any

from bertcli.files.paths import input_name
from bertcli.records.records import Record
from bertcli.tokenizing.columns import TokenBlock, as_lists
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.tokenizing.tokenizer_classes import goes_on


class TokenTotals:
    """The number of texts and of their tokens."""

    def __init__(self) -> None:
        self.texts = self.tokens = 0

    def blank(self) -> TokenTotals:
        """Return another one that has counted nothing."""
        return TokenTotals()

    def add(self, batch: TokenBlock) -> None:
        """Count the records of a batch."""
        self.texts += len(batch)
        self.tokens += len(batch.ids)

    def summary(self) -> dict[str, Any]:
        """Return the counts by name."""
        return {"texts": self.texts, "tokens": self.tokens}


def file_rows(
    total: TokenTotals | CorpusStats, paths: Sequence[str], batches: Iterable[TokenBlock]
) -> list[Any]:
    """Return a row for each file, in the order of the paths, and the total, whose file is None.

    A file without a record has a row of zeros.
    """
    files = {input_name(path): total.blank() for path in paths}
    for batch in batches:
        start = 0
        for file, rows_of_file in groupby(batch.records.files):
            stop = start + len(list(rows_of_file))
            part = batch[start:stop]
            files[file].add(part)
            total.add(part)
            start = stop
    rows = [{"file": name} | counts.summary() for name, counts in files.items()]
    return [*rows, {"file": None} | total.summary()]


UNKNOWN_KEPT = 50_000  # distinct unknown words counted; beyond that the rare ones are dropped
BARS = 12


class CorpusStats:
    """Counts over encoded records; ``summary`` is the result."""

    def __init__(self, tokenizer: Tokenizer, cut_at: int | None) -> None:
        self.tokenizer = tokenizer
        self.cut_at = cut_at if cut_at is not None else tokenizer.limit
        self._begin()
        core = tokenizer.core
        added, continues = core.get_added_tokens_decoder(), goes_on(core)
        vocabulary = core.get_vocab()
        self.unk = tokenizer.special_ids().get(tokenizer.roles["unk_token"], -1)
        # Elsewhere a text begins with a word, though its first token may have no mark of one.
        self.is_marked = type(core.model).__name__ == "WordPiece"
        kinds = bytearray(b"w" * (max(vocabulary.values(), default=0) + 1))
        for word, index in vocabulary.items():
            if continues(word) and (self.is_marked or index not in added):
                kinds[index] = ord("c")
        for index, token in added.items():
            if token.special and index != self.unk:
                kinds[index] = ord("s")
        self.kinds = bytes(kinds)  # of each id: w(ord), c(ontinues one), s(pecial)

    def _begin(self) -> None:
        self.lengths: Counter[int] = Counter()
        self.special = self.pieces = self.unknown = 0
        self.unknown_words: Counter[str] = Counter()

    def blank(self) -> CorpusStats:
        """Return another one, for the same tokenizer, that has counted nothing."""
        other = copy(self)
        other._begin()
        return other

    def add(self, batch: TokenBlock) -> None:
        """Count the records of a batch."""
        if isinstance(batch.ids, list):
            kinds = bytes(map(self.kinds.__getitem__, batch.ids))
            unknown = [at for at, index in enumerate(batch.ids) if index == self.unk]
        else:
            import numpy as np

            kinds = np.frombuffer(self.kinds, np.uint8)[batch.ids].tobytes()
            unknown = np.flatnonzero(batch.ids == self.unk).tolist()
        self.lengths.update(batch.lengths)
        self.special += kinds.count(b"s")
        self.pieces += kinds.count(b"c")
        bounds = as_lists(batch.offsets)
        if not self.is_marked:  # what begins a text goes on with nothing
            texts = (kinds[start:stop] for start, stop in pairwise(bounds))
            self.pieces -= b"s".join([b"", *texts]).count(b"sc")
        self.unknown += len(unknown)
        for row in dict.fromkeys(bisect(bounds, at) - 1 for at in unknown):
            self._remember(batch.records[row])

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON values; lengths include special tokens."""
        texts = self.lengths.total()
        total = sum(length * count for length, count in self.lengths.items())
        words = total - self.special - self.pieces
        over = sum(n for length, n in self.lengths.items() if self.cut_at and length > self.cut_at)
        return {
            "texts": texts,
            "tokens": total,
            "words": words,
            "length": {
                "min": min(self.lengths, default=0),
                "mean": round(total / texts, 2) if texts else 0,
                **{f"p{share}": quantile(self.lengths, share / 100) for share in (50, 90, 99)},
                "max": max(self.lengths, default=0),
            },
            "histogram": self._histogram(),
            "max_length": self.cut_at,
            "longer": over,
            "longer_share": round(over / texts, 6) if texts else 0,
            "unknown": self.unknown,
            "unknown_share": round(self.unknown / words, 6) if words else 0,
            "unknown_words": dict(self.unknown_words.most_common(10)),
            "pieces_per_word": round((total - self.special) / words, 4) if words else 0,
        }

    def _remember(self, record: Record) -> None:
        """Count the words that became [UNK]: the text at its offsets."""
        split = isinstance(record.text, list)
        encoding = self.tokenizer.core.encode(record.text, record.pair, split, False)
        sequences, offsets = encoding.sequence_ids, encoding.offsets
        for at, index in enumerate(encoding.ids):
            if index != self.unk:
                continue
            text: Any = record.pair if sequences[at] == 1 else record.text
            start, stop = offsets[at]
            word = text[encoding.word_ids[at] or 0] if split else text
            self.unknown_words[word[start:stop]] += 1
        if len(self.unknown_words) > 2 * UNKNOWN_KEPT:
            self.unknown_words = Counter(dict(self.unknown_words.most_common(UNKNOWN_KEPT)))

    def _histogram(self) -> list[dict[str, int]]:
        """Return bars of equal width up to the 99th percentile, and one for the rest."""
        if not self.lengths:
            return []
        low, high, top = min(self.lengths), quantile(self.lengths, 0.99), max(self.lengths)
        width = max(1, -(-(high - low + 1) // BARS))
        edges = [*range(low, high + 1, width)]
        bars = [{"from": start, "to": start + width - 1, "texts": 0} for start in edges]
        if bars[-1]["to"] < top:
            bars.append({"from": bars[-1]["to"] + 1, "to": top, "texts": 0})
        for length, count in self.lengths.items():
            bars[min((length - low) // width, len(bars) - 1)]["texts"] += count
        return bars


def quantile(lengths: Counter[int], share: float) -> int:
    """Return the smallest length that this share of the texts does not exceed."""
    ordered = sorted(lengths)
    counts = accumulate(lengths[length] for length in ordered)
    needed = share * lengths.total()
    return next((at for at, n in zip(ordered, counts, strict=True) if n >= needed), 0)
