"""Records in: texts and pairs from arguments, lines, JSONL, CSV, TSV and Parquet.

    for record in Reader(Source(paths=("reviews.jsonl.gz",))):
        print(record.text)

A file of any size is read in the memory of one block. What cannot be read is an InputError with its
file and line, or is reported, counted and skipped (``on_error="skip"``).
"""

from __future__ import annotations

import codecs
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertcli.errors import SKIP, InputError, UsageError
from bertcli.files.streams import LARGEST_RECORD, unreadable
from bertcli.files.typed_json import BadJsonError, TooDeepError, kind_of, parse

T = TypeVar("T")
Text = str | list[str]  # a list is a text that is already split into words

FORMATS = {
    ".txt": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".npz": "npz",
    ".safetensors": "safetensors",
}
PACKED = (".gz", ".zst")
ARRAYS = ("npy", "npz", "safetensors")
PRE_SPLIT = "with --pre-split a text is a list of words"
NO_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")


class Record(NamedTuple):
    """A text, or a sentence pair, and where it came from."""

    text: Text
    pair: Text | None = None
    id: Any = None
    extra: dict[str, Any] | None = None
    file: str = ""
    line: int = 0
    ids: list[int] | None = None  # instead of a text, where token ids are read

    @property
    def where(self) -> str:
        """The place to name in a message: ``reviews.txt:12``, or ``text 2`` of the arguments."""
        return f"{self.file}:{self.line}" if self.file else f"text {self.line}"


@dataclass(frozen=True)
class Source:
    """Where records come from, in the words of the command line; None means the default name."""

    texts: tuple[str, ...] = ()
    pair: str | None = None
    paths: tuple[str, ...] = ()
    are_pairs: bool = False  # files of two columns without a header, as `--pairs` reads them
    format: str = "auto"
    text_field: str | None = None
    pair_field: str | None = None
    id_field: str | None = None
    keep: str | None = None  # names of further fields to carry, separated by commas; "*" is all
    null: bool = False
    single: bool = False  # there is no second text, so a field `pair` is like any other
    pre_split: bool = False
    sentences: bool = False  # a text may be a list of sentences
    ids: bool = False  # the records are lists of token ids
    flags: Mapping[str, str] = field(default_factory=dict)  # a field -> its option's own name
    taken: frozenset[str] = frozenset()  # names that no kept field may have: the output's own
    on_error: str = "fail"
    encoding: str = "utf-8"
    encoding_errors: str = "strict"
    max_record_bytes: int = LARGEST_RECORD

    def __post_init__(self) -> None:
        if self.texts and self.paths:
            raise UsageError(
                "texts were given and files as well", "give texts, or files with --input"
            )
        if self.pair is not None and len(self.texts) != 1:
            raise UsageError(
                f"--pair needs exactly one text, not {len(self.texts)}",
                "BERT takes one or two sentences; a file of pairs goes to --pairs",
            )
        try:
            if codecs.lookup(self.encoding).name.replace("_", "-") in NO_ENCODINGS:
                raise LookupError
            "".encode(self.encoding)
        except (LookupError, ValueError):  # ValueError: a NUL in the name
            raise UsageError(
                f"unknown --encoding {self.encoding}", "for example utf-8, latin-1, utf-16, gb18030"
            ) from None

    def format_of(self, path: str) -> str:
        """Return the format of a file: as asked, else by the suffix."""
        name = Path(path)
        inner = name.with_suffix("") if name.suffix.lower() in PACKED else name
        found = FORMATS.get(inner.suffix.lower(), "tsv" if self.are_pairs else "txt")
        found = found if self.format == "auto" else self.format
        if found in ARRAYS and not self.ids:
            raise InputError(f"{path}: {found} holds numbers, not texts")
        return found


