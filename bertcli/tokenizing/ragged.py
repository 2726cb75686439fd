"""Many texts as flat arrays: ids, and where those of each text begin; and lines of these.

    batch = encode_ragged(tokenizer, [Record('I love NLP!'), Record("Hi")], Layout(), frames)
    batch.ids       # uint32 [T]: 101 1045 2293 17953 2361 999 102 101 7632 102
    batch.offsets   # int64 [B + 1]: 0 7 10
    batch.columns["token_type_ids"]   # uint8 [T]
    ragged_lines(batch, ["input_ids"], [{}, {}])   # [b"...", one a text]

Special tokens, truncation and padding are array operations with the rules of `columns`. orjson
writes the ids of many texts at once, with a number between texts that is no id, and what it wrote
is cut there. `B` is the number of texts, `T` of their tokens together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson

from bertcli.errors import InputError
from bertcli.files.jsonl import to_lines
from bertcli.records.records import Record, Text, TextBlock
from bertcli.tokenizing.columns import Frame, Layout, TokenBlock
from bertcli.tokenizing.wordpiece import WordPieceEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.tokenizing.tokenizer import Tokenizer

    Ids = NDArray[np.uint32]
    Counts = NDArray[np.int64]

S = TypeVar("S", bound=np.generic)

# The parts of a row: padding, special tokens, first text, special, second text, special, padding.
SPECIAL, ATTENDED = (1, 1, 0, 1, 0, 1, 1), (0, 1, 1, 1, 1, 1, 0)


def spans(pool: NDArray[S], starts: Counts, lengths: Counts) -> NDArray[S]:
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
    tokenizer: Tokenizer,
    records: Sequence[Record],
    layout: Layout,
    frames: Sequence[Frame],
    skip: Callable[[InputError], None],
    first: int = 0,
) -> TokenBlock:
    """Return the tokens of records, of which the first is so much in the run.

    ``frames`` are the special tokens of a single text and of a pair. A record that cannot be
    truncated as asked goes to ``skip`` and is left out.
    """
    block, limit = TextBlock.of(records), tokenizer.cut_at(layout)
    samples: Sequence[int] = range(first, first + len(block))
    special = np.array([[len(ids) for ids in frame[:3]] for frame in frames], np.int64)  # [2, 3]
    ids, offsets = _ids(tokenizer, block.texts)
    lengths, pair_ids = np.zeros((2, len(block)), np.int64), ids[:0]
    lengths[0] = np.diff(offsets)
    pairs: Any = 0  # which frame: of all rows, or of each
    if block.pairs:
        pairs = np.array([text is not None for text in block.pairs], np.intp)
        pair_ids, pair_offsets = _ids(tokenizer, [text for text in block.pairs if text is not None])
        lengths[1, pairs > 0] = np.diff(pair_offsets)
    starts = np.stack([offsets[:-1], offsets_of(lengths[1])[:-1] + len(ids)])
    left = lengths
    if limit is not None:
        room = limit - special.sum(axis=1)[pairs]
        over = lengths.sum(axis=0) > room
        left, failed = np.where(over, np.minimum(lengths, room), lengths), set()
        by_rule = (pairs > 0) | (layout.truncation == "only_second")  # not as a single text is
        for row in np.flatnonzero(over & by_rule).tolist():
            try:
                kept, *_ = tokenizer.windows_of(block[row], lengths[:, row].tolist(), layout, limit)
                left[:, row] = [stop - start for start, stop in kept]
            except InputError as error:
                skip(error)
                failed.add(row)
        if (layout.truncation_side or tokenizer.truncation_side) == "left":
            starts += np.where(left > 0, lengths - left, 0)
        if failed:
            rows = [row for row in range(len(block)) if row not in failed]
            pairs = pairs[rows] if block.pairs else 0
            block, samples = block.take(rows), [samples[row] for row in rows]
            lengths, left, starts = lengths[:, rows], left[:, rows], starts[:, rows]

    parts: list[Any] = [0] * len(SPECIAL)  # tokens of each part, of all rows or of each
    parts[1:6:2], parts[2:5:2] = special[pairs].T, left
    whole = sum(parts)
    pads: list[int] = []  # the most that a row gets
    if layout.padding != "do_not_pad":
        missing = np.maximum(tokenizer.padded_length(layout, int(whole.max(initial=0))) - whole, 0)
        side = layout.padding_side or tokenizer.padding_side
        parts[0 if side == "left" else 6] = missing
        whole += missing
        pads = [tokenizer.padding_id] * int(missing.max(initial=0))
    around = [index for frame in frames for part in frame[:3] for index in part]
    pool = np.concatenate([ids, pair_ids, np.array(around + pads, np.uint32)])
    begin: list[Any] = [len(pool) - len(pads)] * len(parts)  # of each part in the pool
    begin[1:6:2] = offsets_of(special.reshape(-1))[:-1].reshape(2, 3)[pairs].T
    begin[1:6:2] = [at + len(ids) + len(pair_ids) for at in begin[1:6:2]]
    begin[2:5:2] = starts
    used = [at for at, size in enumerate(parts) if np.any(size)] or [2]

    def of_parts(values: Sequence[Any], kind: Any) -> NDArray[Any]:
        rows = [np.broadcast_to(values[at], len(block)) for at in used]
        return np.stack(rows, axis=1, dtype=kind, casting="unsafe").reshape(-1)

    sizes = of_parts(parts, np.int64)
    types = np.array([frame.types for frame in frames], np.uint8) * tokenizer.reads_types
    kinds: dict[str, Any] = {
        "token_type_ids": types[pairs].T,
        "attention_mask": ATTENDED,
        "special_tokens_mask": SPECIAL,
    }
    columns: dict[str, Any] = {"input_ids": spans(pool, of_parts(begin, np.int64), sizes)}
    for name in set(layout.columns) - {"input_ids"}:
        columns[name] = np.repeat(of_parts(kinds[name], np.uint8), sizes)
    cut = (lengths - left).sum(axis=0).tolist()
    return TokenBlock(block, samples, columns, offsets_of(whole), cut)


def _ids(tokenizer: Tokenizer, texts: Sequence[Text]) -> tuple[Ids, Counts]:
    """Return the ids of texts; those of a text that is split are those of its words."""
    if list not in map(type, texts):
        return tokenizer.engine(texts)  # type: ignore[arg-type]
    words = [text if isinstance(text, list) else [text] for text in texts]
    core = tokenizer.words_core
    engine = tokenizer.engine if core is tokenizer.core else WordPieceEngine(core)
    ids, offsets = engine([word for row in words for word in row])
    return ids, offsets[offsets_of(np.array([len(row) for row in words], np.int64))]


def ragged_lines(
    batch: TokenBlock, names: Sequence[str], rows: Sequence[dict[str, Any]]
) -> list[bytes]:
    """Return the lines of a batch of arrays, as one text.

    They have the bytes of `files.jsonl.to_json`. ``names`` are the columns, ``rows`` what stands
    around them: the ids before, all else behind.
    """
    heads, ends = _around(rows)
    bounds, columns = batch.offsets.tolist(), [heads, _numbers(batch)]

    @cache
    def digits(name: str, values: bytes) -> bytes:
        """Return what begins a list of small numbers, and these; most rows are like others."""
        return b'],"%s":[' % name.encode() + b",".join([b"%d" % value for value in values])

    for name in names[1:]:
        values = batch.columns[name].tobytes()
        columns.append([digits(name, values[start:stop]) for start, stop in pairwise(bounds)])
    return [b"".join(map(b"".join, zip(*columns, ends, strict=True)))]


def _around(rows: Sequence[dict[str, Any]]) -> tuple[list[bytes], list[bytes]]:
    """Return what comes before the ids of every text, and what ends its line."""
    first, last = b'"input_ids":[', b"]}\n"
    if not any(rows):
        return [b"{" + first] * len(rows), [last] * len(rows)
    ids = [{"id": row.pop("id")} if "id" in row else {} for row in rows]
    heads = [line[:-1] + b"," + first if line else b"{" + first for line in _objects(ids)]
    return heads, [b"]," + line[1:] + b"\n" if line else last for line in _objects(rows)]


def _objects(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return rows as JSON, those without a field as nothing."""
    lines = iter(to_lines([row for row in rows if row]).encode().split(b"\n"))
    return [next(lines) if row else b"" for row in rows]


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
