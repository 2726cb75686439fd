"""The options that say where texts come from."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from bertcli.cli.console import Console
from bertcli.errors import UsageError
from bertcli.records import Reader, Source

INPUT = "Input"

InputFormat = Literal["auto", "txt", "jsonl", "csv", "tsv", "parquet"]


# Options that several groups have.
TextField = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column or key of the text (default: text).",
        envvar="BERTCLI_TEXT_FIELD",
        rich_help_panel=INPUT,
    ),
]
IdField = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column or key of the id (default: id).",
        envvar="BERTCLI_ID_FIELD",
        rich_help_panel=INPUT,
    ),
]
KeepFields = Annotated[
    str | None,
    typer.Option(
        metavar="[NAMES]",
        help="Carry the other fields of the input to the output: all, or those named, a,b,c.",
        rich_help_panel=INPUT,
    ),
]
OnError = Annotated[
    Literal["fail", "skip"],
    typer.Option(
        help="Stop at a record that cannot be read, or report and skip it (exit code 1).",
        envvar="BERTCLI_ON_ERROR",
        rich_help_panel=INPUT,
    ),
]
Encoding = Annotated[
    str,
    typer.Option(help="Encoding of the input.", envvar="BERTCLI_ENCODING", rich_help_panel=INPUT),
]
EncodingErrors = Annotated[
    Literal["strict", "replace"],
    typer.Option(
        help="Bad bytes are an error, or become U+FFFD and are counted.",
        envvar="BERTCLI_ENCODING_ERRORS",
        rich_help_panel=INPUT,
    ),
]


def source_paths(files: list[str] | None, *, given: bool) -> tuple[str, ...]:
    """Return the files to read: those named, or stdin when nothing else is ``given``.

    Raises UsageError when stdin is a terminal: nobody means to type a corpus.
    """
    if files or given:
        return tuple(files or ())
    if sys.stdin is not None and sys.stdin.isatty():
        raise UsageError("nothing to read", "give it as arguments, name a file, or pipe it in")
    return ("-",)


@dataclass(frozen=True)
class InputOptions:
    """Where records come from."""

    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Texts; without any, --input or stdin is read."),
    ] = None
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="PATH",
            help="File to read, more than once if need be; - is stdin. .gz and .zst are unpacked.",
            rich_help_panel=INPUT,
        ),
    ] = None
    input_format: Annotated[
        InputFormat,
        typer.Option(help="auto goes by the suffix; stdin is txt.", rich_help_panel=INPUT),
    ] = "auto"
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Second sentence for a single TEXT.", rich_help_panel=INPUT
        ),
    ] = None
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File of sentence pairs: TSV of two columns without a header; or .csv, .jsonl, "
            ".parquet; - is stdin.",
            rich_help_panel=INPUT,
        ),
    ] = None
    text_field: TextField = None
    pair_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column or key of the second sentence (default: pair).",
            envvar="BERTCLI_PAIR_FIELD",
            rich_help_panel=INPUT,
        ),
    ] = None
    id_field: IdField = None
    keep_fields: KeepFields = None
    null: Annotated[
        bool,
        typer.Option(
            "--null", "-0", help="NUL ends a text, not a line end.", rich_help_panel=INPUT
        ),
    ] = False
    pre_split: Annotated[
        bool,
        typer.Option(
            "--pre-split",
            help="Texts are split into words: JSON lists, or by white space.",
            rich_help_panel=INPUT,
        ),
    ] = False
    on_error: OnError = "fail"
    encoding: Encoding = "utf-8"
    encoding_errors: EncodingErrors = "strict"

    def reader(self, console: Console, **changes: Any) -> Reader:
        """Return the reader of the texts, files or stdin that were given."""
        if self.pairs is not None and (self.input or self.texts):
            raise UsageError("--pairs stands alone", "give texts, --input or --pairs")
        if self.pair and len(self.pair) > 1:
            raise UsageError(
                f"--pair was given {len(self.pair)} times, but BERT takes at most two sentences",
                "give one TEXT and one --pair",
            )
        files = self.input if self.pairs is None else [self.pairs]
        paths = source_paths(files, given=bool(self.texts))
        asked = {
            "texts": tuple(self.texts or ()),
            "pair": self.pair[0] if self.pair else None,
            "paths": paths,
            "are_pairs": self.pairs is not None,
            "format": self.input_format,
            "text_field": self.text_field,
            "pair_field": self.pair_field,
            "id_field": self.id_field,
            "keep": self.keep_fields,
            "null": self.null,
            "pre_split": self.pre_split,
            "on_error": self.on_error,
            "encoding": self.encoding,
            "encoding_errors": self.encoding_errors,
        }
        return Reader(Source(**(asked | changes)), console.warn)