class Reader:
    """Iterates over the records of a source; counts what it skipped, replaced and read."""

    def __init__(self, source: Source, warn: Callable[[str], None] = lambda message: None) -> None:
        self.source = source
        self.warn = warn
        self.fields: RecordFields | None = (
            None  # those of the last table; JSONL has them line by line
        )
        self.skipped = self.replaced = 0
        self.with_id = self.without_id = 0  # records of files that have fields
        self.unfit_ids = 0  # values of the field id that are none: lists, objects, true and false
        self.bytes_read = self.records = 0  # the records are counted by a Run

    def __iter__(self) -> Iterator[Record]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield records as they become available, in lists of no fixed length."""
        from bertcli.records import formats

        if self.source.texts:
            yield self.collect(enumerate(self.source.texts, 1), self._argument)
        self._check_paths()
        for path in self.source.paths:
            yield from formats.read(path, self)

    def collect(self, units: Iterable[tuple[int, Any]], parse: Callable[[int, Any], T]) -> list[T]:
        """Parse numbered units; one that cannot be parsed stops the run or is skipped."""
        found = []
        for number, unit in units:
            try:
                found.append(parse(number, unit))
            except InputError as error:
                self.skip(error)
        return found

    def skip(self, error: InputError) -> None:
        """Report and count a record that is left out; raise when the run shall stop instead."""
        if self.source.on_error != "skip":
            raise error
        self.skipped += 1
        self.warn(f"skipped: {error}")

    def count(self, size: int) -> None:
        """Note that so many bytes were read from the disk."""
        self.bytes_read += size

    def fit_id(self, key: Any, name: str, where: str) -> float | None:
        """Return an id that is neither a string nor a whole number: a number, or none.

        A list, an object, true or false is no id. It is counted; where the field was asked for
        with --id-field, InputError is raised, as it is for NaN and infinity.
        """
        if isinstance(key, float):
            if math.isfinite(key):
                return key
            raise _not_finite(name, where)
        if self.source.id_field is not None:
            raise InputError(
                f"{where}: the id {name!r} is {kind_of(key)}, not a string or a number",
                "name another field with --id-field, or rename this one",
            )
        self.unfit_ids += 1
        return None

    def _argument(self, number: int, text: str) -> Record:
        record = Record(text, self.source.pair, line=number)
        return checked(record, self.source)

    def _check_paths(self) -> None:
        """Fail before the first record, not after an hour, when a later file is not there."""
        for path in self.source.paths:
            try:
                if path != "-" and stat.S_ISDIR(os.stat(path).st_mode):
                    raise IsADirectoryError
            except OSError as failed:
                raise unreadable(path, failed) from None


def checked(record: Record, source: Source) -> Record:
    """Return the record with its texts split into words, or read as ids, if they are to be.

    Raises InputError for a text that is not a string, or not valid Unicode.
    """
    if source.ids:
        return record._replace(text="", ids=ids_in(record.text, record.where))
    text = _checked(record.text, record, source)
    pair = None if record.pair is None else _checked(record.pair, record, source)
    return record._replace(text=text, pair=pair)


def _checked(text: Any, record: Record, source: Source) -> Text:
    if source.pre_split or (source.sentences and isinstance(text, list)):
        text = _words(text, record) if isinstance(text, str) else text
        if not isinstance(text, list) or not all(isinstance(word, str) for word in text):
            what = "the list holds more than strings" if source.sentences else PRE_SPLIT
            raise InputError(f"{record.where}: {what}", SKIP)
        return [_valid(word, record, source) for word in text]
    if not isinstance(text, str):
        raise InputError(
            f"{record.where}: the text is {_kind(text)}, not a string",
            "a list of words needs --pre-split" if isinstance(text, list) else SKIP,
        )
    return _valid(text, record, source)


def _kind(value: Any) -> str:
    known = {list: "a list", dict: "an object", bool: "a truth value", type(None): "null"}
    number = isinstance(value, int | float)
    return known.get(type(value), "a number" if number else type(value).__name__)


def _words(text: str, record: Record) -> list[str]:
    try:
        return words(text)
    except BadJsonError as bad:
        raise InputError(f"{record.where}: {bad}", SKIP) from None


def _valid(text: str, record: Record, source: Source) -> str:
    """Lone surrogates come from bad bytes in arguments and from JSON escapes; they are not text."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        if source.encoding_errors == "strict":
            raise InputError(
                f"{record.where}: character {bad.start} is half of a surrogate pair, not text",
                "use --encoding-errors replace",
            ) from None
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def texts_of(records: Iterable[Record]) -> Iterator[str]:
    """Yield every string of some records: texts, pairs, or the words of those that are split."""
    for text, pair, *_ in records:
        for part in (text, pair):
            if isinstance(part, list):
                yield from part
            elif part:
                yield part


def words(text: str) -> list[str]:
    """Split a text into its words: a JSON list of strings, or else on white space.

    Raises TooDeepError for brackets that no text has.
    """
    if text.startswith("["):
        try:
            found = parse(text)
        except TooDeepError:
            raise
        except BadJsonError:
            return text.split()
        if isinstance(found, list) and all(isinstance(word, str) for word in found):
            return found
    return text.split()


