"""The input that the user gave: texts, files, their format and the fields to read."""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from glob import has_magic
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertcli.errors import LOG, InputError, UsageError, counted, option
from bertcli.formats.registry import ARRAYS, FORMATS, INPUT_SUFFIXES, TSV, TXT, Holds
from bertcli.io.paths import HUB_SCHEME, input_name
from bertcli.io.streams import (
    LARGEST_RECORD,
    blocks,
    open_bytes,
    suffix_of,
    unreadable,
)

if TYPE_CHECKING:
    from typing_extensions import Self

ORIGIN = ("file", "line")  # fields that locate a record, with several files
QUOTE = "quote globs, so that the shell does not expand them; ** matches folders"


@dataclass(frozen=True)
class FormatOptions:
    """The format and encoding of files: how bytes become rows."""

    format: str = "auto"  # "whole": each file is one text
    are_pairs: bool = False  # two columns without a header (--pairs)
    delimiter: str = ","  # of csv
    null: bool = False  # texts end with NUL instead of a newline
    infer_types: bool = True  # carry numeric CSV columns as numbers
    encoding: str = "utf-8"
    encoding_errors: Literal["strict", "replace"] = "strict"
    max_record_bytes: int = LARGEST_RECORD

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise UsageError(
                f"{option('delimiter')} {self.delimiter!r} is not one character", "such as ';'"
            )
        try:
            if codecs.lookup(self.encoding).name in ("idna", "punycode"):  # of names, not of files
                raise LookupError
            "".encode(self.encoding)
        except (LookupError, ValueError):  # ValueError: a NUL in the name
            raise UsageError(
                f"unknown {option('encoding', self.encoding)}",
                "for example utf-8, latin-1, utf-16, gb18030",
            ) from None


@dataclass(frozen=True)
class FieldSelection:
    """The fields of a row that make a record, and the fields to carry. None means the default."""

    text_field: str | None = None  # or several, separated by commas; user.bio is a nested field
    text_option: str = "text_field"  # the option that sets it, for messages
    example_text_fields: tuple[str, ...] = ()  # candidates instead: the first in the row, also kept
    join: str | None = None  # separator of several text fields; None: a blank line
    pair_field: str | None = None
    no_pairs: bool = False  # True: `pair` is an ordinary field
    id_field: str | None = None
    keep: str | None = None  # other fields to carry, separated by commas; "*": all
    hit_rows: bool = False  # True: search hits carry their corpus row
    keep_rows: bool = False  # True: carry all fields of a row under their own names
    with_location: bool | None = None  # carry file and line; None: if there are several files
    extra_ids: Mapping[str, int] = field(default_factory=dict)  # id field -> number of ids
    reserved: frozenset[str] = frozenset()  # output fields, which no carried field may be called
    requested: tuple[str, ...] = ()  # the given options that name fields

    def refuse_without_fields(self, formats: Iterable[str]) -> None:
        """Raise UsageError if fields were requested, but none of the formats has fields."""
        if self.requested and not any(map(has_fields, formats)):
            raise UsageError(
                f"{', '.join(self.requested)}: the input is read as txt, which has no fields",
                f"{option('input_format', 'csv')}, tsv or jsonl reads fields",
            )


