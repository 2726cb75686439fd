"""Millions of texts as flat arrays: ids, and where those of each text begin.

    ragged, rows = RaggedMaker(tokenizer, Layout())([Record('I love NLP!'), Record("Hi")], skip)
    ragged.ids       # uint32 [T]: 101 1045 2293 17953 2361 999 102 101 7632 102
    ragged.offsets   # int64 [B + 1]: 0 7 10
    ragged.column("token_type_ids")   # uint8 [T]

Special tokens, truncation and padding are array operations with the rules of `truncation` and
`columns`. A row has seven PARTS; what a token is follows from its part: its type, its mask and
whether it is special. `B` is the number of texts, `T` of their tokens together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertcli.errors import InputError
from bertcli.files.tables import NUMERIC
from bertcli.records.records import Record, Text, TextBlock
from bertcli.tokenizing.columns import Column, Encoded, Layout
from bertcli.tokenizing.frame import Frame, frame_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

    Ids = NDArray[np.uint32]
    Counts = NDArray[np.int64]

S = TypeVar("S", bound=np.generic)

PARTS = ("padding", "before", "first", "between", "second", "after", "padding")
FIRST, SECOND = PARTS.index("first"), PARTS.index("second")
SPECIAL = np.array([1, 1, 0, 1, 0, 1, 1], np.uint8)
ATTENDED = np.array([0, 1, 1, 1, 1, 1, 0], np.uint8)


@dataclass(frozen=True)
class Ragged:
    """The tokens of some texts."""

    ids: Ids  # [T]
    offsets: Counts  # [B + 1]
    parts: Counts  # [B, 7], tokens of each part
    pairs: NDArray[np.bool_]  # [B], whether there is a second text
    types: NDArray[np.uint8]  # [2, 7], of the parts of a single text, of a pair
    cut: Counts  # [B], tokens that truncation dropped

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Counts:
        """The number of tokens of each text [B], special ones and padding included."""
        return np.diff(self.offsets)

    @property
    def is_plain(self) -> bool:
        """Whether all tokens are of type 0, and none is padding."""
        return not (self.pairs.any() or self.types[0].any() or self.parts[:, (0, 6)].any())

    def rows(self, start: int, stop: int) -> Ragged:
        """Return the texts from ``start`` to before ``stop``."""
        offsets, some = self.offsets[start : stop + 1], slice(start, stop)
        ids, begin = self.ids[offsets[0] : offsets[-1]], offsets[0]
        parts, pairs, cut = self.parts[some], self.pairs[some], self.cut[some]
        return Ragged(ids, offsets - begin, parts, pairs, self.types, cut)

    def column(self, name: str) -> NDArray[np.uint32] | NDArray[np.uint8]:
        """Return a column of `NUMERIC` for all texts [T]."""
        match name:
            case "input_ids":
                return self.ids
            case "token_type_ids":
                of_parts = self.types[self.pairs.astype(np.intp)]
            case "attention_mask":
                of_parts = np.broadcast_to(ATTENDED, self.parts.shape)
            case _:
                of_parts = np.broadcast_to(SPECIAL, self.parts.shape)
        return np.repeat(of_parts.reshape(-1), self.parts.reshape(-1))

    def encoded(
        self, records: Sequence[Record], columns: Sequence[str], samples: Iterable[int]
    ) -> list[Encoded]:
        """Return the texts as encoded records; ``samples`` are their numbers in the run."""
        names = dict.fromkeys(("input_ids", *columns))
        flat = {name: self.column(name).tolist() for name in names}
        bounds, cuts = self.offsets.tolist(), self.cut.tolist()
        found = []
        rows = zip(records, cuts, samples, bounds, bounds[1:], strict=False)
        for record, cut, sample, start, stop in rows:
            row: dict[str, Column] = {name: values[start:stop] for name, values in flat.items()}
            found.append(Encoded(record, row, cut, sample))
        return found


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
        if not tokenizer.reads_types:
            frames = (frame and frame._replace(types=[0] * len(PARTS)) for frame in frames)
        self.single, self.pair = frames

    @property
    def fits(self) -> bool:
        """Whether the layout asks for nothing that arrays cannot say."""
        known = {*NUMERIC}.issuperset(self.layout.columns) and not self.layout.overflowing
        return known and self.single is not None and self.pair is not None

    def __call__(
        self, records: Sequence[Record], skip: Callable[[InputError], None]
    ) -> tuple[Ragged, Sequence[int]]:
        """Return the tokens of records, and which of the records they are of.

        A record that cannot be truncated as asked goes to ``skip`` and is left out.
        """
        assert self.single and self.pair
        block, layout = TextBlock.of(records), self.layout
        simple = layout.padding == "do_not_pad" and layout.truncation != "only_second"
        if simple and block.pairs is None and not block.is_split:
            return self._singles(block.texts, self.single), range(len(block))
        first, second, pairs = self._flat(block)
        lengths = np.stack([np.diff(first[1]), np.diff(second[1])], axis=1)
        special = [sum(map(len, frame[:3])) for frame in (self.single, self.pair)]
        kept, failed = self._kept(lengths, pairs, np.array(special)[pairs.astype(np.intp)])
        starts = np.stack([first[1][:-1], second[1][:-1] + len(first[0])], axis=1)
        if self.side == "left":
            starts += np.where(kept > 0, lengths - kept, 0)
        rows: Sequence[int] = range(len(records))
        if failed.any():
            for at in np.flatnonzero(failed).tolist():
                skip(self._failure(records[at], tuple(lengths[at].tolist())))
            left = ~failed
            rows, pairs = np.flatnonzero(left).tolist(), pairs[left]
            lengths, kept, starts = lengths[left], kept[left], starts[left]
        cut = (lengths - kept).sum(axis=1)
        pool = np.concatenate([first[0], second[0]]) if len(second[0]) else first[0]
        return self._framed(pool, starts, kept, pairs, cut), rows

    def _singles(self, texts: Sequence[Any], frame: Frame) -> Ragged:
        """Return the tokens of texts that no record asks more of than to be cut.

        The engine puts special tokens around them, and of those that are too long some are dropped.
        """
        ids, offsets = self.engine(texts, special=self.layout.special_tokens)
        before, after = len(frame.before), len(frame.after)
        lengths = np.diff(offsets) - (before + after)
        limit = lengths if self.limit is None else self.limit - before - after
        cut = np.maximum(lengths - limit, 0)
        parts = np.zeros((len(lengths), len(PARTS)), np.int64)
        parts[:, 1], parts[:, FIRST], parts[:, 5] = before, lengths - cut, after
        if cut.any():
            runs = np.stack([np.full_like(cut, before), cut, lengths - cut + after], axis=1)
            if self.side == "right":
                runs += (lengths - cut)[:, None] * [1, 0, -1]
            ids = ids[np.repeat(np.tile([True, False, True], len(runs)), runs.reshape(-1))]
            offsets = offsets_of(lengths - cut + (before + after))
        types = np.array([frame.types, [0] * len(PARTS)], np.uint8)
        return Ragged(ids, offsets, parts, np.zeros(len(lengths), np.bool_), types, cut)

    def _flat(
        self, block: TextBlock
    ) -> tuple[tuple[Ids, Counts], tuple[Ids, Counts], NDArray[np.bool_]]:
        """Return the ids of first and of second texts, and which records have a second."""
        count = len(block)
        first, seconds = self._ids(block.texts), block.pairs
        if seconds is None:
            nothing = np.zeros(0, np.uint32), np.zeros(count + 1, np.int64)
            return first, nothing, np.zeros(count, np.bool_)
        there = np.array([text is not None for text in seconds], np.bool_)
        ids, offsets = self._ids([text for text in seconds if text is not None])
        lengths = np.zeros(count, np.int64)
        lengths[there] = np.diff(offsets)
        return first, (ids, offsets_of(lengths)), there

    def _ids(self, texts: Sequence[Text]) -> tuple[Ids, Counts]:
        """Return the ids of texts; those of a text that is split are those of its words."""
        if list not in map(type, texts):
            return self.engine(texts)  # type: ignore[arg-type]
        words = [text if isinstance(text, list) else [text] for text in texts]
        ids, offsets = self.tokenizer.words_engine([word for some in words for word in some])
        return ids, offsets[offsets_of(np.array([len(some) for some in words], np.int64))]

    def _kept(
        self, lengths: Counts, pairs: NDArray[np.bool_], special: Counts
    ) -> tuple[Counts, NDArray[np.bool_]]:
        """Return how many tokens of both texts are kept [B, 2], and which rows cannot be truncated.

        The rules are those of `truncation.windows`.
        """
        failed = np.zeros(len(lengths), np.bool_)
        if self.limit is None:
            return lengths, failed
        first, second = lengths[:, 0], lengths[:, 1]
        room = self.limit - special
        over = first + second > room
        if not over.any():
            return lengths, failed
        if (over & pairs).any():
            self.tokenizer.room(self.limit, self.layout, pair=True)  # raises where there is none
        match self.layout.truncation:
            case "longest_first":
                shorter = np.minimum(first, second)
                longer = np.maximum(shorter, room - shorter)
                both = shorter + longer > room
                shorter = np.where(both, room // 2, shorter)
                longer = np.where(both, room - room // 2, longer)
                swap = first > second
                left = np.where(swap, longer, shorter), np.where(swap, shorter, longer)
            case "only_first":
                left = room - second, second
                failed = over & pairs & (left[0] <= 0)
            case _:
                left = first, room - first
                failed = over & (~pairs | (left[1] <= 0))
        kept = np.stack(left, axis=1)
        kept[~pairs] = np.stack([room, np.zeros_like(room)], axis=1)[~pairs]
        return np.where(over[:, None], np.maximum(kept, 0), lengths), failed

    def _failure(self, record: Record, lengths: tuple[int, int]) -> InputError:
        """Return the error for a record that cannot be truncated as asked."""
        assert self.limit is not None
        try:
            self.tokenizer.windows_of(record, lengths, self.layout, self.limit)
        except InputError as error:
            return error
        raise AssertionError(f"{record.where} can be truncated")

    def _framed(
        self, pool: Ids, starts: Counts, kept: Counts, pairs: NDArray[np.bool_], cut: Counts
    ) -> Ragged:
        """Put special tokens and padding around the texts, whose ids lie in ``pool``."""
        assert self.single and self.pair
        frames, which = (self.single, self.pair), pairs.astype(np.intp)
        sizes = np.array([[len(ids) for ids in frame[:3]] for frame in frames], np.int64)
        parts = np.zeros((len(pairs), len(PARTS)), np.int64)
        parts[:, 1:6:2] = sizes[which]
        parts[:, FIRST : SECOND + 1 : 2] = kept
        padding = self._padding(parts)
        around = [index for frame in frames for ids in frame[:3] for index in ids]
        places = (np.cumsum(sizes.reshape(-1)) - sizes.reshape(-1)).reshape(2, 3) + len(pool)
        at = np.empty_like(parts)
        at[:, (0, 6)] = len(pool) + len(around)
        at[:, 1:6:2] = places[which]
        at[:, FIRST : SECOND + 1 : 2] = starts
        pads = [self.tokenizer.padding_id] * padding if padding else []
        whole = np.concatenate([pool, np.array(around + pads, np.uint32)])
        types = np.array([frame.types for frame in frames], np.uint8)
        return Ragged(
            spans(whole, at.reshape(-1), parts.reshape(-1)),
            offsets_of(parts.sum(axis=1)),
            parts,
            pairs,
            types,
            cut,
        )

    def _padding(self, parts: Counts) -> int:
        """Add what the layout pads with, and return the most that a row gets."""
        layout = self.layout
        if layout.padding == "do_not_pad" or not len(parts):
            return 0
        lengths = parts.sum(axis=1)
        longest = layout.padding == "longest"
        length = int(lengths.max()) if longest else self.tokenizer.padded_to(layout)
        step = layout.pad_to_multiple_of or 1
        missing = np.maximum(-(-length // step) * step - lengths, 0)
        side = layout.padding_side or self.tokenizer.padding_side
        parts[:, 0 if side == "left" else 6] = missing
        return int(missing.max())
