"""Many texts or pairs as flat arrays: ids, and where those of each text begin; and lines of these.

    batch = encode_ragged(tokenizer, block, Layout(), frame)   # of 'I love NLP!' and "Hi"
    batch.ids       # uint32 [T]: 101 1045 2293 17953 2361 999 102 101 7632 102
    batch.offsets   # int64 [B + 1]: 0 7 10
    batch.columns["token_type_ids"]   # uint8 [T]
    ragged_lines(batch, ["input_ids"], lines)   # of JSON, where `HOLE` stands for the lists

Special tokens, truncation and padding are array operations with the rules of `columns`. orjson
writes the ids of many texts at once, with a number between texts that is no id, and what it wrote
is cut there. `B` is the number of texts, `T` of their tokens together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bertcli.files.tables import NumbersText
from bertcli.records.records import TextBlock
from bertcli.tokenizing.columns import Frame, Layout, TokenBlock, kept_lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

    Counts = NDArray[np.int64]

HOLE = NumbersText("[\0]")  # in a line, for what is in the first list; JSON has no such character


def spans(pool: NDArray[Any], starts: Counts, lengths: Counts) -> NDArray[Any]:
    """Return pool[start : start + length] for every span, one after the other."""
    filled = lengths > 0
    starts, lengths = starts[filled], lengths[filled]
    steps = np.ones(lengths.sum(), np.int64)  # from each index to the next
    steps[:1] = starts[:1]
    steps[np.cumsum(lengths)[:-1]] = starts[1:] - starts[:-1] - lengths[:-1] + 1
    return pool[np.cumsum(steps, out=steps)]


def offsets_of(lengths: Counts | list[int]) -> Counts:
    """Return where rows of these lengths begin, and the end of the last."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def encode_ragged(
    tokenizer: LoadedTokenizer, block: TextBlock, layout: Layout, frame: Frame, first: int = 0
) -> TokenBlock:
    """Return the tokens of texts, or of pairs, of which the first is so much in the run.

    ``frame`` are the special tokens of a text or of a pair, and the row of each has the same
    parts: padding, special tokens, text, special tokens, perhaps text and special tokens, padding.
    Raises InputError when a pair cannot be truncated as asked.
    """
    limit = tokenizer.cut_at(layout)
    texts: Any = [*block.texts, *(block.pairs or ())]
    ids, offsets = tokenizer.engine([*chain.from_iterable(texts)] if block.is_split else texts)
    if block.is_split:
        offsets = offsets[offsets_of([*map(len, texts)])]  # of texts, not of words
    special = [*map(len, frame.special)]
    shape = len(special) - 1, len(block)  # the first texts of all rows, then the second ones
    starts, lengths = offsets[:-1].reshape(shape), np.diff(offsets).reshape(shape)
    left = lengths
    if limit is not None:
        room = tokenizer.room(limit, layout, pair=block.pairs is not None)
        left = np.minimum(lengths, room)
        if block.pairs:
            for row in np.flatnonzero(lengths.sum(axis=0) > room).tolist():
                text, pair = lengths[:, row].tolist()
                left[:, row] = kept_lengths(text, pair, room, layout.truncation)
    if (layout.truncation_side or tokenizer.truncation_side) == "left":
        starts = starts + lengths - left

    sizes = np.zeros((len(block), 2 * len(special) + 1), np.int64)  # [B, parts]
    sizes[:, 1::2], sizes[:, 2:-1:2] = special, left.T
    pads: list[int] = []  # the most that a row gets
    if layout.padding != "do_not_pad":
        whole = sizes.sum(axis=1)
        length = tokenizer.padded_length(layout, int(whole.max(initial=0)))
        missing = np.maximum(length - whole, 0)
        side = layout.padding_side or tokenizer.padding_side
        sizes[:, 0 if side == "left" else -1] = missing
        pads = [tokenizer.padding_id] * int(missing.max(initial=0))
    pool = np.concatenate([ids, np.array([*chain(*frame.special), *pads], np.uint32)])
    begins = np.full_like(sizes, len(pool) - len(pads))  # of the parts in the pool
    begins[:, 1::2] = len(ids) + offsets_of(special)[:-1]
    begins[:, 2:-1:2] = starts.T

    flat_sizes = sizes.ravel()
    kinds: dict[str, Any] = {
        "token_type_ids": [kind * tokenizer.reads_types for kind in (0, *frame.types, 0)],
        "attention_mask": [0, *[1] * len(frame.types), 0],
        "special_tokens_mask": [1, *[1, 0] * shape[0], 1, 1],
    }
    columns: dict[str, Any] = {"input_ids": spans(pool, begins.ravel(), flat_sizes)}
    for name in set(layout.columns) - {"input_ids"}:
        of_parts = np.tile(np.array(kinds[name], np.uint8), len(block))
        columns[name] = np.repeat(of_parts, flat_sizes)
    return TokenBlock(
        block,
        range(first, first + len(block)),
        columns,
        offsets_of(sizes.sum(axis=1)),
        (lengths - left).sum(axis=0).tolist(),
    )


def ragged_lines(batch: TokenBlock, names: Sequence[str], lines: str) -> bytes:
    """Return lines of JSON with the columns of a batch of arrays, a row where each has `HOLE`."""
    bounds, columns = batch.offsets.tolist(), [_numbers(batch)]
    for name in names[1:]:
        digits = np.full(2 * len(batch.ids), ord(","), np.uint8)  # those of small numbers
        digits[1::2] = batch.columns[name] + ord("0")
        flat, begin = digits.tobytes(), b'],"%s":[' % name.encode()
        rows = pairwise(bounds)
        columns.append([begin + flat[2 * start + 1 : 2 * stop] for start, stop in rows])
    step = 1 + len(columns)
    parts = [b""] * (step * len(batch) + 1)
    parts[::step] = lines.encode().split(b"\0")
    for at, column in enumerate(columns, 1):
        parts[at::step] = column
    return b"".join(parts)


def _numbers(batch: TokenBlock) -> list[bytes]:
    """Return the ids of every text, commas between them."""
    offsets, ids, between = batch.offsets, batch.ids, 2**32 - 1
    filled = np.diff(offsets) > 0
    if between in ids:  # a wider number costs time
        ids, between = ids.astype(np.int64), -1
    marked = np.insert(ids, offsets[1:][filled][:-1], between)
    written = orjson.dumps(marked, option=orjson.OPT_SERIALIZE_NUMPY)
    numbers = written[1:-1].split(b",%d," % between)
    if filled.all():
        return numbers
    texts = iter(numbers)
    return [next(texts) if is_filled else b"" for is_filled in filled.tolist()]
