"""Encode a block of records: few as Python lists, many as arrays.

Both ways give the same columns, so callers do not choose. The rule stands in `encode_block`:

- Few records go through Python lists, because the numpy import (about 75 ms) would take longer than
  tokenizing them: `bertcli tokenize 'a text'` does not import numpy.
- Many records become arrays: the ids of all texts come from `Tokenizer.engine` as one array, and
  truncation, windows, padding and the other columns are computed from the lengths of the texts,
  without a Python object per token. So the time goes into tokenizing, not into building lists.
- Some layouts need lists in any number: columns that are not numbers (tokens, offsets, word ids),
  windows of pairs, and tokenizers that do not put their special tokens around texts in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from bertcli.errors import InputError, option
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record
from bertcli.tokenizing.batch import (
    COLUMNS,
    Column,
    Encoded,
    Layout,
    TokenBatch,
    offsets_in,
    pad_row,
    sequence_span,
)
from bertcli.tokenizing.truncation import (
    Window,
    dropped_tokens,
    kept_of_many,
    token_windows,
    windows_of_many,
)

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Core

    from bertcli.tokenizing.ragged import WordPieceEngine
    from bertcli.tokenizing.special_tokens import SpecialTokens

FEW_RECORDS = 256  # in a run: fewer are not worth the numpy import,
MANY_CHARACTERS = 1 << 19  # unless a block has this many characters

Skip = Callable[[InputError], None]  # receives the error of a record that is left out


class TextEncoder(Protocol):
    """What encoding needs of a `Tokenizer`."""

    core: Core
    roles: dict[str, str]  # "pad_token" -> "[PAD]"
    truncation_side: str
    padding_side: str
    reads_types: bool

    @property
    def words_core(self) -> Core:
        """The core for words of a text that is already split."""

    @property
    def engine(self) -> WordPieceEngine:
        """The encoder of many texts at once."""

    @property
    def padding_id(self) -> int:
        """The id of the padding token."""

    def truncated_length(self, layout: Layout) -> int | None:
        """Return the length to truncate to; None without truncation."""

    def room(self, length: int, layout: Layout, *, pair: bool) -> int:
        """Return how many tokens fit beside the special tokens."""

    def padded_length(self, layout: Layout, longest: int) -> int:
        """Return the padded length of texts whose longest has ``longest`` tokens."""


def encode_block(
    tokenizer: TextEncoder, block: RecordBatch, layout: Layout, skip: Skip, first: int
) -> TokenBatch:
    """Return the encoded records; with ``layout.overflowing``, one row per window.

    ``first`` is the index of the first record in the run. The error of a record that cannot be
    truncated as requested goes to ``skip``.
    """
    is_many = first + len(block) >= FEW_RECORDS or sum(block.lengths) >= MANY_CHARACTERS
    if is_many and _fits_arrays(tokenizer, block, layout):
        from bertcli.tokenizing.special_tokens import special_tokens_around  # rarely needed

        special_tokens = special_tokens_around(
            tokenizer.core, pair=block.pairs is not None, special=layout.special_tokens
        )
        if special_tokens:
            with suppress(InputError):  # `encode_as_lists` reports the pair
                return encode_as_arrays(tokenizer, block, layout, special_tokens, first)
    return encode_as_lists(tokenizer, block, layout, skip, first)


def _fits_arrays(tokenizer: TextEncoder, block: RecordBatch, layout: Layout) -> bool:
    """Return True if arrays can hold the columns, and all records are texts or all are pairs."""
    if not layout.is_flat:
        return False
    if block.is_split and tokenizer.words_core is not tokenizer.core:
        return False
    if block.pairs is None:
        return layout.truncation != "only_second"
    return None not in block.pairs and not layout.overflowing


# --- few records ---


def encode_as_lists(
    tokenizer: TextEncoder, block: RecordBatch, layout: Layout, skip: Skip, first: int
) -> TokenBatch:
    """Return the tokens of records as lists, without importing numpy."""
    limit = tokenizer.truncated_length(layout)
    core = tokenizer.words_core if block.is_split else tokenizer.core
    inputs = [text if pair is None else (text, pair) for text, pair, *_ in block]
    encodings = core.encode_batch(inputs, block.is_split, layout.special_tokens)
    rows: list[Encoded] = []
    for sample, (record, encoding) in enumerate(zip(block, encodings, strict=True), first):
        columns = _columns(tokenizer, record, encoding, layout)
        row = Encoded(record, columns, 0, sample)
        if limit is None or row.length <= limit:
            rows.append(row)
            continue
        try:
            rows += _truncated_rows(tokenizer, row, encoding, layout, limit)
        except InputError as error:
            message = f"{record.where}: cannot be truncated to {limit} tokens: {error.marked}"
            hint = (
                f"{error.marked_hint}, a larger {option('max_length')}, or "
                f"{option('on_error', 'skip')}"
            )
            skip(InputError(message, hint))
    return TokenBatch.of(pad_rows(tokenizer, rows, layout), {"input_ids", *layout.columns})


def pad_rows(tokenizer: TextEncoder, rows: list[Encoded], layout: Layout) -> list[Encoded]:
    """Return the rows padded to equal length, if the layout requests padding."""
    if layout.padding == "do_not_pad":
        return rows
    length = tokenizer.padded_length(layout, max((row.length for row in rows), default=0))
    side = layout.padding_side or tokenizer.padding_side
    token = tokenizer.roles["pad_token"]
    token_id = tokenizer.padding_id
    return [pad_row(row, length, side, token, token_id) for row in rows]


def _columns(
    tokenizer: TextEncoder, record: Record, encoding: Encoding, layout: Layout
) -> dict[str, Column]:
    """Return the columns of a record before truncation."""
    columns: dict[str, Column] = {"input_ids": encoding.ids}
    for name in layout.columns:
        columns[name] = COLUMNS[name](encoding)
    if "offset_mapping" in columns and layout.offset_unit != "char":
        columns["offset_mapping"] = offsets_in(record, encoding, layout.offset_unit)
    if "token_type_ids" in columns and not tokenizer.reads_types:
        columns["token_type_ids"] = [0] * len(encoding)
    return columns


def _truncated_rows(
    tokenizer: TextEncoder, row: Encoded, encoding: Encoding, layout: Layout, limit: int
) -> list[Encoded]:
    """Return the windows of a record that is too long, or only the first one.

    Raises InputError if the layout cannot truncate the record enough.
    """
    spans = [sequence_span(encoding.sequence_ids, sequence) for sequence in (0, 1)]
    lengths = [end - start for start, end in spans]
    is_pair = row.record.pair is not None
    windows = token_windows(
        lengths[0],
        lengths[1] if is_pair else None,
        tokenizer.room(limit, layout, pair=is_pair),
        layout.truncation,
        side=layout.truncation_side or tokenizer.truncation_side,
        stride=layout.stride if layout.overflowing else 0,
    )
    if layout.overflowing:
        return [row._replace(columns=_window_columns(row, spans, window)) for window in windows]
    window = windows[0]
    columns = _window_columns(row, spans, window)
    return [row._replace(columns=columns, dropped_tokens=dropped_tokens(lengths, window))]


def _window_columns(
    row: Encoded, spans: Sequence[tuple[int, int]], window: Window
) -> dict[str, Column]:
    """Return the columns of a window: all special tokens, and its part of each text.

    ``spans`` are the tokens of each text in the row.
    """
    slices = []
    previous_end = 0
    for (start, end), (window_start, window_end) in sorted(zip(spans, window, strict=True)):
        slices.append(slice(previous_end, start))  # special tokens before the text
        slices.append(slice(start + window_start, start + window_end))
        previous_end = end
    slices.append(slice(previous_end, None))
    return {
        name: [*chain.from_iterable(column[part] for part in slices)]
        for name, column in row.columns.items()
    }


# --- many records ---


def encode_as_arrays(
    tokenizer: TextEncoder,
    block: RecordBatch,
    layout: Layout,
    special_tokens: SpecialTokens,
    first: int,
) -> TokenBatch:
    """Return the tokens of texts, or of pairs, as arrays.

    Each row is a sequence of segments: padding, special tokens, text, special tokens (for a pair:
    text, special tokens), padding. Each segment is a span of ``pool``: the ids of all texts, the
    special tokens, and padding. With ``layout.overflowing`` each window of a text has a row. Raises
    InputError if a pair cannot be truncated as requested, or windows cannot share ``stride``
    tokens.
    """
    import numpy as np

    from bertcli.formats.row_offsets import offsets_of, spans

    limit = tokenizer.truncated_length(layout)
    texts: Any = [*block.texts, *(block.pairs or ())]
    ids, offsets = tokenizer.engine([*chain.from_iterable(texts)] if block.is_split else texts)
    if block.is_split:
        offsets = offsets[offsets_of([*map(len, texts)])]  # per text, not per word
    text_count = len(special_tokens.special) - 1  # of a row: 1, or 2 for pairs
    starts = offsets[:-1].reshape(text_count, len(block))  # in `ids`
    lengths = np.diff(offsets).reshape(text_count, len(block))
    kept_lengths = lengths
    if limit is not None:
        room = tokenizer.room(limit, layout, pair=block.pairs is not None)
        kept_lengths = kept_of_many(lengths, room, layout.truncation)
    samples: Sequence[int] = range(first, first + len(block))
    keeps_end = (layout.truncation_side or tokenizer.truncation_side) == "left"
    if layout.overflowing and limit is not None:
        rows, window_starts, window_lengths = windows_of_many(lengths[0], room, layout.stride)
        if keeps_end:
            window_starts = lengths[:, rows] - window_starts - window_lengths
        starts = starts[:, rows] + window_starts
        kept_lengths = window_lengths[np.newaxis]
        lengths = kept_lengths  # windows drop no tokens
        samples = (first + rows).tolist()
        if len(samples) > len(block):
            block = block.take(rows.tolist())
    elif keeps_end:
        starts = starts + lengths - kept_lengths

    special_lengths = [*map(len, special_tokens.special)]
    sizes = np.zeros((len(block), 2 * len(special_lengths) + 1), np.int64)  # [B, segments]
    sizes[:, 1::2] = special_lengths
    sizes[:, 2:-1:2] = kept_lengths.T
    padding: list[int] = []  # as long as the longest padding of a row
    if layout.padding != "do_not_pad":
        row_lengths = sizes.sum(axis=1)
        length = tokenizer.padded_length(layout, int(row_lengths.max(initial=0)))
        missing = np.maximum(length - row_lengths, 0)
        side = layout.padding_side or tokenizer.padding_side
        sizes[:, 0 if side == "left" else -1] = missing
        padding = [tokenizer.padding_id] * int(missing.max(initial=0))
    special_ids = [*chain(*special_tokens.special)]
    pool = np.concatenate([ids, np.array([*special_ids, *padding], np.uint32)])
    segment_starts = np.full_like(sizes, len(pool) - len(padding))  # in the pool
    segment_starts[:, 1::2] = len(ids) + offsets_of(special_lengths)[:-1]
    segment_starts[:, 2:-1:2] = starts.T

    segment_sizes = sizes.ravel()
    columns: dict[str, Any] = {"input_ids": spans(pool, segment_starts.ravel(), segment_sizes)}
    values = _segment_values(special_tokens, reads_types=tokenizer.reads_types)
    for name in set(layout.columns) - {"input_ids"}:
        value_of_segments = np.tile(np.array(values[name], np.uint8), len(block))
        columns[name] = np.repeat(value_of_segments, segment_sizes)
    return TokenBatch(
        block,
        samples,
        columns,
        offsets_of(sizes.sum(axis=1)),
        (lengths - kept_lengths).sum(axis=0).tolist(),
    )


def _segment_values(
    special_tokens: SpecialTokens, *, reads_types: bool
) -> Mapping[str, Sequence[int]]:
    """Return the value of each segment of a row, by column."""
    types = special_tokens.types if reads_types else [0] * len(special_tokens.types)
    texts = len(special_tokens.special) - 1
    return {
        "token_type_ids": [0, *types, 0],
        "attention_mask": [0, *[1] * len(types), 0],
        "special_tokens_mask": [1, *[1, 0] * texts, 1, 1],
    }
