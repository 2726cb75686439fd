"""The options of inputs: texts, files, formats and fields."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from bertcli.cli.display.console import Console, stdin_is_terminal
from bertcli.cli.options.common import complete_field
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, flag, number, option, record
from bertcli.errors import UsageError
from bertcli.files.writers import TENSORS
from bertcli.records.reader import Reader
from bertcli.records.source import Source, listed_files

InputFormat = Literal["auto", "txt", "jsonl", "json", "csv", "tsv", "parquet"]


def field_option(about: str, envvar: str | None = None, default: str | None = None) -> Any:
    """Return an option that names a field of the input."""
    return option(about, "NAME", default=default, envvar=envvar, complete=complete_field)


# Options that several groups have.
TEXTS = argument("Texts (default: read --input or stdin).", "TEXT...")
FORMAT_OF_FILES = option("auto: by the suffix.", default="auto", kind=InputFormat)
TEXT_FIELD = field_option("Column or key of the text (default: text).", "BERTCLI_TEXT_FIELD")
ID_FIELD = field_option("Column or key of the id (default: id).", "BERTCLI_ID_FIELD")
KEEP_FIELDS = option(
    "Copy other fields of the input to the output: all, or those named: a,b,c. A field that "
    "the output already has is an error.",
    "[NAMES]",
    complete=complete_field,
)
WHOLE = flag("Each file is one text, as those in .md, .markdown and .rst are.")
DELIMITER = option("Delimiter of csv.", "C")
SKIP_EMPTY = flag("Leave out empty texts, and count them.")
ON_ERROR = option(
    "Stop at a bad record, or report and skip it (exit code 1 at the end).",
    envvar="BERTCLI_ON_ERROR",
)
MAX_RECORD_BYTES = number(
    "Maximum size of a record in bytes, after decompression.", envvar="BERTCLI_MAX_RECORD_BYTES"
)
ENCODING = option("Encoding of the input.", envvar="BERTCLI_ENCODING")
ENCODING_ERRORS = option(
    "Bad bytes are an error, or replaced by U+FFFD and counted.",
    "ACTION",
    envvar="BERTCLI_ENCODING_ERRORS",
)
FILES = option(
    "File, folder or quoted glob, repeatable; - is stdin. A folder stands for its files with "
    "known suffixes, recursively. .gz and .zst are decompressed.",
    "PATH",
    "--input",
    "-i",
    kind=list[str] | None,
)
FILES_FROM = option(
    "Read the files listed in FILE, one per line (NUL-delimited with -0); - is stdin.", "FILE"
)
NULL = flag("Texts, or the names in --files-from, are NUL-delimited.", "--null", "-0")


def source_paths(
    files: list[str] | None, *, given: bool, listed: str | None = None, null: bool = False
) -> tuple[str, ...]:
    """Return what to read: what was named or ``listed``, or stdin when nothing else is ``given``.

    Raises UsageError when stdin is a terminal, or holds both texts and names of files.
    """
    if listed is not None:
        if listed == "-" and "-" in (files or ()):
            raise UsageError("--files-from - cannot be combined with --input -")
        if given:
            raise UsageError("--files-from cannot be combined with TEXT")
        return (*(files or ()), *listed_files(listed, null=null))
    if files or given:
        return tuple(files or ())
    if stdin_is_terminal():
        raise UsageError("no input", "give TEXT, -i FILE, or pipe text in")
    return ("-",)


def source_of(
    *groups: OptionGroup, named: list[str] | None = None, objects: bool = False, **values: Any
) -> Source:
    """Return the source that these options describe: texts, files or stdin.

    ``named`` are the files, where no option is --input; of ``objects`` stdin is JSONL. ``values``
    are the fields of the source that have no option of their name.
    """
    options = {name: value for group in groups for name, value in vars(group).items()}
    texts = tuple(values.get("texts", options.get("texts")) or ())
    listed, null = options.get("files_from"), options.get("null", False)
    files = named or options.get("input")
    paths = source_paths(files, given=bool(texts), listed=listed, null=null)
    form = "whole" if options.get("whole") else options.get("input_format", "auto")
    usual = {
        "texts": texts,
        "paths": paths,
        "list_file": listed,
        "null": null and listed is None,  # else it is of the list of names
        "format": "jsonl" if objects and form == "auto" and paths == ("-",) else form,
        "keep": options.get("keep_fields"),
        "asked": fields_asked(options),
    }
    return record(Source, *groups, **(usual | values))


def reader_of(source: Source, console: Console, texts: Sequence[str] = ()) -> Reader:
    """Return the reader of a source, and say which of these texts are also files.

    Perhaps they were to be read.
    """
    files = []
    for text in texts:
        is_path = os.path.basename(text) != text  # not by chance a folder, as a single word may be
        if os.path.isfile(text) or (is_path and os.path.isdir(text)):
            files.append(text)
    if files:
        are = "is also a file" if len(files) == 1 else f"and {len(files) - 1} more are also files"
        console.note(f"`{files[0]}` {are}; -i reads {'it' if len(files) == 1 else 'them'}")
    return Reader(source, console.warn, console.note)


NAMES_OF_FIELDS = ("query_field", "text_field", "pair_field", "id_field", "keep_fields")


def fields_asked(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that name fields; what the environment sets asks for none."""
    return tuple(
        f"--{name.replace('_', '-')}"
        for name in NAMES_OF_FIELDS
        if (value := options.get(name)) not in (None, "*")
        and os.environ.get(f"BERTCLI_{name.upper()}") != value
    )


