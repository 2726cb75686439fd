"""Millions of texts as flat arrays: ids, and where those of each text begin; and lines of these.

    batch = RaggedMaker(tokenizer, Layout())([Record('I love NLP!'), Record("Hi")], skip)
    batch.ids       # uint32 [T]: 101 1045 2293 17953 2361 999 102 101 7632 102
    batch.offsets   # int64 [B + 1]: 0 7 10
    batch.column("token_type_ids")   # uint8 [T]
    RaggedLines(Layout())(batch)   # [b'{"input_ids":[101,1045,2293,17953,2361,999,102],...

Special tokens, truncation and padding are array operations with the rules of `columns`. orjson
writes the ids of many texts at once, with a number between texts that is no id, and what it wrote
is cut there. What follows the ids of a row is the same for all rows of its shape, and made once.
`B` is the number of texts, `T` of their tokens together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson

from bertcli.errors import InputError
from bertcli.files.jsonl import to_lines
from bertcli.records.records import Record, Text, TextBlock
from bertcli.tokenizing.columns import Layout, RaggedBatch, frame_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

    Ids = NDArray[np.uint32]
    Counts = NDArray[np.int64]

S = TypeVar("S", bound=np.generic)

SHAPES = 1 << 14  # shapes of rows that are remembered
LONGEST = 4096  # tokens of a row that is remembered
TOGETHER = 1 << 16  # tokens written at once: more are no faster, and fill the CPU's cache


def spans(pool: NDArray[S], starts: Counts, lengths: Counts) -> NDArray[S]:
    """Return pool[start : start + length] for every span, one after the other."""
    ends = np.cumsum(lengths)
    index = np.repeat(starts - ends + lengths, lengths)
    index += np.arange(len(index))
    return pool[index]


def offsets_of(lengths: Counts) -> Counts:
    """Return where rows of these lengths begin, and the end of the last."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class RaggedMaker:
    """Makes ragged batches of one layout."""

    def __init__(self, tokenizer: LoadedTokenizer, layout: Layout) -> None:
        tokenizer.notice_changes()
        self.tokenizer, self.engine, self.layout = tokenizer, tokenizer.engine, layout
        self.limit = tokenizer.cut_at(layout)
        self.side = layout.truncation_side or tokenizer.truncation_side
        core, special = tokenizer.core, layout.special_tokens
        frames = (frame_of(core, pair=pair, special=special) for pair in (False, True))
        self.frames = [frame for frame in frames if frame]  # of a single text, of a pair
        sizes = [[len(ids) for ids in frame[:3]] for frame in self.frames]
        types = [frame.types for frame in self.frames]
        self.special = np.array(sizes, np.int64)  # [2, 3], tokens before, between and after
        self.types = np.array(types, np.uint8) * tokenizer.reads_types  # [2, 7], of the parts

    @property
    def fits(self) -> bool:
        """Whether arrays can say what the layout asks for, and what the tokenizer makes."""
        return self.layout.is_flat and len(self.frames) == 2

    def __call__(
        self, records: Sequence[Record], skip: Callable[[InputError], None], first: int = 0
    ) -> RaggedBatch:
        """Return the tokens of records, of which the first is so much in the run.

        A record that cannot be truncated as asked goes to ``skip`` and is left out.
        """
        block, layout = TextBlock.of(records), self.layout
        samples: Sequence[int] = range(first, first + len(block))
        simple = layout.padding == "do_not_pad" and layout.truncation != "only_second"
        if simple and block.pairs is None and not block.is_split:
            return self._singles(block, samples)
        seconds = block.pairs or [None] * len(block)
        pairs = np.array([text is not None for text in seconds], np.bool_)
        ids, offsets = self._ids(block.texts)
        pair_ids, pair_offsets = self._ids([text for text in seconds if text is not None])
        lengths = np.zeros((len(block), 2), np.int64)
        lengths[:, 0], lengths[pairs, 1] = np.diff(offsets), np.diff(pair_offsets)
        starts = np.stack([offsets[:-1], offsets_of(lengths[:, 1])[:-1] + len(ids)], axis=1)
        left, rows = self._left(block, lengths, pairs, skip)
        if self.side == "left":
            starts += np.where(left > 0, lengths - left, 0)
        if len(rows) < len(block):
            block, samples = block.take(rows), [samples[row] for row in rows]
            lengths, left, starts, pairs = lengths[rows], left[rows], starts[rows], pairs[rows]

        which = pairs.astype(np.intp)
        parts = np.zeros((len(block), self.types.shape[1]), np.int64)
        parts[:, 1:6:2], parts[:, 2:5:2] = self.special[which], left
        padding = 0  # the most that a row gets
        if layout.padding != "do_not_pad":
            whole = parts.sum(axis=1)
            length = self.tokenizer.padded_length(layout, int(whole.max(initial=0)))
            missing = np.maximum(length - whole, 0)
            side = layout.padding_side or self.tokenizer.padding_side
            parts[:, 0 if side == "left" else 6] = missing
            padding = int(missing.max(initial=0))
        around = [index for frame in self.frames for part in frame[:3] for index in part]
        pads = [self.tokenizer.padding_id] * padding if padding else []
        pool = np.concatenate([ids, pair_ids, np.array(around + pads, np.uint32)])
        begin = np.empty_like(parts)  # of each part in the pool
        begin[:, (0, 6)] = len(pool) - len(pads)
        frames = offsets_of(self.special.reshape(-1))[:-1].reshape(2, 3)
        begin[:, 1:6:2] = (frames + len(ids) + len(pair_ids))[which]
        begin[:, 2:5:2] = starts
        return RaggedBatch(
            block,
            samples,
            spans(pool, begin.reshape(-1), parts.reshape(-1)),
            offsets_of(parts.sum(axis=1)),
            parts,
            pairs,
            self.types,
            (lengths - left).sum(axis=1),
        )

    def _singles(self, block: TextBlock, samples: Sequence[int]) -> RaggedBatch:
        """Return the tokens of texts that no record asks more of than to be cut.

        The engine puts special tokens around them, and of those that are too long some are dropped.
        """
        texts: Sequence[Any] = block.texts
        ids, offsets = self.engine(texts, special=self.layout.special_tokens)
        before, _, after = self.special[0].tolist()
        lengths = np.diff(offsets) - (before + after)
        limit = lengths if self.limit is None else self.limit - before - after
        cut = np.maximum(lengths - limit, 0)
        parts = np.zeros((len(lengths), self.types.shape[1]), np.int64)
        parts[:, 1], parts[:, 2], parts[:, 5] = before, lengths - cut, after
        if cut.any():
            runs = np.stack([np.full_like(cut, before), cut, lengths - cut + after], axis=1)
            if self.side == "right":
                runs += (lengths - cut)[:, None] * [1, 0, -1]
            ids = ids[np.repeat(np.tile([True, False, True], len(runs)), runs.reshape(-1))]
            offsets = offsets_of(lengths - cut + (before + after))
        pairs = np.zeros(len(lengths), np.bool_)
        return RaggedBatch(block, samples, ids, offsets, parts, pairs, self.types, cut)

    def _ids(self, texts: Sequence[Text]) -> tuple[Ids, Counts]:
        """Return the ids of texts; those of a text that is split are those of its words."""
        if list not in map(type, texts):
            return self.engine(texts)  # type: ignore[arg-type]
        words = [text if isinstance(text, list) else [text] for text in texts]
        ids, offsets = self.tokenizer.words_engine([word for row in words for word in row])
        return ids, offsets[offsets_of(np.array([len(row) for row in words], np.int64))]

    def _left(
        self,
        block: TextBlock,
        lengths: Counts,
        pairs: NDArray[np.bool_],
        skip: Callable[[InputError], None],
    ) -> tuple[Counts, Sequence[int]]:
        """Return how many tokens of both texts are left [B, 2], and which rows can be truncated.

        The rules are those of `columns.windows`, which makes the errors.
        """
        rows: Sequence[int] = range(len(block))
        if self.limit is None:
            return lengths, rows
        room = self.limit - self.special.sum(axis=1)[pairs.astype(np.intp)]
        over, (first, second) = lengths.sum(axis=1) > room, lengths.T
        strategy, failed = self.layout.truncation, set()
        if strategy == "longest_first":
            shorter = np.minimum(np.minimum(first, second), room // 2)
            first = np.where(first <= second, shorter, room - shorter)
        elif strategy == "only_first":
            first = room - second
        left = np.where(over[:, None], np.stack([first, room - first], axis=1), lengths)
        nothing_left = left[:, int(strategy == "only_second")] <= 0
        for row in np.flatnonzero(over & nothing_left).tolist():
            try:
                self.tokenizer.windows_of(
                    block[row], tuple(lengths[row].tolist()), self.layout, self.limit
                )
            except InputError as error:
                skip(error)
                failed.add(row)
        return left, [row for row in rows if row not in failed] if failed else rows


class RaggedLines:
    """Makes lines of one layout, the bytes of `files.jsonl.to_json`, without a number each.

    ``extra`` are fields that are no columns, as in `run.row`.
    """

    def __init__(self, layout: Layout, extra: Sequence[str] = ()) -> None:
        self.layout, self.extra = layout, tuple(extra)
        self.tails: dict[Hashable, bytes] = {}

    def __call__(self, batch: RaggedBatch) -> list[bytes]:
        """Return the lines of a batch, many in each of these."""
        written, start = [], 0
        while start < len(batch):
            end = batch.offsets[start] + TOGETHER  # more where one record alone has more
            stop = max(start + 1, int(batch.offsets.searchsorted(end, "right")) - 1)
            rows, start = batch.rows(start, stop), stop
            heads, ends = self._around(rows)
            parts = [b""] * (4 * len(rows))
            parts[0::4], parts[3::4] = heads, ends
            parts[1::4], parts[2::4] = _numbers(rows), self._tails(rows)
            written.append(b"".join(parts))
        return written

    def _tails(self, batch: RaggedBatch) -> list[bytes]:
        """Return what follows the ids of every text and depends on its shape alone."""
        if batch.is_plain:
            keys: list[Any] = batch.lengths.tolist()
        else:
            shapes = np.concatenate([batch.parts, batch.pairs[:, None]], axis=1)
            keys = list(map(tuple, shapes.tolist()))
        if len(self.tails) >= SHAPES:
            self.tails.clear()
        remembered = self.tails
        new = {key: row for row, key in enumerate(keys) if key not in remembered}
        remembered |= {key: self._tail(batch.rows(row, row + 1)) for key, row in new.items()}
        tails = [remembered[key] for key in keys]
        for key, row in new.items():
            if batch.lengths[row] > LONGEST:
                del remembered[key]
        return tails

    def _tail(self, row: RaggedBatch) -> bytes:
        """Return the end of the ids, the other columns and the length of a row."""
        tail = b"]"
        for name in self.layout.columns[1:]:
            flat = row.column(name) + ord("0")
            commas = np.full(max(0, 2 * len(flat) - 1), ord(","), np.uint8)
            commas[::2] = flat
            tail += b',"%s":[%s]' % (name.encode(), commas.tobytes())
        if "length" in self.extra:
            tail += b',"length":%d' % len(row.ids)
        return tail

    def _around(self, batch: RaggedBatch) -> tuple[list[bytes], list[bytes]]:
        """Return what comes before the ids of every text, and what ends its line."""
        records, cuts = batch.records, batch.cut.tolist()
        first, last = b'"input_ids":[', b"}\n"
        heads, ends = [b"{" + first] * len(batch), [last] * len(batch)
        if records.ids is not None:
            keys = [{} if key is None else {"id": key} for key in records.ids]
            objects = zip(keys, _objects(keys), strict=True)
            heads = [line[:-1] + (b"," if key else b"") + first for key, line in objects]
        if "text" not in self.extra and records.extras is None:
            for row in np.flatnonzero(batch.cut).tolist():
                ends[row] = b',"truncated":%d}\n' % cuts[row]
            return heads, ends
        endings = []
        for record, cut in zip(records, cuts, strict=True):
            ending: dict[str, Any] = {}
            if "text" in self.extra:
                ending["text"] = record.text
                if record.pair is not None:
                    ending["pair"] = record.pair
            if cut:
                ending["truncated"] = cut
            endings.append(ending | (record.extra or {}))
        objects = zip(endings, _objects(endings), strict=True)
        return heads, [(b"," if ending else b"") + line[1:] + b"\n" for ending, line in objects]


def _numbers(batch: RaggedBatch) -> list[bytes]:
    """Return the ids of every text, commas between them."""
    filled, ids, between = batch.lengths > 0, batch.ids, 2**32 - 1
    if between in ids:  # a wider number costs time
        ids, between = ids.astype(np.int64), -1
    marked = np.insert(ids, batch.offsets[1:][filled][:-1], between)
    written = orjson.dumps(marked, option=orjson.OPT_SERIALIZE_NUMPY)
    numbers = written[1:-1].split(b",%d," % between)
    if filled.all():
        return numbers
    texts = iter(numbers)
    return [next(texts) if is_filled else b"" for is_filled in filled.tolist()]


def _objects(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    return to_lines(rows).encode().split(b"\n")[:-1]
