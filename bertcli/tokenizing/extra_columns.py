"""Ids of extra embeddings as token columns: each token has the id of its word, or its own id.

Special tokens around the texts have id 0. A column name is `EXTRA` followed by the embedding's
name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertcli.errors import counted
from bertcli.records.extra_ids import extra_ids, unfit_ids, word_count, word_starts
from bertcli.records.reader import Reader
from bertcli.tokenizing.batch import EXTRA, Encoded, Layout, TokenBatch
from bertcli.tokenizing.tokenizer import Tokenizer

NEEDED = ("offset_mapping", "word_ids", "sequence_ids")  # to find each token's word


@dataclass(frozen=True)
class ExtraColumns:
    """The extra embeddings of a model, and the record fields that hold their ids."""

    fields: Mapping[str, str]  # embedding -> record field
    sizes: Mapping[str, int]  # embedding -> number of possible ids

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that `added` reads."""
        return NEEDED if self.fields else ()

    @property
    def limits(self) -> dict[str, int]:
        """The number of possible ids of each field."""
        fields = self.fields.items()
        return {
            field: min(self.sizes[name] for name, other in fields if other == field)
            for _, field in fields
        }

    def read_by(self, reader: Reader) -> frozenset[str]:
        """Make a reader read the id fields; return those that the user did not ask to keep."""
        reader.read_extra_ids(self.limits)
        asked = (reader.source.fields.keep or "").split(",")
        return frozenset() if asked == ["*"] else frozenset(self.limits) - {*map(str.strip, asked)}

    def added(self, rows: Sequence[Encoded], tokenizer: Tokenizer) -> TokenBatch:
        """Return the encoded records with a column for each extra embedding.

        Raises InputError for a record whose ids fit neither its words nor its tokens.
        """
        if self.fields:
            rows = [
                row._replace(columns=row.columns | self._columns(row, tokenizer)) for row in rows
            ]
        return TokenBatch.of(rows, ("input_ids", "token_type_ids"))

    def _columns(self, item: Encoded, tokenizer: Tokenizer) -> dict[str, list[int]]:
        words = list(_words(item))
        columns = {}
        for name, field in self.fields.items():
            ids = extra_ids(item.record, field, self.sizes[name])
            places = words
            if isinstance(ids, list) and len(ids) != word_count(item.record):
                places = _numbers(item, field, len(ids), tokenizer)
            columns[EXTRA + name] = [
                0 if at is None else ids if isinstance(ids, int) else ids[at] for at in places
            ]
        return columns


def _numbers(item: Encoded, field: str, count: int, tokenizer: Tokenizer) -> list[int | None]:
    """Return the index of each token in its untruncated record; None for special tokens.

    Raises InputError unless the record has ``count`` tokens.
    """
    layout = Layout(columns=("input_ids", *NEEDED), special_tokens=False)
    (whole,) = tokenizer.encode_records([item.record], layout)
    keys = [*_keys(whole)]
    if len(keys) != count:
        words = counted(word_count(item.record), "word")
        needed = f"{words} and {counted(len(keys), 'token')}"
        raise unfit_ids(item.record, field, count, needed)
    number = {key: at for at, key in enumerate(keys)}
    return [number.get(key) for key in _keys(item)]


def _keys(item: Encoded) -> Iterator[tuple[Any, ...]]:
    """Yield a key for each token, unique in its record."""
    return zip(*(item.columns[name] for name in NEEDED), strict=True)


def _words(item: Encoded) -> Iterator[int | None]:
    """Yield the word index of each token in its record; None for special tokens."""
    texts = (item.record.text, item.record.pair or "")
    starts = [word_starts(text) for text in texts]
    for (start, _), word, which in _keys(item):
        if which is None or not starts[which]:
            yield None
            continue
        at = word if isinstance(texts[which], list) else start
        yield max(bisect_right(starts[which], at) - 1, 0) + which * len(starts[0])
