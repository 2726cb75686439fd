"""Text to tokens and back: with the tokenizer of a model.

    tokenizer = Tokenizer.load("bert-base-uncased")
    tokenizer('I love NLP!')["input_ids"]   # [101, 1045, 2293, 17953, 2361, 999, 102]
    tokenizer.decode([101, 1045, 2293, 17953, 2361, 999, 102])   # '[CLS] i love nlp! [SEP]'
    tokenizer.encode_records([Record('I love NLP!')], Layout())   # as the commands do it

Splitting into pieces is done by the tokenizers library. Truncation, windows and padding are ours:
what a tokenizer.json says about them is overridden, and what was cut is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError, called_from_python
from bertcli.files.streams import stop
from bertcli.records.records import Record, TextBlock
from bertcli.tokenizing.columns import (
    COLUMNS,
    Column,
    Encoded,
    Layout,
    TokenBlock,
    frame_of,
    offsets_in,
    padded,
    select,
    span,
)
from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

    from bertcli.tokenizing.call import BatchEncoding, Texts

FEW = 256  # records of a run that do not pay for the import of numpy


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
        from bertcli.tokenizing.call import DETAILS, Call

        call = Call(**options)
        records, batched = call.records(text, text_pair)
        layout = call.layout(self.limit, self.model_inputs)

        def encoded(columns: tuple[str, ...]) -> TokenBlock:
            with self.parsing(call.split_special_tokens):
                return self.encode_records(records, replace(layout, columns=columns))

        details = partial(encoded, ("input_ids", *DETAILS))
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

        call, rows, batched = Call(padding=padding, **options), encoded_inputs, True
        if isinstance(rows, Mapping):
            batched = not isinstance(rows["input_ids"][0], int)
            columns = zip(*rows.values(), strict=True) if batched else [rows.values()]
            rows = [dict(zip(rows, column, strict=True)) for column in columns]
        items = call.items(rows, self.model_inputs)
        padded = self.padded(items, call.layout(self.limit, self.model_inputs))
        return call.result(padded, items[0].columns if items else (), batched=batched)

    @property
    def model_max_length(self) -> int:
        """The number of tokens that a text is truncated to, or 10^30."""
        return int(1e30) if self.limit is None else self.limit

    def count_literals(self, records: Sequence[Record]) -> int:
        """Return how many special tokens are written out in the texts, and parsed as such."""
        if self.core.encode_special_tokens:
            return 0
        return self.literals(TextBlock.of(records).strings)

    def encode_records(
        self,
        records: Sequence[Record],
        layout: Layout,
        *,
        skip: Callable[[InputError], None] = stop,
        first: int = 0,
    ) -> TokenBlock:
        """Return the records as columns; with ``layout.overflowing`` one row a window.

        ``first`` is the number of the first record in the run. A record that cannot be truncated
        as asked goes to ``skip`` (default: raise).
        """
        if first + len(records) >= FEW and layout.is_flat:
            special = layout.special_tokens
            frames = [frame_of(self.core, pair=pair, special=special) for pair in (False, True)]
            fitting = [frame for frame in frames if frame]
            if len(fitting) == len(frames):
                from bertcli.tokenizing.ragged import encode_ragged

                return encode_ragged(self, records, layout, fitting, skip, first)
        limit = self.cut_at(layout)
        items: list[Encoded] = []
        encodings = self._encodings(records, layout)
        for sample, (record, encoding) in enumerate(zip(records, encodings, strict=True), first):
            encoded = Encoded(record, self._columns(record, encoding, layout), 0, sample)
            if limit is None or (encoded.length <= limit and not layout.overflowing):
                items.append(encoded)
                continue
            try:
                items.extend(self._windows(encoded, encoding, layout, limit))
            except InputError as error:
                skip(error)
        return TokenBlock.of(self.padded(items, layout), {"input_ids", *layout.columns})

    def padded(self, batch: list[Encoded], layout: Layout) -> list[Encoded]:
        """Return the items with their columns made equally long, where the layout asks for it."""
        if layout.padding == "do_not_pad":
            return batch
        length = self.padded_length(layout, max((item.length for item in batch), default=0))
        side = layout.padding_side or self.padding_side
        token = self.roles["pad_token"]
        return [padded(item, length, side, token, self.padding_id) for item in batch]

    def _encodings(self, records: Sequence[Record], layout: Layout) -> list[Encoding]:
        special = layout.special_tokens
        split = any(isinstance(record.text, list) for record in records)
        core = self.words_core if split else self.core
        inputs = [text if pair is None else (text, pair) for text, pair, *_ in records]
        return core.encode_batch(inputs, split, special)

    def _columns(self, record: Record, encoding: Encoding, layout: Layout) -> dict[str, Column]:
        columns: dict[str, Column] = {"input_ids": encoding.ids}
        for name in layout.columns:
            if name == "offset_mapping" and layout.offset_unit != "char":
                columns[name] = offsets_in(record, encoding, layout.offset_unit)
            elif name == "token_type_ids" and not self.reads_types:
                columns[name] = [0] * len(encoding)
            elif name != "input_ids":
                columns[name] = COLUMNS[name](encoding)
        return columns

    def _windows(
        self, encoded: Encoded, encoding: Encoding, layout: Layout, limit: int
    ) -> list[Encoded]:
        """Truncate an item that is too long, or split it into all of its windows."""
        sequences = encoding.sequence_ids
        first, second = (span(sequences, which) for which in (0, 1))
        lengths = first[1] - first[0], second[1] - second[0]
        cuts = self.windows_of(encoded.record, lengths, layout, limit)
        return [
            encoded._replace(
                columns={
                    name: select(column, window, first, second)
                    for name, column in encoded.columns.items()
                },
                cut=0 if layout.overflowing else sum(lengths) - sum(b - a for a, b in window),
            )
            for window in (cuts if layout.overflowing else cuts[:1])
        ]
