"""The tokens of one text with their characters and words, as `tokenizers.Encoding` has them.

    encoding = tokenizer('I love NLP!').encodings[0]
    encoding.tokens              # ['[CLS]', 'i', 'love', 'nl', '##p', '!', '[SEP]']
    encoding.word_to_tokens(2)   # TokenSpan(start=3, end=5)
    encoding.char_to_token(7)    # 3

Unlike in `tokenizers`, truncation and padding are applied by this package. Sources: encoding.rs of
tokenizers, and BatchEncoding of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Columns of `tokenizing.batch` -> fields of an encoding.
FIELDS = {
    "input_ids": "ids",
    "token_type_ids": "type_ids",
    "attention_mask": "attention_mask",
    "special_tokens_mask": "special_tokens_mask",
    "tokens": "tokens",
    "offset_mapping": "offsets",
    "word_ids": "word_ids",
    "sequence_ids": "sequence_ids",
}


class TokenSpan(NamedTuple):
    """The tokens [start, end)."""

    start: int
    end: int


class CharSpan(NamedTuple):
    """The characters [start, end)."""

    start: int
    end: int


class TextEncoding(NamedTuple):
    """The tokens of a text, or of a pair; the second text of a pair is sequence 1."""

    ids: Sequence[int]
    type_ids: Sequence[int]
    attention_mask: Sequence[int]
    special_tokens_mask: Sequence[int]
    tokens: Sequence[str]
    offsets: Sequence[tuple[int, int]]  # characters; (0, 0) for special tokens
    word_ids: Sequence[int | None]  # None for special tokens
    sequence_ids: Sequence[int | None]  # None for special tokens

    @property
    def n_sequences(self) -> int:
        """The number of sequences: 1 for a text, 2 for a pair."""
        return max((number for number in self.sequence_ids if number is not None), default=0) + 1

    def char_to_token(self, index: int, sequence_index: int = 0) -> int | None:
        """Return the token of a character; None between words, or if truncated."""
        for token in self._tokens_of(sequence_index):
            start, end = self.offsets[token]
            if start <= index < end:
                return token
        return None

    def char_to_word(self, index: int, sequence_index: int = 0) -> int | None:
        """Return the word of a character; None between words, or if truncated."""
        token = self.char_to_token(index, sequence_index)
        return None if token is None else self.word_ids[token]

    def token_to_chars(self, index: int) -> CharSpan | None:
        """Return the character span of a token; None for a special token."""
        if self.sequence_ids[index] is None:
            return None
        return CharSpan(*self.offsets[index])

    def token_to_word(self, index: int) -> int | None:
        """Return the word index of a token; None for a special token."""
        return self.word_ids[index]

    def token_to_sequence(self, index: int) -> int | None:
        """Return 0 for a token of the text, 1 for a token of its pair, None for a special token."""
        return self.sequence_ids[index]

    def word_to_tokens(self, index: int, sequence_index: int = 0) -> TokenSpan | None:
        """Return the token span of a word; None if truncated or missing."""
        tokens = [
            token for token in self._tokens_of(sequence_index) if self.word_ids[token] == index
        ]
        return TokenSpan(tokens[0], tokens[-1] + 1) if tokens else None

    def word_to_chars(self, index: int, sequence_index: int = 0) -> CharSpan | None:
        """Return the character span of a word; None if truncated or missing."""
        span = self.word_to_tokens(index, sequence_index)
        if span is None:
            return None
        return CharSpan(self.offsets[span.start][0], self.offsets[span.end - 1][1])

    def _tokens_of(self, sequence_index: int) -> list[int]:
        """Return the indexes of the tokens of a sequence."""
        return [
            token for token, sequence in enumerate(self.sequence_ids) if sequence == sequence_index
        ]