class InputOptions(OptionGroup, panel=INPUT, of=Source):
    """Where records are read from."""

    texts: list[str] | None = TEXTS
    input = FILES
    files_from = FILES_FROM
    input_format = option(
        "auto: by the suffix; stdin is txt, or JSONL if it begins with an object.",
        default="auto",
        kind=InputFormat,
    )
    whole = WHOLE
    delimiter = DELIMITER
    skip_empty = SKIP_EMPTY
    pair: list[str] | None = option("Second sentence for a single TEXT.", "TEXT")
    pairs = option(
        "File of sentence pairs; - is stdin. TSV with two columns and no header, or .csv, "
        ".jsonl, .parquet.",
        "PATH",
    )
    text_field = TEXT_FIELD
    pair_field = field_option(
        "Column or key of the second sentence (default: pair).", "BERTCLI_PAIR_FIELD"
    )
    id_field = ID_FIELD
    keep_fields = KEEP_FIELDS
    null = NULL
    pre_split = flag("Texts are already split into words: JSON lists, or separated by white space.")
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS
    max_record_bytes = MAX_RECORD_BYTES

    def refuse_kept_fields(self, form: str) -> None:
        """Raise UsageError for --keep-fields where a format of arrays has no place for them."""
        if self.keep_fields and form in TENSORS:
            raise UsageError(
                f"{form} cannot hold the fields of --keep-fields", "use -f jsonl, csv or parquet"
            )

    def reader(self, console: Console, **changes: Any) -> Reader:
        """Return the reader of the texts, files or stdin that were given."""
        texts = (*(self.texts or ()), *(self.pair or ()))
        return reader_of(self.source(**changes), console, texts)

    def source(self, **changes: Any) -> Source:
        """Return the texts, files or stdin that were given."""
        if self.pair and len(self.pair) > 1:
            raise UsageError(
                f"--pair was given {len(self.pair)} times, but BERT takes at most two sentences",
                "give one TEXT and one --pair",
            )
        return source_of(
            self,
            named=None if self.pairs is None else [self.pairs],
            pair=self.pair[0] if self.pair else None,
            are_pairs=self.pairs is not None,
            **changes,
        )


class TaskFileOptions(OptionGroup, panel=INPUT, of=Source):
    """Where records with other fields than text and pair are read from."""

    input = FILES
    files_from = FILES_FROM
    input_format = FORMAT_OF_FILES
    whole = WHOLE
    delimiter = DELIMITER
    skip_empty = SKIP_EMPTY
    id_field = ID_FIELD
    keep_fields = KEEP_FIELDS
    null = NULL
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS
    max_record_bytes = MAX_RECORD_BYTES
