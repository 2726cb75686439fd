"""Tokens as columns (`TokenBatch`), in the names of transformers, and their layout.

A batch holds the tokens of all its texts one after another, with offsets; each of its rows is an
`Encoded`. A column has one entry for each token. Truncation, windows and padding treat all columns
alike.
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
from bertcli.formats.tables import NUMERIC
from bertcli.records.batch import RecordBatch
from bertcli.records.record import Record

if TYPE_CHECKING:
    from tokenizers import Encoding


Column = Sequence[Any]

PLACE = ("chunk", "start", "end")  # what is written of a piece of a text: its place there
EXTRA = "extra."  # how the columns of extra embeddings are called, before the name of each

# What each column is made of, in the order in which they are shown.
COLUMNS: Mapping[str, Callable[[Encoding], Column]] = {
    "input_ids": attrgetter("ids"),
    "token_type_ids": attrgetter("type_ids"),
    "attention_mask": attrgetter("attention_mask"),
    "special_tokens_mask": attrgetter("special_tokens_mask"),
    "tokens": attrgetter("tokens"),
    "offset_mapping": attrgetter("offsets"),
    "word_ids": attrgetter("word_ids"),
    "sequence_ids": attrgetter("sequence_ids"),
    "places": lambda encoding: range(len(encoding.ids)),  # before truncation
}


@dataclass(frozen=True)
class Layout:
    """How records become columns. None: as the model specifies."""

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
        """Whether arrays can say all that is asked for; of pairs they have no windows."""
        return {*NUMERIC}.issuperset(self.columns)

    def __post_init__(self) -> None:
        step = self.pad_to_multiple_of
        length = self.max_length
        cuts = self.truncation != "do_not_truncate"
        pads = self.padding != "do_not_pad"
        if cuts and pads and step and length and length % step:
            raise UsageError(
                f"{option('max_length', length)} is not a multiple of "
                f"{option('pad_to_multiple_of', step)}",
                f"give a multiple as {option('max_length')}",
            )


class Encoded(NamedTuple):
    """A record's tokens. ``cut`` is the number of tokens dropped by truncation."""

    record: Record
    columns: dict[str, Column]
    cut: int = 0
    sample: int = 0  # the number of the record in the run, from 0; windows of one record share it

    @property
    def length(self) -> int:
        """The number of tokens, special ones and padding included."""
        return len(self.columns["input_ids"])


@dataclass(frozen=True)
class TokenBatch(Sequence[Encoded]):
    """Records and their tokens, one after another: `B` rows, `T` tokens of them together.

    A record has a row, or one for each of its windows. Columns and offsets are arrays, or lists
    where few records are not worth the import of numpy. A row is made where somebody asks for it.
    """

    records: RecordBatch  # of the rows
    samples: Sequence[int]  # the numbers of the records in the run
    columns: Mapping[str, Any]  # name -> [T]
    offsets: Any  # [B + 1]
    dropped_tokens: list[int]  # [B], by truncation

    @classmethod
    def of(cls, rows: Sequence[Encoded], columns: Iterable[str] = ("input_ids",)) -> TokenBatch:
        """Return rows as lists, one after another; ``columns`` are those of no row."""
        if isinstance(rows, TokenBatch):
            return rows
        names = rows[0].columns if rows else columns
        return cls(
            RecordBatch.of([row.record for row in rows]),
            [row.sample for row in rows],
            {name: list(chain.from_iterable(row.columns[name] for row in rows)) for name in names},
            [0, *accumulate(row.length for row in rows)],
            [row.cut for row in rows],
        )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, at: int) -> Encoded:  # type: ignore[override]
        at = range(len(self))[at]
        start, stop = self.offsets[at : at + 2]
        columns = {name: as_lists(flat[start:stop]) for name, flat in self.columns.items()}
        return Encoded(self.records[at], columns, self.dropped_tokens[at], self.samples[at])

    def __iter__(self) -> Iterator[Encoded]:
        names = [*self.columns]
        rows = zip(*map(self.lists, names), strict=True)
        columns = (dict(zip(names, row, strict=True)) for row in rows)
        return map(Encoded, self.records, columns, self.dropped_tokens, self.samples)

    @property
    def has_arrays(self) -> bool:
        """True if columns and offsets are arrays, False for lists of few records."""
        return not isinstance(self.ids, list)

    @property
    def ids(self) -> Any:
        """The token ids of all rows [T]."""
        return self.columns["input_ids"]

    @cached_property
    def lengths(self) -> list[int]:
        """The number of tokens of each row [B], special ones and padding included."""
        offsets = as_lists(self.offsets)
        return list(map(sub, offsets[1:], offsets))

    @cached_property
    def windows(self) -> list[int]:
        """The number of rows of each record, which are those of its windows."""
        return [*Counter(self.samples).values()]

    def lists(self, name: str) -> list[Any]:
        """Return a column as a list for each row."""
        flat = as_lists(self.columns[name])
        return [flat[start:stop] for start, stop in pairwise(as_lists(self.offsets))]

    def take(self, rows: Iterable[int]) -> TokenBatch:
        """Return some of the rows."""
        return TokenBatch.of([self[row] for row in rows], self.columns)


def as_lists(values: Any) -> Any:
    """Return what may be an array or a tensor as numbers and lists."""
    return values.tolist() if hasattr(values, "tolist") else values


def pad_row(item: Encoded, length: int, side: str, token: str, index: int) -> Encoded:
    """Return the item padded at its end, or at its start (side "left")."""
    size = length - item.length
    if size <= 0:
        return item
    values = {
        "input_ids": index,
        "special_tokens_mask": 1,
        "tokens": token,
        "offset_mapping": (0, 0),
        "word_ids": None,
        "sequence_ids": None,
    }
    columns = dict(item.columns)
    for name in COLUMNS.keys() & columns:
        fill = [values.get(name, 0)] * size
        columns[name] = [*fill, *columns[name]] if side == "left" else [*columns[name], *fill]
    return item._replace(columns=columns)


def sequence_span(sequences: Sequence[Any], which: int) -> tuple[int, int]:
    """Return the positions of one sequence's tokens among special tokens."""
    count = sequences.count(which)
    start = sequences.index(which) if count else 0
    return start, start + count


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
            start = at[start]
            until = at[until]
        offsets.append((start, until))
    return offsets
