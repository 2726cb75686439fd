"""Many single texts as flat arrays: ids, and where those of each text begin; and lines of these.

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
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bertcli.files.tables import NumbersText
from bertcli.records.records import TextBlock
from bertcli.tokenizing.columns import Frame, Layout, TokenBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

    Counts = NDArray[np.int64]

HOLE = NumbersText("[\0]")  # in a line, for what is in the first list; JSON has no such character
# The parts of a row: padding, special tokens, text, special tokens, padding.
SPECIAL, ATTENDED = (1, 1, 0, 1, 1), (0, 1, 1, 1, 0)


def spans(pool: NDArray[Any], starts: Counts, lengths: Counts) -> NDArray[Any]:
    """Return pool[start : start + length] for every span, one after the other."""
    filled = lengths > 0
    starts, lengths = starts[filled], lengths[filled]
    steps = np.ones(lengths.sum(), np.int64)  # from each index to the next
    steps[:1] = starts[:1]
    steps[np.cumsum(lengths)[:-1]] = starts[1:] - starts[:-1] - lengths[:-1] + 1
    return pool[np.cumsum(steps, out=steps)]


def offsets_of(lengths: Counts) -> Counts:
    """Return where rows of these lengths begin, and the end of the last."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def encode_ragged(
    tokenizer: LoadedTokenizer, block: TextBlock, layout: Layout, frame: Frame, first: int = 0
) -> TokenBlock:
    """Return the tokens of single texts, of which the first is so much in the run.

    ``frame`` are the special tokens of a text.
    """
    limit = tokenizer.cut_at(layout)
    ids, offsets = tokenizer.engine(block.texts)  # type: ignore[arg-type]
    starts, lengths = offsets[:-1], np.diff(offsets)
    before, after = frame.special
    special = len(before) + len(after)
    left = lengths if limit is None else np.minimum(lengths, limit - special)
    if (layout.truncation_side or tokenizer.truncation_side) == "left":
        starts = starts + lengths - left
    whole, padding = left + special, np.zeros((2, len(block)), np.int64)  # before and behind
    pads: list[int] = []  # the most that a row gets
    if layout.padding != "do_not_pad":
        length = tokenizer.padded_length(layout, int(whole.max(initial=0)))
        side = int((layout.padding_side or tokenizer.padding_side) == "right")
        padding[side] = np.maximum(length - whole, 0)
        pads = [tokenizer.padding_id] * int(padding.max(initial=0))
    pool = np.concatenate([ids, np.array(before + after + pads, np.uint32)])
    pad, first_special, last_special = len(ids) + special, len(ids), len(ids) + len(before)

    def of_parts(values: Sequence[Any], kind: Any) -> NDArray[Any]:
        rows = [np.broadcast_to(value, len(block)) for value in values]
        return np.stack(rows, axis=1, dtype=kind, casting="unsafe").reshape(-1)

    begins = of_parts((pad, first_special, starts, last_special, pad), np.int64)
    sizes = of_parts((padding[0], len(before), left, len(after), padding[1]), np.int64)
    kinds: dict[str, Any] = {
        "token_type_ids": np.array([0, *frame.types, 0]) * tokenizer.reads_types,
        "attention_mask": ATTENDED,
        "special_tokens_mask": SPECIAL,
    }
    columns: dict[str, Any] = {"input_ids": spans(pool, begins, sizes)}
    for name in set(layout.columns) - {"input_ids"}:
        columns[name] = np.repeat(of_parts(kinds[name], np.uint8), sizes)
    samples, offsets = range(first, first + len(block)), offsets_of(whole + padding.sum(axis=0))
    return TokenBlock(block, samples, columns, offsets, (lengths - left).tolist())


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