@dataclass(frozen=True)
class Input:
    """The texts or files that the user gave, and the options for reading them as records.

    `Input.of` takes all options, including those of `format_options` and `fields`, at one level, as
    the command line does:

        Input.of(paths=("reviews.csv",), text_field="body", delimiter=";")
    """

    texts: tuple[str, ...] = ()
    pair: str | None = None  # the second text, if there is one text
    paths: tuple[str, ...] = ()
    list_file: str | None = None  # file that lists the paths
    format_options: FormatOptions = FormatOptions()
    fields: FieldSelection = FieldSelection()
    pre_split: bool = False  # texts are lists of words
    sentences: bool = False  # a text may be a list of sentences
    ids: bool = False  # the records are lists of token ids
    skip_empty: bool = False  # leave out texts without a character
    on_error: Literal["fail", "skip"] = "fail"
    offline: bool = False  # read files of the hub from its cache only

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Return an input with these options, wherever they belong."""
        return cls().changed(**options)

    def changed(self, **options: Any) -> Self:
        """Return a copy with other values of some options, wherever they belong."""
        for name, group_class in OPTION_GROUPS.items():
            group = options.pop(name, getattr(self, name))
            changes = {key: options.pop(key) for key in option_names(group_class) & options.keys()}
            options[name] = replace(group, **changes) if changes else group
        return replace(self, **options)

    def __post_init__(self) -> None:
        if self.texts and self.paths:
            expanded = os.path.isfile(self.texts[0])
            raise UsageError(
                f"TEXT cannot be combined with {option('input')} or {option('files_from')}",
                QUOTE if expanded else "",
            )
        if self.inputs.count("-") > 1:
            raise UsageError(
                f"stdin can be read once: one - among {option('input')} and {option('files_from')}"
            )
        if self.pair is not None and len(self.texts) != 1:
            raise UsageError(
                f"{option('pair')} needs exactly one text, not {len(self.texts)}",
                f"BERT takes one or two sentences; a file of pairs goes to {option('pairs')}",
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that are read: the record files and the file that lists them."""
        return self.paths if self.list_file is None else (*self.paths, self.list_file)

    @property
    def kept_text(self) -> str:
        """The field that carries the text if all fields are kept; "" if none is needed."""
        fields = self.fields
        if fields.keep != "*" or "text" in fields.reserved:
            return ""
        if self.ids or fields.example_text_fields or fields.keep_rows:
            return ""
        if fields.text_field is None or "," in fields.text_field:
            return "text"
        return fields.text_field

    @property
    def options(self) -> dict[str, Any]:
        """All options at one level, under their names in manifests."""
        groups = (*OPTION_GROUPS, "offline")  # records do not depend on the network
        values = {name: value for name, value in vars(self).items() if name not in groups}
        for name in OPTION_GROUPS:
            values |= vars(getattr(self, name))
        return {PUBLIC_NAMES.get(name, name): value for name, value in values.items()}

    def format_of(self, path: str) -> str:
        """Return the format of a file: the given one, otherwise by suffix."""
        file_format = self.format_options.format
        if file_format == "auto":
            file_format = INPUT_SUFFIXES.get(suffix_of(path), TXT)
            if self.format_options.are_pairs and not has_fields(file_format):
                file_format = TSV  # a line of text is not a pair
        if file_format in ARRAYS and not self.ids:
            raise InputError(f"{input_name(path)}: {file_format} holds numbers, not texts")
        return file_format


OPTION_GROUPS = {"format_options": FormatOptions, "fields": FieldSelection}  # fields of `Input`
# Options with another name in manifests and in `Source`.
PUBLIC_NAMES = {
    "example_text_fields": "text_fields",
    "no_pairs": "single",
    "keep_rows": "full_rows",
    "with_location": "placed",
    "reserved": "taken",
    "requested": "asked",
}


def option_names(group: type[Input | FormatOptions | FieldSelection] = Input) -> frozenset[str]:
    """Return the option names of an input with its option groups, or of one group."""
    names = {field.name for field in fields(group)}
    if group is Input:
        names = names.difference(OPTION_GROUPS).union(*map(option_names, OPTION_GROUPS.values()))
    return frozenset(names)


def has_fields(file_format: str) -> bool:
    """Return True if records of a format have fields besides the text."""
    return not FORMATS[file_format].can_hold(Holds.TEXTS)


MAX_LISTED_FILES = 5  # skipped files of a folder (or their suffixes) that a note lists
# Endings of files that bertcli writes beside its outputs.
SEARCH_INDEX_ENDINGS = (".vectors.npy", ".rows.npz")
SIDE_FILE_ENDINGS = (
    *("manifest.json", ".errors.jsonl", ".index.jsonl", ".terms.npz"),
    *SEARCH_INDEX_ENDINGS,
)


def input_files(names: Iterable[str], source: Input) -> tuple[str, ...]:
    """Return the files to read, in the order given; files of a folder or glob are sorted.

    Files of datasets on the hub are downloaded to its cache. Skipped files of a folder are noted.
    Raises InputError for a name that matches no file.
    """
    files: list[str] = []
    for name in names:
        if name == "-":
            files.append(name)
        elif name.startswith(HUB_SCHEME):
            from bertcli.records.hub_files import hub_files

            files += hub_files(name, partial(is_data, source=source), offline=source.offline)
        elif os.path.isdir(name):
            files += _in_folder(name, source)
        elif has_magic(name) and not os.path.lexists(name):
            matches = sorted({path for path in _matches(name) if is_data(path, source, glob=True)})
            if not matches:
                raise InputError(f"{name}: no matching files", QUOTE)
            files += matches
        else:
            try:
                os.stat(name)
            except (OSError, ValueError) as failed:  # ValueError: a NUL in the name
                raise unreadable(name, failed) from None
            files.append(name)
    return tuple(files)


def is_one_file(name: str, path: str) -> bool:
    """Return True if a name that stands for the file ``path`` is not that of a folder or glob."""
    if name.startswith(HUB_SCHEME):
        return path.endswith(f"/{name.rpartition('/')[2]}")
    return path == name


