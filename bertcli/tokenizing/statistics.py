"""Token statistics of a corpus, or of each of its files, in one pass and in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from math import inf
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
ROW_START = -1  # pseudo-id before the first token of a row
NO_TOKEN = -2  # pseudo-id of a special token that the vocabulary lacks


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
            rows_of_file = [*rows]
            is_all = len(rows_of_file) == len(batch)
            files[file].add(batch if is_all else batch.take(rows_of_file))
    return [{"file": file} | counts.summary() for file, counts in files.items()]


class CorpusStats:
    """Counts over encoded records; ``summary`` returns the result."""

    def __init__(self, tokenizer: Tokenizer, max_length: int | None) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length if max_length is not None else tokenizer.limit
        self.unk = tokenizer.special_ids().get(tokenizer.roles["unk_token"], NO_TOKEN)
        self.special = {ROW_START, *tokenizer.all_special_ids} - {self.unk}
        # In other models the first token of a text starts a word, even without the mark of one.
        self.has_marks = type(tokenizer.core.model).__name__ == "WordPiece"
        self.lengths: Counter[int] = Counter()
        self.ids: Counter[int] = Counter()
        self.first_ids: Counter[int] = Counter()  # first tokens, if continuations are unmarked
        self.unknown_words: Counter[str] = Counter()

    def add(self, batch: TokenBatch) -> None:
        """Count the records of a batch."""
        self.lengths.update(batch.lengths)
        ids = as_lists(batch.ids)
        self.ids.update(ids)
        has_unknown = self.unk in ids
        if self.has_marks and not has_unknown:
            return
        for record, row in zip(batch.records, batch.lists("input_ids"), strict=True):
            if not self.has_marks:
                pairs = pairwise([ROW_START, *row])
                self.first_ids.update(
                    index for previous, index in pairs if previous in self.special
                )
            if has_unknown and self.unk in row:
                self._count_unknown_words(record)

    def summary(self) -> dict[str, Any]:
        """Return the statistics as JSON values; lengths include special tokens."""
        texts = self.lengths.total()
        total = sum(length * count for length, count in self.lengths.items())
        core = self.tokenizer.core
        added = core.get_added_tokens_decoder()
        continues_word = continuation_test(core)

        special = sum(self.ids[index] for index in self.special)
        continuations = sum(
            count
            for index, count in (self.ids - self.first_ids).items()
            if (self.has_marks or index not in added)
            and continues_word(core.id_to_token(index) or "")
        )
        words = total - special - continuations
        unknown = self.ids[self.unk]
        limit = self.max_length or inf
        longer = sum(count for length, count in self.lengths.items() if length > limit)
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
            "max_length": self.max_length,
            "longer": longer,
            "longer_share": round(longer / texts, 6) if texts else 0,
            "unknown": unknown,
            "unknown_share": round(unknown / words, 6) if words else 0,
            "unknown_words": dict(self.unknown_words.most_common(10)),
            "pieces_per_word": round((total - special) / words, 4) if words else 0,
        }

    def _count_unknown_words(self, record: Record) -> None:
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
                "texts": sum(
                    count for length, count in self.lengths.items() if start <= length <= end
                ),
            }
            for start, end in zip(starts, ends, strict=True)
        ]


def quantile(lengths: Counter[int], share: float) -> int:
    """Return the smallest length that at least this share of the texts does not exceed."""
    remaining = share * lengths.total()
    for length in sorted(lengths):
        remaining -= lengths[length]
        if remaining <= 0:
            return length
    return 0
