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

WORD_COLUMNS = ("offset_mapping", "word_ids", "sequence_ids")  # to find each token's word


@dataclass(frozen=True)
class ExtraColumns:
    """The extra embeddings of a model, and the record fields that hold their ids."""

    fields: Mapping[str, str]  # embedding -> record field
    sizes: Mapping[str, int]  # embedding -> number of possible ids

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The token columns that `add_to` reads."""
        return WORD_COLUMNS if self.fields else ()

    @property
    def id_limits(self) -> dict[str, int]:
        """The number of possible ids of each field: the least of the embeddings that read it."""
        limits: dict[str, int] = {}
        for name, field in self.fields.items():
            limits[field] = min(self.sizes[name], limits.get(field, self.sizes[name]))
        return limits

    def request_ids(self, reader: Reader) -> frozenset[str]:
        """Make a reader read the id fields; return those that the user did not ask to keep."""
        reader.read_extra_ids(self.id_limits)
        kept_fields = (reader.source.fields.keep or "").split(",")
        if kept_fields == ["*"]:
            return frozenset()
        return frozenset(self.id_limits) - {*map(str.strip, kept_fields)}

    def add_to(self, rows: Sequence[Encoded], tokenizer: Tokenizer) -> TokenBatch:
        """Return the encoded records with a column for each extra embedding.

        Raises InputError for a record whose ids fit neither its words nor its tokens.
        """
        if self.fields:
            rows = [
                row._replace(columns=row.columns | self._columns(row, tokenizer)) for row in rows
            ]
        return TokenBatch.of(rows, ("input_ids", "token_type_ids"))

    def _columns(self, row: Encoded, tokenizer: Tokenizer) -> dict[str, list[int]]:
        words = list(_word_indices(row))
        columns = {}
        for name, field in self.fields.items():
            ids = extra_ids(row.record, field, self.sizes[name])
            if isinstance(ids, int):  # one id for the text
                columns[EXTRA + name] = [0 if word is None else ids for word in words]
                continue
            indices = words
            if len(ids) != word_count(row.record):
                indices = _token_indices(row, field, len(ids), tokenizer)
            columns[EXTRA + name] = [0 if index is None else ids[index] for index in indices]
        return columns


def _token_indices(row: Encoded, field: str, count: int, tokenizer: Tokenizer) -> list[int | None]:
    """Return the index of each token in its untruncated record; None for special tokens.

    Raises InputError unless the record has ``count`` tokens.
    """
    layout = Layout(columns=("input_ids", *WORD_COLUMNS), special_tokens=False)
    (untruncated,) = tokenizer.encode_records([row.record], layout)
    keys = [*_token_keys(untruncated)]
    if len(keys) != count:
        words = counted(word_count(row.record), "word")
        needed = f"{words} and {counted(len(keys), 'token')}"
        raise unfit_ids(row.record, field, count, needed)
    index_of = {key: index for index, key in enumerate(keys)}
    return [index_of.get(key) for key in _token_keys(row)]


def _token_keys(row: Encoded) -> Iterator[tuple[Any, ...]]:
    """Yield a key for each token, unique in its record."""
    return zip(*(row.columns[name] for name in WORD_COLUMNS), strict=True)


def _word_indices(row: Encoded) -> Iterator[int | None]:
    """Yield the word index of each token in its record; None for special tokens.

    Words of the record are those that it has ids for: of a text, what lies between white space.
    """
    texts = (row.record.text, row.record.pair or "")
    starts = [word_starts(text) for text in texts]
    for (start, _), word, sequence in _token_keys(row):
        if sequence is None or not starts[sequence]:
            yield None
            continue
        position = word if isinstance(texts[sequence], list) else start
        word_index = max(bisect_right(starts[sequence], position) - 1, 0)
        yield word_index + sequence * len(starts[0])
