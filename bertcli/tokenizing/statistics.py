"""Token statistics of a corpus, or of each of its files, in one pass and in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from bertcli.io.paths import input_name
from bertcli.model_folder.tokenizer_classes import continuation_test
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record
from bertcli.tokenizing.batch import TokenBatch, as_lists
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer

UNKNOWN_KEPT = 50_000  # distinct unknown words counted; beyond that the rare ones are dropped
BARS = 12
BEFORE, NONE = -1, -2  # pseudo-ids: the start of a row, and a missing token


def file_rows(
    counter: Callable[[], CorpusStats | TokenCounts],
    paths: Sequence[str],
    batches: Iterable[TokenBatch],
) -> list[Any]:
    """Return a row of counts for each file, in the order of the paths, then the total (file None).

    A file without records has a row of zeros.
    """
    files: dict[str | None, Any] = {input_name(path): counter() for path in paths}
    files[None] = counter()
    for batch in batches:
        files[None].add(batch)
        for file, rows in groupby(range(len(batch)), batch.records.files.__getitem__):
            part = [*rows]
            files[file].add(batch if len(part) == len(batch) else batch.take(part))
    return [{"file": name} | counts.summary() for name, counts in files.items()]


class CorpusStats:
    """Counts over encoded records; ``summary`` returns the result."""

    def __init__(self, tokenizer: Tokenizer, cut_at: int | None) -> None:
        self.tokenizer, core = tokenizer, tokenizer.core
        self.cut_at = cut_at if cut_at is not None else tokenizer.limit
        self.unk = tokenizer.special_ids().get(tokenizer.roles["unk_token"], NONE)
        self.special = {BEFORE, *tokenizer.all_special_ids} - {self.unk}
        # In other models the first token of a text starts a word, even without the mark of one.
        self.is_marked = type(core.model).__name__ == "WordPiece"
        self.lengths: Counter[int] = Counter()
        self.ids: Counter[int] = Counter()
        self.first_ids: Counter[int] = Counter()  # first tokens, if continuations are unmarked
        self.unknown_words: Counter[str] = Counter()

    def add(self, batch: TokenBatch) -> None:
        """Count the records of a batch."""
        self.lengths.update(batch.lengths)
        ids = as_lists(batch.ids)
        self.ids.update(ids)
        is_unknown = self.unk in ids
        if self.is_marked and not is_unknown:
            return
        for record, row in zip(batch.records, batch.lists("input_ids"), strict=True):
            if not self.is_marked:
                pairs = pairwise([BEFORE, *row])
                self.first_ids.update(after for before, after in pairs if before in self.special)
            if is_unknown and self.unk in row:
                self._remember(record)

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON values; lengths include special tokens."""
        texts = self.lengths.total()
        total = sum(length * count for length, count in self.lengths.items())
        core = self.tokenizer.core
        added = core.get_added_tokens_decoder()
        continues = continuation_test(core)

        special = sum(self.ids[index] for index in self.special)
        going_on = sum(
            count
            for index, count in (self.ids - self.first_ids).items()
            if (self.is_marked or index not in added) and continues(core.id_to_token(index) or "")
        )
        words = total - special - going_on
        unknown = self.ids[self.unk]
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
            "unknown": unknown,
            "unknown_share": round(unknown / words, 6) if words else 0,
            "unknown_words": dict(self.unknown_words.most_common(10)),
            "pieces_per_word": round((total - special) / words, 4) if words else 0,
        }

    def _remember(self, record: Record) -> None:
        """Count the words that became [UNK], as spelled in the text."""
        for text in RecordBatch.of([record]).strings:
            encoding = self.tokenizer.core.encode(text, add_special_tokens=False)
            for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
                if index == self.unk:
                    self.unknown_words[text[start:stop]] += 1
        if len(self.unknown_words) > 2 * UNKNOWN_KEPT:
            self.unknown_words = Counter(dict(self.unknown_words.most_common(UNKNOWN_KEPT)))

    def _histogram(self) -> list[dict[str, int]]:
        """Return bars of equal width up to the 99th percentile, and one bar for the rest."""
        if not self.lengths:
            return []
        low = min(self.lengths)
        high = quantile(self.lengths, 0.99)
        top = max(self.lengths)
        width = max(1, -(-(high - low + 1) // BARS))
        starts = [*range(low, high + 1, width)]
        ends = [start + width - 1 for start in starts]
        if ends[-1] < top:
            starts.append(ends[-1] + 1)
            ends.append(top)
        return [
            {
                "from": start,
                "to": end,
                "texts": sum(n for length, n in self.lengths.items() if start <= length <= end),
            }
            for start, end in zip(starts, ends, strict=True)
        ]


def quantile(lengths: Counter[int], share: float) -> int:
    """Return the smallest length that at least this share of the texts does not exceed."""
    missing = share * lengths.total()
    for length in sorted(lengths):
        missing -= lengths[length]
        if missing <= 0:
            return length
    return 0