def is_data(name: str, source: Input, *, glob: bool = False) -> bool:
    """Return True if a file of a folder, or of a ``glob``, contains records, judged by its name."""
    is_chosen = glob or source.format_options.format != "auto"
    has_format = is_chosen or suffix_of(name) in _suffixes(source)
    return has_format and not name.endswith(SIDE_FILE_ENDINGS)


def _suffixes(source: Input) -> list[str]:
    """Return the suffixes of files in a folder that are read."""
    formats = INPUT_SUFFIXES.items()
    return [suffix for suffix, format_ in formats if source.ids or format_ not in ARRAYS]


def no_data(names: str, source: Input) -> InputError:
    """Return the error for folders without record files."""
    suffixes = ", ".join(_suffixes(source))
    hint = (
        f"known: {suffixes}; {option('whole')} reads each file as one text, "
        f"{option('input_format')} as it says"
    )
    return InputError(f"{names}: no files with a known suffix", hint)


def _in_folder(folder: str, source: Input) -> list[str]:
    """Return the record files below a folder, sorted, and note the files that are skipped.

    Raises InputError if there are none, or if a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise unreadable(str(error.filename), error) from None

    paths = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    names_of_data = [path for path in paths if is_data(path, source)]
    data_files = sorted(filter(os.path.isfile, names_of_data))
    if broken := len(names_of_data) - len(data_files):
        skipped = counted(broken, "broken link or special file", "broken links or special files")
        LOG.note(f"{folder}: skipped {skipped}")
    if not data_files:
        raise no_data(folder, source)
    others = {*paths}.difference(names_of_data)
    unknown = [path for path in others if not path.endswith(SIDE_FILE_ENDINGS)]
    if unknown:
        LOG.note(f"{folder}: skipped {_unknown_files(unknown, folder)}")
    return data_files


def _unknown_files(paths: Sequence[str], folder: str) -> str:
    """Return "2 files of unknown type: page.html, readme.org", or their counts by suffix."""
    if len(paths) <= MAX_LISTED_FILES:
        listed = [os.path.relpath(path, folder) for path in sorted(paths)]
    else:
        suffixes = Counter(os.path.splitext(path)[1].lower() or "no suffix" for path in paths)
        listed = [f"{count:,} {suffix}" for suffix, count in suffixes.most_common(MAX_LISTED_FILES)]
        if len(suffixes) > MAX_LISTED_FILES:
            listed.append("others")
    return f"{counted(len(paths), 'file')} of unknown type: {', '.join(listed)}"


def _matches(glob: str) -> Iterator[str]:
    """Yield the files that a glob pattern matches.

    Wildcards match hidden names only if the pattern has one behind its first wildcard; ``**`` does
    not follow links to folders.
    """
    pattern = Path(glob) / "*" if glob.endswith("**") else Path(glob)  # the last one matches files
    literal_parts = len([*takewhile(lambda part: not has_magic(part), pattern.parts)])
    takes_hidden = any(part.startswith(".") for part in pattern.parts[literal_parts:])
    base = Path(pattern.anchor)
    for path in base.glob(str(pattern.relative_to(base))):
        is_hidden = any(part.startswith(".") for part in path.parts[literal_parts:])
        if path.is_file() and (takes_hidden or not is_hidden):
            yield str(path)


MAX_NAME_BYTES = 1 << 15  # bytes; Linux has at most 4,096 in a path, Windows 32,767
MAX_LIST_BYTES = 256 << 20  # bytes of all names, each with its Python object
OBJECT_BYTES = 64


def listed_files(path: str, *, null: bool) -> tuple[str, ...]:
    """Return the file names in a list, one per line or NUL-terminated; ``-`` is stdin.

    Raises InputError for an empty list, or for a file that is too large to be a list of names.
    """
    where = input_name(path)
    hint = f"{option('files_from')} reads names of files"

    def refuse(error: InputError) -> None:
        raise InputError(error.marked.replace("the record", "the name of a file"), hint) from None

    names: list[str] = []
    size = 0
    separator = b"\0" if null else b"\n"
    with open_bytes(path) as stream:
        for block in blocks(stream, where, separator, MAX_NAME_BYTES, refuse):
            for index, line in enumerate(block.lines):
                if block.number + index == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not null:
                    line = line.removesuffix(b"\r")
                if line:
                    names.append(os.fsdecode(line))
                    size += len(line) + OBJECT_BYTES
            if size > MAX_LIST_BYTES:
                raise InputError(f"{where}: {len(names):,} names of files are too many", hint)
    if not names:
        raise InputError(f"{where}: the list of files is empty", hint)
    return tuple(names)
