"""Flat batches to lines of JSON: the bytes of `files.jsonl.to_json`, without a number each.

A table has the digits of every id. The ids of a batch are looked up there all at once, joined, and
cut into texts at the ends of rows. What follows the ids of a row is the same for all rows of its
shape, and made once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertcli.files.jsonl import to_lines
from bertcli.records.text_block import TextBlock
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.ragged import ATTENDED, SPECIAL, Ragged
from bertcli.tokenizing.run import RaggedBatch, count_row, row

WIDTH = 8  # bytes of an id in the table: seven digits, and a comma before them
LARGEST = 10**7  # the first id that has more
SHAPES = 1 << 14  # shapes of rows that are remembered
LONGEST = 4096  # tokens of a row that is remembered
END = int.from_bytes(b"\n" + bytes(WIDTH - 1), "little")


class RaggedLines:
    """Makes lines of one layout. ``extra`` are fields that are no columns, as in `run.row`."""

    def __init__(
        self, layout: Layout, extra: Sequence[str] = (), *, only_count: bool = False
    ) -> None:
        self.layout, self.extra, self.only_count = layout, tuple(extra), only_count
        self.digits = np.zeros(0, "<u8")  # by id, a comma before
        self.tails: dict[Hashable, bytes] = {}
        self.types = np.zeros((2, 7), np.uint8)

    def __call__(self, batch: RaggedBatch) -> bytes:
        """Return the lines of a batch."""
        tokens, records = batch.tokens, batch.records
        if self.only_count or "overflow_to_sample_mapping" in self.extra:
            return self._one_by_one(batch)
        if len(tokens.ids) and int(tokens.ids.max()) >= LARGEST:
            return self._one_by_one(batch)
        self.types = tokens.types
        texts, tails = self._numbers(tokens), self._tails(tokens)
        heads, ends = self._around(tokens, records)
        parts = [b""] * (4 * len(texts))
        parts[0::4], parts[1::4], parts[2::4], parts[3::4] = heads, texts, tails, ends
        return b"".join(parts)

    def _one_by_one(self, batch: RaggedBatch) -> bytes:
        if self.only_count and batch.records.is_plain:
            return b"".join([b'{"length":%d}\n' % size for size in batch.tokens.lengths.tolist()])
        items = batch.encoded(self.layout.columns)
        if self.only_count:
            return to_lines(list(map(count_row, items))).encode()
        rows = [row(item, self.layout, extra=self.extra) for item in items]
        return to_lines(rows).encode()

    def _numbers(self, tokens: Ragged) -> list[bytes]:
        """Return the ids of every text, commas between them."""
        ids, offsets = tokens.ids, tokens.offsets
        top = int(ids.max(initial=0)) + 1
        if top > len(self.digits):
            written = [b",%d" % number for number in range(top + top // 8)]
            self.digits = np.array(written, f"S{WIDTH}").view("<u8")
        words = self.digits[ids]
        starts = offsets[:-1][tokens.lengths > 0]
        words[starts] >>= 8
        words = np.insert(words, offsets[1:], END)
        return words.tobytes().translate(None, b"\0").split(b"\n")[:-1]

    def _tails(self, tokens: Ragged) -> list[bytes]:
        """Return what follows the ids of every text and depends on its shape alone."""
        if tokens.is_plain:
            keys: list[Any] = tokens.lengths.tolist()
        else:
            shapes = np.concatenate([tokens.parts, tokens.pairs[:, None]], axis=1)
            keys = list(map(tuple, shapes.tolist()))
        found, known = [], self.tails
        for at, key in enumerate(keys):
            tail = known.get(key)
            if tail is None:
                tail = self._tail(tokens.parts[at], self.types[int(tokens.pairs[at])])
                if tokens.lengths[at] <= LONGEST:
                    if len(known) >= SHAPES:
                        known.clear()
                    known[key] = tail
            found.append(tail)
        return found

    def _tail(self, parts: NDArray[np.int64], types: NDArray[np.uint8]) -> bytes:
        """Return the end of the ids, the other columns and the length of a row of some parts."""
        by_part = {
            "token_type_ids": types,
            "attention_mask": ATTENDED,
            "special_tokens_mask": SPECIAL,
        }
        tail = b"]"
        for name in self.layout.columns[1:]:
            flat = np.repeat(by_part[name], parts) + ord("0")
            commas = np.full(max(0, 2 * len(flat) - 1), ord(","), np.uint8)
            commas[::2] = flat
            tail += b',"%s":[%s]' % (name.encode(), commas.tobytes())
        if "length" in self.extra:
            tail += b',"length":%d' % parts.sum()
        return tail

    def _around(self, tokens: Ragged, records: TextBlock) -> tuple[list[bytes], list[bytes]]:
        """Return what comes before the ids of every text, and what ends its line."""
        first, last = b'"input_ids":[', b"}\n"
        heads, ends = [b"{" + first] * len(tokens), [last] * len(tokens)
        if records.ids is not None:
            keys = [{} if key is None else {"id": key} for key in records.ids]
            objects = zip(keys, _objects(keys), strict=True)
            heads = [line[:-1] + (b"," if key else b"") + first for key, line in objects]
        if "text" not in self.extra and records.extras is None:
            for at in np.flatnonzero(tokens.cut).tolist():
                ends[at] = b',"truncated":%d}\n' % tokens.cut[at]
            return heads, ends
        rests = []
        for record, cut in zip(records, tokens.cut.tolist(), strict=True):
            rest: dict[str, Any] = {}
            if "text" in self.extra:
                rest["text"] = record.text
                if record.pair is not None:
                    rest["pair"] = record.pair
            if cut:
                rest["truncated"] = cut
            rests.append(rest | (record.extra or {}))
        objects = zip(rests, _objects(rests), strict=True)
        return heads, [(b"," if rest else b"") + line[1:] + b"\n" for rest, line in objects]


def _objects(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return rows as objects of JSON."""
    return to_lines(rows).encode().split(b"\n")[:-1]
