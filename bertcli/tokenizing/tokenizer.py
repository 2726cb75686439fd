"""Text to tokens and back: with the tokenizer of a model.

    tokenizer = Tokenizer.load("bert-base-uncased")
    tokenizer('I love NLP!')["input_ids"]   # [101, 1045, 2293, 17953, 2361, 999, 102]
    tokenizer.decode([101, 1045, 2293, 17953, 2361, 999, 102])   # '[CLS] i love nlp! [SEP]'
    tokenizer.encode_records([Record('I love NLP!')], Layout())   # as the commands do it

Splitting into pieces is done by the tokenizers library. Truncation, windows and padding are ours,
and what was cut is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError, called_from_python
from bertcli.files.streams import stop
from bertcli.records.records import Record, TextBlock
from bertcli.tokenizing.columns import (
    COLUMNS,
    Column,
    Encoded,
    Frame,
    Layout,
    TokenBlock,
    as_lists,
    frame_of,
    kept_lengths,
    padded,
    span,
    windows,
)
from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

    from bertcli.tokenizing.call import BatchEncoding, Texts

FEW = 256  # records of a run that do not pay for the import of numpy
Skip = Callable[[InputError], None]


class Tokenizer(LoadedTokenizer):
    """The tokenizer of one model: texts to tokens and back."""

    @called_from_python()
    def __call__(
        self, text: Texts, text_pair: Texts | None = None, **options: Any
    ) -> BatchEncoding:
        """Return what transformers' tokenizer returns, as lists that ``json.dumps`` takes.

        ``options`` are the fields of `Call`, named as in transformers. Truncation and padding
        to the model's limit mean that of all files of the folder, 256 for all-MiniLM-L6-v2.
        """
        from bertcli.tokenizing.call import Call

        call = Call(**options)
        records, batched = call.records(text, text_pair)
        layout = call.layout(self.limit, self.model_inputs)

        def encoded(columns: tuple[str, ...]) -> TokenBlock:
            asked = replace(layout, columns=columns)
            before, split = self.core.encode_special_tokens, call.split_special_tokens
            if split in (None, before):
                return self.encode_records(records, asked)
            cores = self.core, self.words_core
            for core in cores:
                core.encode_special_tokens = split
            try:
                return self.encode_records(records, asked)
            finally:
                for core in cores:
                    core.encode_special_tokens = before

        details = cache(partial(encoded, ("tokens", "word_ids")))
        return call.result(encoded(layout.columns), layout.columns, details, batched=batched)

    def encode(self, text: Texts, text_pair: Texts | None = None, **options: Any) -> list[int]:
        """Return the ids of a call."""
        ids: list[int] = self(text, text_pair, **options)["input_ids"]
        return ids

    def tokenize(self, text: Texts, pair: Texts | None = None, **options: Any) -> list[str]:
        """Return the tokens of a text, by default without special ones."""
        return self(text, pair, **{"add_special_tokens": False, **options}).tokens()

    @called_from_python()
    def pad(self, encoded_inputs: Any, padding: bool | str = True, **options: Any) -> BatchEncoding:
        """Return encoded inputs, one mapping or a list of them, padded as in transformers."""
        from bertcli.tokenizing.call import Call

        call, inputs, batched = Call(padding=padding, **options), encoded_inputs, True
        names = [*inputs] if isinstance(inputs, Mapping) else []
        if names:
            ids = as_lists(inputs["input_ids"])
            batched = not (ids and isinstance(ids[0], int))
            columns = zip(*inputs.values(), strict=True) if batched else [inputs.values()]
            inputs = [dict(zip(inputs, column, strict=True)) for column in columns]
        layout = call.layout(self.limit, self.model_inputs)
        rows = [Encoded(Record(""), {k: as_lists(v) for k, v in row.items()}) for row in inputs]
        if "attention_mask" in layout.columns:
            for row in rows:
                row.columns.setdefault("attention_mask", [1] * row.length)
        return call.result(
            self._padded(rows, layout), rows[0].columns if rows else names, batched=batched
        )

    def encode_records(
        self, records: Sequence[Record], layout: Layout, *, skip: Skip = stop, first: int = 0
    ) -> TokenBlock:
        """Return the records as columns; with ``layout.overflowing`` one row a window.

        ``first`` is the number of the first record in the run. A record that cannot be truncated
        as asked goes to ``skip`` (default: raise). Many are arrays, where these can say it all.
        """
        block = TextBlock.of(records)
        pairs = block.pairs
        is_alike = None not in pairs if pairs else layout.truncation != "only_second"
        is_alike &= not block.is_split or self.words_core is self.core
        if first + len(block) >= FEW and layout.is_flat and is_alike:
            frame = frame_of(self.core, pair=pairs is not None, special=layout.special_tokens)
            if frame:
                with suppress(InputError):  # of a pair that rows tell of
                    return self._arrays(block, layout, frame, first)
        return self._rows(block, layout, skip, first)

    def _rows(self, records: TextBlock, layout: Layout, skip: Skip, first: int) -> TokenBlock:
        """Return the tokens of records as lists. No numpy: one text needs none."""
        limit = self.cut_at(layout)
        split = records.is_split
        core = self.words_core if split else self.core
        inputs = [text if pair is None else (text, pair) for text, pair, *_ in records]
        encodings = core.encode_batch(inputs, split, layout.special_tokens)
        rows: list[Encoded] = []
        for sample, (record, encoding) in enumerate(zip(records, encodings, strict=True), first):
            columns: dict[str, Column] = {"input_ids": encoding.ids}
            for name in layout.columns:
                columns[name] = COLUMNS[name](encoding)
            if "offset_mapping" in columns and layout.offset_unit != "char":
                columns["offset_mapping"] = offsets_in(record, encoding, layout.offset_unit)
            if "token_type_ids" in columns and not self.reads_types:
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
                    self.room(limit, layout, pair=is_pair),
                    layout.truncation,
                    side=layout.truncation_side or self.truncation_side,
                    stride=layout.stride if layout.overflowing else 0,
                )
            except InputError as error:
                message = f"{record.where}: cannot be truncated to {limit} tokens: {error}"
                hint = f"{error.hint}, a larger --max-length, or --on-error skip"
                skip(InputError(message, hint))
                continue
            for window in cuts if layout.overflowing else cuts[:1]:
                slices, at = [], 0  # special tokens, and the part of each text in the window
                for (start, until), (begin, end) in sorted(zip(places, window, strict=True)):
                    slices += [slice(at, start), slice(start + begin, start + end)]
                    at = until
                slices.append(slice(at, None))
                left: dict[str, Column] = {
                    name: [*chain.from_iterable(column[part] for part in slices)]
                    for name, column in columns.items()
                }
                dropped = sum(lengths) - sum(stop - start for start, stop in window)
                rows.append(Encoded(record, left, 0 if layout.overflowing else dropped, sample))
        rows = self._padded(rows, layout)
        return TokenBlock.of(rows, {"input_ids", *layout.columns})

    def _padded(self, rows: list[Encoded], layout: Layout) -> list[Encoded]:
        """Return the rows, made equally long where the layout asks for it."""
        if layout.padding == "do_not_pad":
            return rows
        length = self.padded_length(layout, max((row.length for row in rows), default=0))
        side = layout.padding_side or self.padding_side
        filler = self.roles["pad_token"], self.padding_id
        return [padded(row, length, side, *filler) for row in rows]

    def _arrays(self, block: TextBlock, layout: Layout, frame: Frame, first: int) -> TokenBlock:
        """Return the tokens of texts, or of pairs, as arrays.

        ``frame`` are the special tokens of a text or of a pair, and the row of each has the same
        parts: padding, special tokens, text, special tokens, perhaps text and special tokens,
        padding. Raises InputError when a pair cannot be truncated as asked.
        """
        import numpy as np

        from bertcli.tokenizing.ragged import offsets_of, spans

        limit = self.cut_at(layout)
        texts: Any = [*block.texts, *(block.pairs or ())]
        ids, offsets = self.engine([*chain.from_iterable(texts)] if block.is_split else texts)
        if block.is_split:
            offsets = offsets[offsets_of([*map(len, texts)])]  # of texts, not of words
        special = [*map(len, frame.special)]
        shape = len(special) - 1, len(block)  # the first texts of all rows, then the second ones
        starts, lengths = offsets[:-1].reshape(shape), np.diff(offsets).reshape(shape)
        left = lengths
        if limit is not None:
            room = self.room(limit, layout, pair=block.pairs is not None)
            left = np.minimum(lengths, room)
            if block.pairs:
                for row in np.flatnonzero(lengths.sum(axis=0) > room).tolist():
                    text, pair = lengths[:, row].tolist()
                    left[:, row] = kept_lengths(text, pair, room, layout.truncation)
        if (layout.truncation_side or self.truncation_side) == "left":
            starts = starts + lengths - left

        sizes = np.zeros((len(block), 2 * len(special) + 1), np.int64)  # [B, parts]
        sizes[:, 1::2], sizes[:, 2:-1:2] = special, left.T
        pads: list[int] = []  # the most that a row gets
        if layout.padding != "do_not_pad":
            whole = sizes.sum(axis=1)
            length = self.padded_length(layout, int(whole.max(initial=0)))
            missing = np.maximum(length - whole, 0)
            side = layout.padding_side or self.padding_side
            sizes[:, 0 if side == "left" else -1] = missing
            pads = [self.padding_id] * int(missing.max(initial=0))
        pool = np.concatenate([ids, np.array([*chain(*frame.special), *pads], np.uint32)])
        begins = np.full_like(sizes, len(pool) - len(pads))  # of the parts in the pool
        begins[:, 1::2] = len(ids) + offsets_of(special)[:-1]
        begins[:, 2:-1:2] = starts.T

        flat_sizes = sizes.ravel()
        kinds: dict[str, Any] = {
            "token_type_ids": [kind * self.reads_types for kind in (0, *frame.types, 0)],
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


def offsets_in(record: Record, encoding: Encoding, unit: str) -> Column:
    """Return offsets in bytes of UTF-8 or units of UTF-16; those of words count within each."""
    codec, size = {"byte": ("utf-8", 1), "utf16": ("utf-16-le", 2)}[unit]

    @cache
    def places(text: str) -> list[int]:
        """Return where each character of a text begins, and the end of the last."""
        return [0, *accumulate(len(character.encode(codec)) // size for character in text)]

    offsets = []
    tokens = zip(encoding.offsets, encoding.sequence_ids, encoding.word_ids, strict=True)
    for (start, until), which, word in tokens:
        if which is not None:
            text: Any = record[which]
            at = places(text if isinstance(text, str) else text[word or 0])
            start, until = at[start], at[until]
        offsets.append((start, until))
    return offsets
