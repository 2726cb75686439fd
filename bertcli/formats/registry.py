"""The table of file formats: their names, suffixes, what they can hold, who reads and writes them.

    FORMATS["parquet"].require()          # BertcliError without pyarrow
    names_of(Holds.VECTORS)               # ("jsonl", "csv", "npy", ...)
    INPUT_SUFFIXES[".pq"]                 # "parquet"

A new format is a module in this package and an entry here. The functions of an entry are named as
"module:function", and imported when a file is read or written: importing this table costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Flag, auto
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bertcli.errors import InputError

if TYPE_CHECKING:
    from bertcli.formats.tables import Row

# Reads rows of a format, for `FileFormat.reader`. It takes numbered lines without their ends, the
# name of the file for messages, and a function for the error of a bad row, which raises it or
# returns to skip the row. It yields rows with their line numbers.
RowReader = Callable[
    [Iterable[tuple[int, str]], str, Callable[[InputError], None]],
    "Iterator[tuple[int, Row]]",
]


class Holds(Flag):
    """What a format can hold."""

    NOTHING = 0
    TEXTS = auto()  # texts without any other field
    ROWS = auto()  # rows with named fields, also those that are kept of the input
    NESTED = auto()  # objects in a field of a row
    ARRAYS = auto()  # arrays of numbers alone
    VECTORS = auto()  # a vector of each record
    SEVERAL_VECTORS = auto()  # vectors of the tokens or words of each record
    TERMS = auto()  # weighted terms of each record
    IDS = auto()  # arrays of strings, so the ids of records as well


@dataclass(frozen=True)
class FileFormat:
    """A file format.

    ``encoder`` makes a function from rows to bytes, for formats that are written as rows arrive.
    ``writer`` takes an open file, and is a context that gives a function that takes rows: for
    formats whose beginning depends on all rows. With both, ``writer`` writes files and ``encoder``
    streams. ``reader`` is a `RowReader`; without it `records.reader` knows the format by name.
    """

    name: str
    suffixes: tuple[str, ...] = ()  # of files that are read and written
    input_suffixes: tuple[str, ...] = ()  # further ones, of files that are only read
    holds: Holds = Holds.NOTHING
    has_header: bool = False  # tables have their columns even without a row
    is_streamed: bool = True  # text, which can be shown on a terminal; others are binary
    needs_seek: bool = False  # it is read at any offset: a pipe is copied to disk first
    delimiter: str = ""  # between the cells of a line
    is_json: bool = False
    is_columnar: bool = False  # columns have types, which a copy keeps
    is_choice: bool = True  # a value of --format and --input-format
    written_as: str = ""  # another format, whose writer is used
    required_module: str = ""  # whose import raises BertcliError if an extra of pip is missing
    encoder: str = ""
    writer: str = ""
    ragged_writer: str = ""  # the format that holds rows of several lengths, flat with offsets
    reader: str = ""
    vector_writer: str = ""
    vector_reader: str = ""

    def can_hold(self, what: Holds) -> bool:
        """Return True if the format can hold all of this."""
        return what in self.holds

    def require(self) -> None:
        """Raise BertcliError if an extra of pip is missing, with the command that installs it."""
        if self.required_module:
            import_module(f"{__package__}.{self.required_module}")


ROWS_AND_VECTORS = Holds.ROWS | Holds.VECTORS
ARRAYS_AND_VECTORS = Holds.ARRAYS | Holds.VECTORS | Holds.SEVERAL_VECTORS

# Names for code that has no other format to ask: defaults, and what has a meaning of its own.
FINISHED = "finished"  # rows that another function has encoded already
CONTENT = "content"  # all bytes of a file, encoded already
JSONL = "jsonl"  # of a pipe, and of stdin that holds objects
JSON = "json"  # a single value; of a file, an array of rows
TXT = "txt"  # of files with an unknown suffix
CSV = "csv"
TSV = "tsv"  # of files with an unknown suffix that hold pairs
PARQUET = "parquet"  # of shards, as it holds all that the others hold
WHOLE_FILE = "whole"  # each file is one text

# In the order of --help and messages.
FORMATS = {
    entry.name: entry
    for entry in (
        FileFormat(
            JSONL,
            suffixes=(".jsonl", ".ndjson"),
            holds=ROWS_AND_VECTORS | Holds.NESTED | Holds.SEVERAL_VECTORS | Holds.TERMS,
            is_json=True,
            encoder="jsonl:encoder",
            vector_writer="vector_writer:write_text",
            vector_reader="vector_files:json_vectors",
        ),
        FileFormat(
            JSON,
            suffixes=(".json",),
            holds=ROWS_AND_VECTORS | Holds.NESTED,
            is_json=True,
            written_as=JSONL,
            encoder="jsonl:encoder",
        ),
        FileFormat(
            CSV,
            suffixes=(".csv",),
            holds=ROWS_AND_VECTORS,
            has_header=True,
            delimiter=",",
            encoder="delimited:csv_encoder",
            writer="delimited:csv_writer",
            vector_writer="vector_writer:write_text",
            vector_reader="vector_files:csv_vectors",
        ),
        FileFormat(
            TSV,
            suffixes=(".tsv",),
            input_suffixes=(".tab",),
            holds=Holds.ROWS,
            has_header=True,
            delimiter="\t",
            encoder="delimited:tsv_encoder",
            writer="delimited:tsv_writer",
        ),
        FileFormat(
            "npy",
            suffixes=(".npy",),
            holds=ARRAYS_AND_VECTORS,
            is_streamed=False,
            needs_seek=True,
            writer="arrays:npy_writer",
            vector_writer="vector_writer:write_vectors",
            vector_reader="vector_files:array_vectors",
        ),
        FileFormat(
            "npz",
            suffixes=(".npz",),
            holds=ARRAYS_AND_VECTORS | Holds.TERMS | Holds.IDS,
            is_streamed=False,
            needs_seek=True,
            writer="arrays:npz_writer",
            ragged_writer="ragged npz",
            vector_writer="vector_writer:write_vectors",
            vector_reader="vector_files:array_vectors",
        ),
        FileFormat(
            "safetensors",
            suffixes=(".safetensors",),
            holds=ARRAYS_AND_VECTORS,
            is_streamed=False,
            needs_seek=True,
            writer="arrays:safetensors_writer",
            ragged_writer="ragged safetensors",
            vector_writer="vector_writer:write_vectors",
            vector_reader="vector_files:array_vectors",
        ),
        FileFormat(
            PARQUET,
            suffixes=(".parquet",),
            input_suffixes=(".pq",),
            holds=ROWS_AND_VECTORS | Holds.SEVERAL_VECTORS | Holds.TERMS,
            has_header=True,
            is_streamed=False,
            needs_seek=True,
            is_columnar=True,
            required_module="parquet",
            writer="parquet:rows_writer",
            vector_writer="vector_writer:write_parquet",
            vector_reader="vector_files:parquet_vectors",
        ),
        FileFormat(TXT, (".txt",), holds=Holds.TEXTS, encoder="plain_text:encoder"),
        FileFormat(
            WHOLE_FILE,
            input_suffixes=(".md", ".markdown", ".rst"),
            holds=Holds.TEXTS,
            is_choice=False,
        ),
        FileFormat("conll", holds=Holds.ROWS, is_choice=False),  # words and tags, of examples
        FileFormat(
            "ragged npz",
            holds=Holds.ARRAYS,
            is_streamed=False,
            is_choice=False,
            writer="arrays:ragged_npz_writer",
        ),
        FileFormat(
            "ragged safetensors",
            holds=Holds.ARRAYS,
            is_streamed=False,
            is_choice=False,
            writer="arrays:ragged_safetensors_writer",
        ),
        FileFormat(FINISHED, is_choice=False, encoder="writers:finished_encoder"),
        FileFormat(CONTENT, is_choice=False, encoder="writers:finished_encoder"),
    )
}


def names_of(holds: Holds, *, with_aliases: bool = False) -> tuple[str, ...]:
    """Return the names of the formats that hold any of this, perhaps ``with_aliases`` of others."""
    return tuple(
        entry.name
        for entry in FORMATS.values()
        if entry.is_choice and entry.holds & holds and (with_aliases or not entry.written_as)
    )


def load(function: str) -> Any:
    """Return a function of an entry, given as "module:function"."""
    module, name = function.split(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


ROWS = names_of(Holds.ROWS)
ARRAYS = names_of(Holds.ARRAYS)
VECTORS = names_of(Holds.VECTORS)
NESTED = names_of(Holds.NESTED)
BINARY = tuple(entry.name for entry in FORMATS.values() if not entry.is_streamed)
TABULAR = tuple(entry.name for entry in FORMATS.values() if entry.has_header)
LINES = (JSONL, TXT)  # formats whose lines are made in other ways as well, as that is faster
CHOICES = tuple(entry.name for entry in FORMATS.values() if entry.is_choice)
ROW_CHOICES = names_of(Holds.ROWS, with_aliases=True)
VECTOR_CHOICES = names_of(Holds.VECTORS, with_aliases=True)
INPUT_CHOICES = ("auto", TXT, *ROW_CHOICES)

OUTPUT_SUFFIXES = {
    suffix: entry.written_as or entry.name
    for entry in FORMATS.values()
    for suffix in entry.suffixes
}
INPUT_SUFFIXES = {suffix: entry.name for entry in FORMATS.values() for suffix in entry.suffixes} | {
    suffix: entry.name for entry in FORMATS.values() for suffix in entry.input_suffixes
}

if TYPE_CHECKING:
    InputFormat: TypeAlias = str
else:
    InputFormat = Literal[INPUT_CHOICES]
