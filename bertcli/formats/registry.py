"""The table of file formats: names, suffixes, what they can hold, their readers and writers.

    FORMATS["parquet"].require()          # BertcliError without pyarrow
    names_of(Holds.VECTORS)               # ("jsonl", "csv", "npy", ...)
    INPUT_SUFFIXES[".pq"]                 # "parquet"

A new format is a module in this package and an entry here. Entries refer to functions as
"module:function", which are imported when a file is read or written: importing this table is cheap.
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

# Type of `FileFormat.reader`. Arguments: numbered lines without line ends, the file name for
# messages, and a function for the error of a bad row, which raises it, or returns to skip the row.
# Yields rows with their line numbers.
RowReader = Callable[
    [Iterable[tuple[int, str]], str, Callable[[InputError], None]],
    "Iterator[tuple[int, Row]]",
]


class Holds(Flag):
    """The contents that a format can hold."""

    NOTHING = 0
    TEXTS = auto()  # texts without other fields
    ROWS = auto()  # rows with named fields, including carried ones
    NESTED = auto()  # objects in a field of a row
    ARRAYS = auto()  # only arrays of numbers
    VECTORS = auto()  # one vector per record
    SEVERAL_VECTORS = auto()  # vectors of the tokens or words of each record
    TERMS = auto()  # weighted terms of each record
    IDS = auto()  # arrays of strings, which can hold record ids
    REQUESTS = auto()  # requests of an API with their texts, or the answers with their vectors


@dataclass(frozen=True)
class FileFormat:
    """A file format.

    ``encoder`` returns a function from rows to bytes, for formats that are written row by row.
    ``writer`` is a context manager from an open file to a function that takes rows, for formats
    whose header depends on all rows. If a format has both, ``writer`` writes files and ``encoder``
    streams. ``reader`` is a `RowReader`. Formats that are read in blocks have their readers in
    `records.reader`: these turn whole blocks of lines into records, faster than rows, and need the
    options of the input, which this package does not know.

    ``vector_writer`` is called with a file open for writing, the name of the format, and the
    `vector_writer.StoredRows` to write, which it may read several times. ``vector_reader`` is
    called with a path, and yields the vectors of all records as arrays [<= n, D...] of one dtype.
    """

    name: str
    suffixes: tuple[str, ...] = ()  # of files that are read and written
    input_suffixes: tuple[str, ...] = ()  # of files that are only read
    holds: Holds = Holds.NOTHING
    has_header: bool = False  # tables have a header even without rows
    is_text: bool = True  # can be shown on a terminal and cut into lines; False: binary
    needs_seek: bool = False  # read at random offsets: a pipe is copied to disk first
    delimiter: str = ""  # between the cells of a line
    is_json: bool = False
    is_columnar: bool = False  # columns have types, which a copy keeps
    is_choice: bool = True  # a value of --format if written; of --input-format if records are read
    written_as: str = ""  # another format, whose writer is used
    stored_as: str = ""  # another format, whose suffixes its files have
    carried: tuple[str, ...] = ()  # fields that rows which were read from it carry
    required_module: str = ""  # raises BertcliError at import if a pip extra is missing
    encoder: str = ""
    writer: str = ""
    ragged_writer: str = ""  # format for rows of different lengths, flat with offsets
    reader: str = ""
    is_read_in_blocks: bool = False  # by `records.reader`, without a ``reader`` here
    vector_writer: str = ""
    vector_reader: str = ""
    width_check: str = ""  # raises OutputError for rows that ask for vectors of another width

    @property
    def is_readable(self) -> bool:
        """True if records can be read from files of this format."""
        return self.is_read_in_blocks or bool(self.reader)

    @property
    def is_writable(self) -> bool:
        """True if files of this format can be written."""
        return bool(self.encoder or self.writer or self.vector_writer)

    def can_hold(self, contents: Holds) -> bool:
        """Return True if the format can hold all of these contents."""
        return contents in self.holds

    def require(self) -> None:
        """Raise BertcliError, with the install command, if a pip extra is missing."""
        if self.required_module:
            import_module(f"{__package__}.{self.required_module}")


ROWS_AND_VECTORS = Holds.ROWS | Holds.VECTORS
ARRAYS_AND_VECTORS = Holds.ARRAYS | Holds.VECTORS | Holds.SEVERAL_VECTORS

# Names of formats that code refers to directly: defaults and special cases.
ENCODED_ROWS = "finished"  # rows already encoded by another function
CONTENT = "content"  # the complete bytes of a file, already encoded
JSONL = "jsonl"  # default for pipes, and for stdin with objects
JSON = "json"  # a single value; in a file, an array of rows
TXT = "txt"  # default for files with an unknown suffix
CSV = "csv"
TSV = "tsv"  # default for files of pairs with an unknown suffix
PARQUET = "parquet"  # for shards: it holds what all others can hold
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
            is_read_in_blocks=True,
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
            is_read_in_blocks=True,
        ),
        FileFormat(
            CSV,
            suffixes=(".csv",),
            holds=ROWS_AND_VECTORS,
            has_header=True,
            delimiter=",",
            encoder="delimited:csv_encoder",
            writer="delimited:csv_writer",
            is_read_in_blocks=True,
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
            is_read_in_blocks=True,
        ),
        FileFormat(
            "npy",
            suffixes=(".npy",),
            holds=ARRAYS_AND_VECTORS,
            is_text=False,
            needs_seek=True,
            writer="arrays:npy_writer",
            is_read_in_blocks=True,
            vector_writer="vector_writer:write_vectors",
            vector_reader="vector_files:array_vectors",
        ),
        FileFormat(
            "npz",
            suffixes=(".npz",),
            holds=ARRAYS_AND_VECTORS | Holds.TERMS | Holds.IDS,
            is_text=False,
            needs_seek=True,
            writer="arrays:npz_writer",
            ragged_writer="ragged npz",
            is_read_in_blocks=True,
            vector_writer="vector_writer:write_vectors",
            vector_reader="vector_files:array_vectors",
        ),
        FileFormat(
            "safetensors",
            suffixes=(".safetensors",),
            holds=ARRAYS_AND_VECTORS,
            is_text=False,
            needs_seek=True,
            writer="arrays:safetensors_writer",
            ragged_writer="ragged safetensors",
            is_read_in_blocks=True,
            vector_writer="vector_writer:write_vectors",
            vector_reader="vector_files:array_vectors",
        ),
        FileFormat(
            PARQUET,
            suffixes=(".parquet",),
            input_suffixes=(".pq",),
            holds=ROWS_AND_VECTORS | Holds.SEVERAL_VECTORS | Holds.TERMS,
            has_header=True,
            is_text=False,
            needs_seek=True,
            is_columnar=True,
            required_module="parquet",
            writer="parquet:rows_writer",
            is_read_in_blocks=True,
            vector_writer="vector_writer:write_parquet",
            vector_reader="vector_files:parquet_vectors",
        ),
        FileFormat(
            "openai-batch",
            holds=Holds.REQUESTS | Holds.VECTORS,
            stored_as=JSONL,
            carried=("request",),
            writer="openai_batch:writer",
            reader="openai_batch:read_rows",
            vector_writer="vector_writer:write_text",
            vector_reader="openai_batch:answered_vectors",
            width_check="openai_batch:check_width",
        ),
        FileFormat(
            TXT,
            (".txt",),
            holds=Holds.TEXTS,
            encoder="plain_text:encoder",
            is_read_in_blocks=True,
        ),
        FileFormat(
            WHOLE_FILE,
            input_suffixes=(".md", ".markdown", ".rst"),
            holds=Holds.TEXTS,
            is_choice=False,
            is_read_in_blocks=True,
        ),
        FileFormat(  # words and tags, in examples
            "conll", holds=Holds.ROWS, is_choice=False, is_read_in_blocks=True
        ),
        FileFormat(
            "ragged npz",
            holds=Holds.ARRAYS,
            is_text=False,
            is_choice=False,
            writer="arrays:ragged_npz_writer",
        ),
        FileFormat(
            "ragged safetensors",
            holds=Holds.ARRAYS,
            is_text=False,
            is_choice=False,
            writer="arrays:ragged_safetensors_writer",
        ),
        FileFormat(ENCODED_ROWS, is_choice=False, encoder="writers:encoded_rows_encoder"),
        FileFormat(CONTENT, is_choice=False, encoder="writers:encoded_rows_encoder"),
    )
}


def names_of(
    holds: Holds, *, with_aliases: bool = False, for_input: bool = False
) -> tuple[str, ...]:
    """Return the names of the formats that hold any of this, optionally with aliases of others.

    They are those that can be written, or with ``for_input``, those that can be read.
    """
    return tuple(
        entry.name
        for entry in FORMATS.values()
        if entry.is_choice
        and entry.holds & holds
        and (with_aliases or not entry.written_as)
        and (entry.is_readable if for_input else entry.is_writable)
    )


def load(function: str) -> Any:
    """Return the function of an entry, given as "module:function"."""
    module, name = function.split(":")
    return getattr(import_module(f"{__package__}.{module}"), name)


ROWS = names_of(Holds.ROWS)
ARRAYS = names_of(Holds.ARRAYS)
VECTORS = names_of(Holds.VECTORS)
NESTED = names_of(Holds.NESTED)
BINARY = tuple(entry.name for entry in FORMATS.values() if not entry.is_text)
TABULAR = tuple(entry.name for entry in FORMATS.values() if entry.has_header)
LINES = (JSONL, TXT)  # formats with additional, faster encoders
CHOICES = tuple(
    entry.name
    for entry in FORMATS.values()
    if entry.is_choice and entry.is_writable and not entry.can_hold(Holds.REQUESTS)
)
ROW_CHOICES = names_of(Holds.ROWS, with_aliases=True)
VECTOR_CHOICES = names_of(Holds.VECTORS, with_aliases=True)
INPUT_CHOICES = (
    *("auto", TXT),
    *names_of(Holds.ROWS, with_aliases=True, for_input=True),
    *names_of(Holds.REQUESTS, for_input=True),
)

OUTPUT_SUFFIXES = {
    suffix: entry.written_as or entry.name
    for entry in FORMATS.values()
    if entry.is_writable
    for suffix in entry.suffixes
}
READABLE = [entry for entry in FORMATS.values() if entry.is_readable]
INPUT_SUFFIXES = {suffix: entry.name for entry in READABLE for suffix in entry.suffixes} | {
    suffix: entry.name for entry in READABLE for suffix in entry.input_suffixes
}

if TYPE_CHECKING:
    InputFormat: TypeAlias = str
else:
    InputFormat = Literal[INPUT_CHOICES]