def ids_in(value: Any, where: str) -> list[int]:
    """Return a list of ids: given as such, as JSON, or as numbers between blanks or commas.

    Raises InputError for anything else.
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            listed = text.startswith("[")
            value = parse(text) if listed else [int(n) for n in text.replace(",", " ").split()]
        except ValueError:
            raise InputError(
                f"{where}: {text[:40]!r} is not a list of token ids",
                "ids are whole numbers between blanks or commas, or a JSON list",
            ) from None
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise InputError(f"{where}: expected a list of whole numbers, the token ids", SKIP)
    return value


class RecordFields(NamedTuple):
    """The names of the fields of a file that make a record."""

    text: str
    pair: str | None
    id: str | None
    rest: Sequence[str]

    @property
    def needed(self) -> list[str]:
        """All of them, each once."""
        return list(dict.fromkeys(name for name in (*self[:3], *self.rest) if name is not None))

    def record(self, row: Mapping[str, Any], reader: Reader, file: str, line: int) -> Record:
        """Return the record that a row holds; the reader counts the ids.

        Raises InputError for values that could not be written again, NaN and infinity among them.
        """
        found = Record(
            row[self.text],
            row.get(self.pair) if self.pair else None,
            row.get(self.id) if self.id else None,
            {name: row.get(name) for name in self.rest} if self.rest else None,
            file,
            line,
        )
        if found.id is not None and type(found.id) not in (str, int):
            found = found._replace(id=reader.fit_id(found.id, self.id or "", found.where))
        if found.id is None:
            reader.without_id += 1
        else:
            reader.with_id += 1
        if found.extra:
            for name, value in found.extra.items():
                if not is_finite(value):
                    raise _not_finite(name, found.where)
        return checked(found, reader.source)


def _not_finite(name: str, where: str) -> InputError:
    return InputError(
        f"{where}: field {name!r} holds NaN or infinity, which JSON cannot hold",
        "write null there, or leave the field out; commands with --on-error can skip such records",
    )


def is_finite(value: Any) -> bool:
    """Whether no number in a JSON value is NaN or infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        if {*map(type, value)} == {float}:
            return all(map(math.isfinite, value))
        return all(map(is_finite, value))
    return True


def fields_of(source: Source, there: Sequence[str], where: str) -> RecordFields:
    """Return the names of text, pair, id and carried fields among those that are there.

    Raises InputError for a name that was asked for and is not there, and for a field to carry that
    has the name of one of the output.
    """
    text = source.text_field or ("input_ids" if source.ids else "text")
    single = source.pair_field is None and (source.single or source.ids)
    pair, key = None if single else source.pair_field or "pair", source.id_field or "id"
    rest = [name for name in there if name not in (text, pair, key)]
    if source.keep != "*":
        rest = [name.strip() for name in source.keep.split(",")] if source.keep else []
        rest = [name for name in dict.fromkeys(rest) if name != "id" or key != "id"]  # kept anyway
    asked = {"--text-field": [text], "--keep-fields": rest}
    asked |= {"--pair-field": [pair]} if pair and source.pair_field else {}
    asked |= {"--id-field": [key]} if source.id_field else {}
    for option, names in asked.items():
        for name in names:
            if name not in there:
                raise InputError(
                    f"{where}: there is no field {name!r}",
                    f"there are: {', '.join(there) or 'none'}"
                    + ("" if source.ids else f"; choose with {source.flags.get(name, option)}"),
                )
    for name in rest:
        if name in source.taken:
            raise taken(name, where)
    return RecordFields(text, pair if pair in there else None, key if key in there else None, rest)


def taken(name: str, where: str) -> InputError:
    """Return the error for a field that cannot be carried: the output has one of that name."""
    return InputError(
        f"{where}: the output has a field {name!r} of its own, so that of the input cannot be kept",
        "rename it in the input, or leave it out of --keep-fields, which takes names: a,b,c",
    )


def carried(row: Mapping[str, Any], record: Record, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a record that are written behind those of a row.

    Raises InputError for one that the row, or ``also``, has a field of the same name.
    """
    extra = record.extra or {}
    for name in extra:
        if name in row or name in also:
            raise taken(name, record.where)
    return extra
