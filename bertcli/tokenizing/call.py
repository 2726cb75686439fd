"""Calls of a tokenizer from Python, with the arguments and output shapes of transformers.

call = Call(padding=True, return_tensors="np")
records, batched = call.records(['I love NLP!', "Hi"])
layout = call.layout(tokenizer.limit, tokenizer.model_inputs)
call.result(tokenizer.encode_records(records, layout), layout.columns, batched=batched)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, TypeAlias

from bertcli.errors import InputError, UsageError, counted
from bertcli.io.typed_json import shown
from bertcli.keywords import refuse_unknown
from bertcli.model_folder.tokenizer_files import SIDES
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts, refuse_frame
from bertcli.records.record import Record
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.tokenizing.encoding import FIELDS, CharSpan, TextEncoding, TokenSpan
from bertcli.tokenizing.truncation import layout_strategies
from bertcli.versions import require_torch

Texts: TypeAlias = str | Iterable[Any]  # a text, its words, or an iterable of texts or pairs
TRUNCATIONS = ("longest_first", "only_first", "only_second")
ALLOWED_VALUES = {
    "padding": (None, "true", "false", "longest", "max_length", "do_not_pad"),
    "truncation": (None, "true", "false", *TRUNCATIONS, "do_not_truncate"),
    "padding_side": (None, *SIDES),
    "return_tensors": (None, "np", "pt"),
}


@dataclass(frozen=True)
class Call:
    """Arguments of ``PreTrainedTokenizerBase.__call__`` in transformers, under the same names."""

    add_special_tokens: bool = True
    padding: bool | str | None = False  # True is longest; or max_length, do_not_pad
    truncation: bool | str | None = None  # True is longest_first; or only_first, only_second, ...
    max_length: int | None = None  # alone, it turns on truncation
    stride: int = 0
    is_split_into_words: bool = False
    pad_to_multiple_of: int | None = None
    padding_side: Literal["left", "right"] | None = None
    return_tensors: str | None = None  # np or pt; None: lists
    return_token_type_ids: bool | None = None
    return_attention_mask: bool | None = None
    return_overflowing_tokens: bool = False  # one row per window of a text
    return_special_tokens_mask: bool = False
    return_offsets_mapping: bool = False
    return_length: bool = False
    split_special_tokens: bool | None = None  # True: a literal "[SEP]" is ordinary text
    verbose: bool = True  # no effect: nothing is printed

    def __post_init__(self) -> None:
        for name, allowed in ALLOWED_VALUES.items():
            value = _value(getattr(self, name))
            if value not in allowed:
                choices = ", ".join(filter(None, allowed))
                raise UsageError(f"unknown {name} {value!r}", f"one of {choices}")
        for name in ("max_length", "stride", "pad_to_multiple_of"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral | None):
                raise UsageError(f"{name} is {shown(value)}, not a whole number")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Call:
        """Return a call with these arguments. Raises TypeError for an unknown one, as Python."""
        try:
            refuse_unknown(options, [field.name for field in fields(cls)])
        except UsageError as unknown:
            raise TypeError(f"{unknown}: {unknown.hint}") from None
        return cls(**options)

    def layout(self, limit: int | None, default_columns: Collection[str]) -> Layout:
        """Return the layout for these arguments and the tokenizer's limit and default columns.

        As in transformers, a tokenizer without a limit neither truncates nor pads to it. Raises
        UsageError for an unknown or contradictory value.
        """
        padding, truncation = layout_strategies(
            _value(self.padding), _value(self.truncation), self.max_length
        )
        if self.max_length is None and limit is None:
            truncation = "do_not_truncate"
            if padding == "max_length":
                padding = "do_not_pad"
        requested = {
            "token_type_ids": self.return_token_type_ids,
            "attention_mask": self.return_attention_mask,
            "special_tokens_mask": self.return_special_tokens_mask,
            "offset_mapping": self.return_offsets_mapping,
        }
        columns = ["input_ids"]
        for name, is_requested in requested.items():
            if is_requested or (is_requested is None and name in default_columns):
                columns.append(name)
        return Layout(
            columns=tuple(columns),
            special_tokens=self.add_special_tokens,
            max_length=self.max_length,
            truncation=truncation,
            padding=padding,
            padding_side=self.padding_side,
            pad_to_multiple_of=self.pad_to_multiple_of,
            stride=self.stride,
            overflowing=self.return_overflowing_tokens,
        )

    def records(self, text: Texts, pair: Texts | None) -> tuple[list[Record], bool]:
        """Return the texts as records, and True if they are a batch.

        A batch may contain pairs. Raises InputError for a value that is not a text, or for pairs
        that do not match the texts.
        """
        refuse_frame(text)
        batched = not isinstance(text, str | bytes) and isinstance(text, Iterable)
        text = list(text) if batched else text
        if self.is_split_into_words and batched:
            batched = bool(text) and not isinstance(text[0], str)  # type: ignore[index]
        rows: Any = text if batched else [text]
        if pair is not None and (batched or pair):  # transformers ignores an empty pair
            pairs: Any = [pair] if not batched or isinstance(pair, str) else list(pair)
            if (batched and isinstance(pair, str)) or len(pairs) != len(rows):
                raise InputError(
                    f"text_pair has to be a list of {len(rows)} texts, as the texts are",
                    "give a pair for each text",
                )
            rows = [*map(Record, rows, pairs)]
        if not self.is_split_into_words:
            _refuse_words(rows)
        return [*GivenTexts(rows, Input(pre_split=self.is_split_into_words))], batched

    def result(
        self,
        items: Sequence[Encoded],
        columns: Iterable[str],
        details: Callable[[], Sequence[Encoded]] | None = None,
        *,
        batched: bool,
    ) -> BatchEncoding:
        """Return the columns of a batch; for a single text, without the batch dimension."""
        table: dict[str, Any] = {name: [item.columns[name] for item in items] for name in columns}
        if not (batched or self.return_overflowing_tokens or self.return_tensors):
            table = {name: rows[0] for name, rows in table.items()}
        if self.return_length:
            table["length"] = [item.length for item in items]
        if self.return_overflowing_tokens:
            table["overflow_to_sample_mapping"] = [item.sample for item in items]
        if self.return_tensors is None:
            return BatchEncoding(table, details)
        for row, item in enumerate(items, 1):
            if item.length != items[0].length:
                raise InputError(
                    f"record {row} has {counted(item.length, 'token')} and those before have "
                    f"{items[0].length:,}: an array needs rows of one length",
                    "give padding=True, with truncation=True when some are too long",
                )
        import numpy as np

        for name, rows in table.items():
            array = np.array(rows)
            table[name] = array if array.size else array.astype(np.int64)
        if _value(self.return_tensors) == "pt":
            require_torch("return_tensors='pt'")
            import torch

            table = {name: torch.from_numpy(array) for name, array in table.items()}
        return BatchEncoding(table, details)


class BatchEncoding(dict[str, Any]):
    """Columns by name or as attributes, with the methods of transformers' BatchEncoding."""

    def __init__(
        self, columns: Mapping[str, Any], details: Callable[[], Sequence[Encoded]] | None = None
    ) -> None:
        super().__init__(columns)
        self._details = details

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"no {name} here; available: {', '.join(self)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchEncoding, (dict(self),)

    @property
    def encodings(self) -> list[TextEncoding]:
        """The tokens of each row, with their characters and words."""
        if self._details is None:
            raise UsageError("only what calling a tokenizer returns has tokens", "call it again")
        return [
            TextEncoding(**{field: row.columns[name] for name, field in FIELDS.items()})
            for row in self._details()
        ]

    @property
    def data(self) -> dict[str, Any]:
        """The columns as a plain dictionary."""
        return dict(self)

    is_fast = True  # tokens are split by the tokenizers library

    @property
    def n_sequences(self) -> int:
        """The number of sequences per row: 1 for texts, 2 for pairs."""
        return self.encodings[0].n_sequences

    def tokens(self, batch_index: int = 0) -> list[str]:
        """Return the tokens of a text."""
        return list(self.encodings[batch_index].tokens)

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the word index of each token in its text; None for special tokens."""
        return list(self.encodings[batch_index].word_ids)

    words = word_ids  # its name before 2021

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return 0 for tokens of the text, 1 for tokens of its pair, None for special tokens."""
        return list(self.encodings[batch_index].sequence_ids)

    # The following methods take a row index and an index in that row; one argument alone is an
    # index in the first row.

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the token of a character; None between words, or if truncated."""
        row, index = _row_and_index(batch_or_char_index, char_index)
        return self.encodings[row].char_to_token(index, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the word of a character; None between words, or if truncated."""
        row, index = _row_and_index(batch_or_char_index, char_index)
        return self.encodings[row].char_to_word(index, sequence_index)

    def token_to_chars(
        self, batch_or_token_index: int, token_index: int | None = None
    ) -> CharSpan | None:
        """Return the character span of a token; None for a special token."""
        row, index = _row_and_index(batch_or_token_index, token_index)
        return self.encodings[row].token_to_chars(index)

    def token_to_word(
        self, batch_or_token_index: int, token_index: int | None = None
    ) -> int | None:
        """Return the word index of a token; None for a special token."""
        row, index = _row_and_index(batch_or_token_index, token_index)
        return self.encodings[row].token_to_word(index)

    def token_to_sequence(
        self, batch_or_token_index: int, token_index: int | None = None
    ) -> int | None:
        """Return 0 for a token of the text, 1 for a token of its pair, None for a special token."""
        row, index = _row_and_index(batch_or_token_index, token_index)
        return self.encodings[row].token_to_sequence(index)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """Return the token span of a word; None if truncated or missing."""
        row, index = _row_and_index(batch_or_word_index, word_index)
        return self.encodings[row].word_to_tokens(index, sequence_index)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """Return the character span of a word; None if truncated or missing."""
        row, index = _row_and_index(batch_or_word_index, word_index)
        return self.encodings[row].word_to_chars(index, sequence_index)

    def to(self, device: Any) -> BatchEncoding:
        """Move the tensors to a device."""
        self.update({name: x.to(device) for name, x in self.items() if hasattr(x, "to")})
        return self


def _refuse_words(rows: Sequence[Any]) -> None:
    """Raise InputError for a list of words in a batch of texts and pairs."""
    for number, row in enumerate(rows, 1):
        texts = (row.text, row.pair) if isinstance(row, Record) else (row,)
        for text in texts:
            is_pair = text is row and isinstance(text, list | tuple) and len(text) == 2
            if isinstance(text, list | tuple) and not is_pair:
                raise InputError(
                    f"text {number}: {shown(text)} is a list of {len(text)}, "
                    "and a pair has at most two texts",
                    "is_split_into_words=True reads lists of words",
                )


def _row_and_index(first: int, second: int | None) -> tuple[int, int]:
    """Return a row index and an index in it; a single number is an index in the first row."""
    return (0, first) if second is None else (first, second)


def _value(value: Any) -> Any:
    """Return a strategy as spelled at the command line; transformers also accepts enum members."""
    value = getattr(value, "value", value)
    return str(value).lower() if isinstance(value, bool) else value
