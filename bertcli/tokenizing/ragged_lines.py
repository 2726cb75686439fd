"""Flat batches to lines of JSON: the bytes of `files.jsonl.to_json`, without a number each.

orjson writes the ids of many texts at once, with a number between texts that is no id, and what it
wrote is cut there. What follows the ids of a row is the same for all rows of its shape, and made
once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import orjson

from bertcli.files.jsonl import to_lines
from bertcli.records.records import TextBlock
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.ragged import ATTENDED, SPECIAL, Ragged
from bertcli.tokenizing.run import RaggedBatch, count_row, row

BETWEEN = 2**32 - 1  # stands between the ids of two texts
SHAPES = 1 << 14  # shapes of rows that are remembered
LONGEST = 4096  # tokens of a row that is remembered
TOGETHER = 1 << 16  # tokens written at once: more are no faster, and fill the CPU's cache


class RaggedLines:
    """Makes lines of one layout. ``extra`` are fields that are no columns, as in `run.row`."""

    def __init__(
        self, layout: Layout, extra: Sequence[str] = (), *, only_count: bool = False
    ) -> None:
        self.layout, self.extra, self.only_count = layout, tuple(extra), only_count
        self.tails: dict[Hashable, bytes] = {}

    def __call__(self, batch: RaggedBatch) -> list[bytes]:
        """Return the lines of a batch, many in each of these."""
        simple = not self.only_count and "overflow_to_sample_mapping" not in self.extra
        if not simple or (batch.tokens.ids == BETWEEN).any():
            return [self._one_by_one(batch)]
        return [self._together(some) for some in batch.pieces(TOGETHER)]

    def _together(self, batch: RaggedBatch) -> bytes:
        tokens = batch.tokens
        texts, tails = self._numbers(tokens), self._tails(tokens)
        heads, ends = self._around(tokens, batch.records)
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
        filled = tokens.lengths > 0
        marked = np.insert(tokens.ids, tokens.offsets[1:][filled][:-1], BETWEEN)
        written = orjson.dumps(marked, option=orjson.OPT_SERIALIZE_NUMPY)
        found = written[1:-1].split(b",%d," % BETWEEN)
        if filled.all():
            return found
        texts = iter(found)
        return [next(texts) if there else b"" for there in filled.tolist()]

    def _tails(self, tokens: Ragged) -> list[bytes]:
        """Return what follows the ids of every text and depends on its shape alone."""
        if tokens.is_plain:
            keys: list[Any] = tokens.lengths.tolist()
        else:
            shapes = np.concatenate([tokens.parts, tokens.pairs[:, None]], axis=1)
            keys = list(map(tuple, shapes.tolist()))
        if len(self.tails) >= SHAPES:
            self.tails.clear()
        known = self.tails
        new = {key: at for at, key in enumerate(keys) if key not in known}
        known |= {key: self._tail(tokens, at) for key, at in new.items()}
        found = [known[key] for key in keys]
        for key, at in new.items():
            if tokens.lengths[at] > LONGEST:
                del known[key]
        return found

    def _tail(self, tokens: Ragged, at: int) -> bytes:
        """Return the end of the ids, the other columns and the length of a row."""
        parts = tokens.parts[at]
        by_part = {
            "token_type_ids": tokens.types[int(tokens.pairs[at])],
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
    return to_lines(rows).encode().split(b"\n")[:-1]
