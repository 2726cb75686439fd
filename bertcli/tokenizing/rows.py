"""Few texts, or what only the tokenizers library knows of them, as rows of columns.

    encode_rows(tokenizer, block, Layout(("input_ids", "tokens")), stop, 0)

No numpy: one text is tokenized before that is imported. `ragged` has the same rules for arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError
from bertcli.records.records import Record, TextBlock
from bertcli.tokenizing.columns import (
    COLUMNS,
    Column,
    Encoded,
    Layout,
    TokenBlock,
    Window,
    padded,
    span,
    windows,
)

if TYPE_CHECKING:
    from tokenizers import Encoding

    from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer


def encode_rows(
    tokenizer: LoadedTokenizer,
    records: TextBlock,
    layout: Layout,
    skip: Callable[[InputError], None],
    first: int,
) -> TokenBlock:
    """Return the tokens of records, of which the first is so much in the run.

    A record that cannot be truncated as asked goes to ``skip`` and is left out.
    """
    limit = tokenizer.cut_at(layout)
    split = records.is_split
    core = tokenizer.words_core if split else tokenizer.core
    inputs = [text if pair is None else (text, pair) for text, pair, *_ in records]
    encodings = core.encode_batch(inputs, split, layout.special_tokens)
    rows: list[Encoded] = []
    for sample, (record, encoding) in enumerate(zip(records, encodings, strict=True), first):
        columns: dict[str, Column] = {"input_ids": encoding.ids}
        for name in layout.columns:
            columns[name] = COLUMNS[name](encoding)
        if "offset_mapping" in columns and layout.offset_unit != "char":
            columns["offset_mapping"] = offsets_in(record, encoding, layout.offset_unit)
        if "token_type_ids" in columns and not tokenizer.reads_types:
            columns["token_type_ids"] = [0] * len(encoding)
        row = Encoded(record, columns, 0, sample)
        if limit is None or row.length <= limit:
            rows.append(row)
            continue
        places = [span(encoding.sequence_ids, which) for which in (0, 1)]
        lengths = [stop - start for start, stop in places]
        is_pair = record.pair is not None
        try:
            cuts = windows(
                lengths[0],
                lengths[1] if is_pair else None,
                tokenizer.room(limit, layout, pair=is_pair),
                layout.truncation,
                side=layout.truncation_side or tokenizer.truncation_side,
                stride=layout.stride if layout.overflowing else 0,
            )
        except InputError as error:
            message = f"{record.where}: cannot be truncated to {limit} tokens: {error}"
            hint = f"{error.hint}, a larger --max-length, or --on-error skip"
            skip(InputError(message, hint))
            continue
        for window in cuts if layout.overflowing else cuts[:1]:
            left = {name: select(column, window, places) for name, column in columns.items()}
            dropped = sum(lengths) - sum(stop - start for start, stop in window)
            rows.append(Encoded(record, left, 0 if layout.overflowing else dropped, sample))
    rows = padded_rows(tokenizer, rows, layout)
    return TokenBlock.of(rows, {"input_ids", *layout.columns})


def padded_rows(tokenizer: LoadedTokenizer, rows: list[Encoded], layout: Layout) -> list[Encoded]:
    """Return the rows, made equally long where the layout asks for it."""
    if layout.padding == "do_not_pad":
        return rows
    length = tokenizer.padded_length(layout, max((row.length for row in rows), default=0))
    side = layout.padding_side or tokenizer.padding_side
    filler = tokenizer.roles["pad_token"], tokenizer.padding_id
    return [padded(row, length, side, *filler) for row in rows]


def select(column: Column, window: Window, places: Sequence[tuple[int, int]]) -> Column:
    """Return the special tokens of a column and the part of each sequence in the window."""
    entries: list[Any] = []
    at = 0
    for (start, stop), (begin, end) in sorted(zip(places, window, strict=True)):
        entries += [*column[at:start], *column[start + begin : start + end]]
        at = stop
    return [*entries, *column[at:]]


def offsets_in(record: Record, encoding: Encoding, unit: str) -> Column:
    """Return offsets in bytes of UTF-8 or units of UTF-16; those of words count within each."""
    codec, size = {"byte": ("utf-8", 1), "utf16": ("utf-16-le", 2)}[unit]

    @cache
    def places(text: str) -> list[int]:
        """Return where each character of a text begins, and the end of the last."""
        return [0, *accumulate(len(character.encode(codec)) // size for character in text)]

    offsets = []
    tokens = zip(encoding.offsets, encoding.sequence_ids, encoding.word_ids, strict=True)
    for (start, stop), which, word in tokens:
        if which is not None:
            text: Any = record[which]
            at = places(text if isinstance(text, str) else text[word or 0])
            start, stop = at[start], at[stop]
        offsets.append((start, stop))
    return offsets
