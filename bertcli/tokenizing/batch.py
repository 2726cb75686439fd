"""Tokens as columns (`TokenBatch`), with the column names of transformers, and their layout.

A batch concatenates the tokens of all its texts, with row offsets; each row is an `Encoded`. A
column has one entry per token. Truncation, windows and padding apply to all columns alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertcli.errors import UsageError, option
from bertcli.formats.tables import ID_COLUMNS
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record

if TYPE_CHECKING:
    from tokenizers import Encoding


Column = Sequence[Any]

CHUNK_FIELDS = ("chunk", "start", "end")  # they locate a chunk in its text
EXTRA = "extra."  # prefix of the column names of extra embeddings

# Column name -> function that reads it from an encoding, in display order.
COLUMNS: Mapping[str, Callable[[Encoding], Column]] = {
    "input_ids": attrgetter("ids"),
    "token_type_ids": attrgetter("type_ids"),
    "attention_mask": attrgetter("attention_mask"),
    "special_tokens_mask": attrgetter("special_tokens_mask"),
    "tokens": attrgetter("tokens"),
    "offset_mapping": attrgetter("offsets"),
    "word_ids": attrgetter("word_ids"),
    "sequence_ids": attrgetter("sequence_ids"),
    "positions": lambda encoding: range(len(encoding.ids)),  # before truncation
}


@dataclass(frozen=True)
class Layout:
    """How records become columns. None means the model's setting."""

    columns: tuple[str, ...] = ("input_ids", "token_type_ids", "attention_mask")
    special_tokens: bool = True
    max_length: int | None = None
    truncation: str = "do_not_truncate"
    truncation_side: Literal["left", "right"] | None = None
    padding: str = "do_not_pad"
    padding_side: Literal["left", "right"] | None = None
    pad_to_multiple_of: int | None = None
    stride: int = 0
    overflowing: bool = False
    offset_unit: Literal["char", "byte", "utf16"] = "char"

    @property
    def is_flat(self) -> bool:
        """True if all columns are numeric, so arrays can hold them (but not windows of pairs)."""
        return {*ID_COLUMNS}.issuperset(self.columns)

    def __post_init__(self) -> None:
        step = self.pad_to_multiple_of
        length = self.max_length
        truncates = self.truncation != "do_not_truncate"
        pads = self.padding != "do_not_pad"
        if truncates and pads and step and length and length % step:
            raise UsageError(
                f"{option('max_length', length)} is not a multiple of "
                f"{option('pad_to_multiple_of', step)}",
                f"give a multiple as {option('max_length')}",
            )


class Encoded(NamedTuple):
    """The tokens of a record, or of one of its windows."""

    record: Record
    columns: dict[str, Column]
    dropped_tokens: int = 0  # by truncation
    sample: int = 0  # index of the record in the run, from 0; its windows share it

    @property
    def length(self) -> int:
        """The number of tokens, including special tokens and padding."""
        return len(self.columns["input_ids"])


