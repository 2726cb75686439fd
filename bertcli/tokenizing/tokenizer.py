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
from typing import TYPE_CHECKING, Any

from bertcli.errors import InputError, called_from_python
from bertcli.files.streams import stop
from bertcli.records.records import Record, TextBlock
from bertcli.tokenizing.columns import Encoded, Layout, TokenBlock, as_lists, frame_of
from bertcli.tokenizing.loaded_tokenizer import LoadedTokenizer
from bertcli.tokenizing.rows import encode_rows, padded_rows

if TYPE_CHECKING:
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

        details = cache(partial(encoded, ("input_ids", *DETAILS)))
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
        if isinstance(inputs, Mapping):
            batched = not isinstance(as_lists(inputs["input_ids"][0]), int)
            columns = zip(*inputs.values(), strict=True) if batched else [inputs.values()]
            inputs = [dict(zip(inputs, column, strict=True)) for column in columns]
        layout = call.layout(self.limit, self.model_inputs)
        rows = [Encoded(Record(""), {k: as_lists(v) for k, v in row.items()}) for row in inputs]
        if "attention_mask" in layout.columns:
            for row in rows:
                row.columns.setdefault("attention_mask", [1] * row.length)
        return call.result(padded_rows(self, rows, layout), rows[0].columns, batched=batched)

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
        block = TextBlock.of(records)
        pairs = block.pairs
        is_alike = None not in pairs if pairs else layout.truncation != "only_second"
        is_alike &= not block.is_split or self.words_core is self.core
        if first + len(block) >= FEW and layout.is_flat and is_alike:
            frame = frame_of(self.core, pair=pairs is not None, special=layout.special_tokens)
            if frame:
                from bertcli.tokenizing.ragged import encode_ragged

                with suppress(InputError):  # of a pair that rows tell of
                    return encode_ragged(self, block, layout, frame, first)
        return encode_rows(self, block, layout, skip, first)