@dataclass(frozen=True)
class TokenBatch(Sequence[Encoded]):
    """The tokens of many records, concatenated: `B` rows with `T` tokens in total.

    A record has one row, or one per window. Columns and offsets are arrays, or lists if there are
    too few records to be worth the numpy import. An `Encoded` is created only when a row is
    accessed.
    """

    records: RecordBatch  # of each row
    samples: Sequence[int]  # [B], indexes of the records in the run
    columns: Mapping[str, Any]  # name -> [T]
    offsets: Any  # [B + 1]
    dropped_tokens: list[int]  # [B], dropped by truncation

    @classmethod
    def of(cls, rows: Sequence[Encoded], columns: Iterable[str] = ("input_ids",)) -> TokenBatch:
        """Return a batch of these rows, as lists; without rows it has the columns ``columns``."""
        if isinstance(rows, TokenBatch):
            return rows
        names = rows[0].columns if rows else columns
        return cls(
            RecordBatch.of([row.record for row in rows]),
            [row.sample for row in rows],
            {name: list(chain.from_iterable(row.columns[name] for row in rows)) for name in names},
            [0, *accumulate(row.length for row in rows)],
            [row.dropped_tokens for row in rows],
        )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, row: int) -> Encoded:  # type: ignore[override]
        row = range(len(self))[row]
        start, stop = self.offsets[row : row + 2]
        columns = {name: as_lists(flat[start:stop]) for name, flat in self.columns.items()}
        return Encoded(self.records[row], columns, self.dropped_tokens[row], self.samples[row])

    def __iter__(self) -> Iterator[Encoded]:
        names = [*self.columns]
        rows = zip(*map(self.lists, names), strict=True)
        columns = (dict(zip(names, row, strict=True)) for row in rows)
        return map(Encoded, self.records, columns, self.dropped_tokens, self.samples)

    @property
    def has_arrays(self) -> bool:
        """True if columns and offsets are arrays, False if they are lists (few records)."""
        return not isinstance(self.ids, list)

    @property
    def ids(self) -> Any:
        """The token ids of all rows [T]."""
        return self.columns["input_ids"]

    @cached_property
    def lengths(self) -> list[int]:
        """The number of tokens of each row [B], including special tokens and padding."""
        offsets = as_lists(self.offsets)
        return list(map(sub, offsets[1:], offsets))

    @cached_property
    def windows_per_record(self) -> list[int]:
        """The number of rows (windows) of each record."""
        return [*Counter(self.samples).values()]

    def lists(self, name: str) -> list[Any]:
        """Return a column as one list per row."""
        flat = as_lists(self.columns[name])
        return [flat[start:stop] for start, stop in pairwise(as_lists(self.offsets))]

    def take(self, rows: Iterable[int]) -> TokenBatch:
        """Return a batch of the rows with these indexes."""
        return TokenBatch.of([self[row] for row in rows], self.columns)


def as_lists(values: Any) -> Any:
    """Return an array, a tensor or a list as plain numbers and lists."""
    return values.tolist() if hasattr(values, "tolist") else values


def pad_row(row: Encoded, length: int, side: str, token: str, token_id: int) -> Encoded:
    """Return the row padded to ``length`` at its end, or at its start (side "left")."""
    missing = length - row.length
    if missing <= 0:
        return row
    values = {
        "input_ids": token_id,
        "special_tokens_mask": 1,
        "tokens": token,
        "offset_mapping": (0, 0),
        "word_ids": None,
        "sequence_ids": None,
    }
    columns = dict(row.columns)
    for name in COLUMNS.keys() & columns:
        padding = [values.get(name, 0)] * missing
        column = columns[name]
        columns[name] = [*padding, *column] if side == "left" else [*column, *padding]
    return row._replace(columns=columns)


def sequence_span(sequence_ids: Sequence[Any], sequence: int) -> tuple[int, int]:
    """Return the range [start, stop) of the tokens of a sequence: 0, or 1 for the pair."""
    count = sequence_ids.count(sequence)
    start = sequence_ids.index(sequence) if count else 0
    return start, start + count


def offsets_in(record: Record, encoding: Encoding, unit: str) -> Column:
    """Return offsets in UTF-8 bytes or UTF-16 code units.

    If a text is split into words, they count within each word.
    """
    codec, unit_bytes = {"byte": ("utf-8", 1), "utf16": ("utf-16-le", 2)}[unit]

    @cache
    def starts_in_units(text: str) -> list[int]:
        """Return the start of each character of a text, and the end of the last one."""
        sizes = (len(character.encode(codec)) // unit_bytes for character in text)
        return [0, *accumulate(sizes)]

    offsets = []
    tokens = zip(encoding.offsets, encoding.sequence_ids, encoding.word_ids, strict=True)
    for (start, end), sequence, word in tokens:
        if sequence is not None:
            text: Any = record[sequence]
            starts = starts_in_units(text if isinstance(text, str) else text[word or 0])
            start = starts[start]
            end = starts[end]
        offsets.append((start, end))
    return offsets
