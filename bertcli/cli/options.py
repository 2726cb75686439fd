"""The options that commands share, in groups, and what turns a group into options.

A command takes groups as parameters: `def tokenize(model: ModelOptions, ...)`. Typer sees an option
for each field. Annotations stay real objects here, since Typer reads them at each start.
"""

import gc
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from bertcli.cli.console import Console, stdout_is_terminal
from bertcli.encoding import Layout, strategies
from bertcli.errors import UsageError
from bertcli.hub import DEFAULT_MODEL, TOKENIZER_FILES, ModelFolder, find_model, known_models
from bertcli.tokenizer import Tokenizer

MODEL, LAYOUT, OUTPUT = "Model", "Length and special tokens", "Output"

Padding = Literal["longest", "max_length", "do_not_pad", "true", "false"]
Truncation = Literal[
    "longest_first", "only_first", "only_second", "do_not_truncate", "true", "false"
]
Side = Literal["left", "right"]


# Options that several groups have.
SpecialTokens = Annotated[
    bool,
    typer.Option(
        "--special-tokens/--no-special-tokens",
        help="Add [CLS] and [SEP].",
        rich_help_panel=LAYOUT,
    ),
]
ParseSpecial = Annotated[
    bool,
    typer.Option(
        "--parse-special/--no-parse-special",
        help='Whether a literal "[SEP]" in a text becomes that token.',
        envvar="BERTCLI_PARSE_SPECIAL",
        rich_help_panel=LAYOUT,
    ),
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with its parameters, groups of options all, spread out."""
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    spread = {name: [field.name for field in fields(group)] for name, group in hints.items()}

    @wraps(function)
    def run(**values: Any) -> None:
        gc.freeze()
        gc.enable()  # off while the program starts
        function(
            **{
                name: group(**{field: values[field] for field in spread[name]})
                for name, group in hints.items()
            }
        )

    parameters = [parameter for hint in hints.values() for parameter in _parameters(hint)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    for field in fields(group):
        empty = inspect.Parameter.empty
        default = empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
        )


def _complete_model(incomplete: str) -> list[str]:
    return [name for name in known_models() if name.startswith(incomplete)]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and where it may come from."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A folder, or a hub id such as bert-base-uncased.",
            envvar="BERTCLI_MODEL",
            autocompletion=_complete_model,
            rich_help_panel=MODEL,
        ),
    ] = DEFAULT_MODEL
    revision: Annotated[
        str | None,
        typer.Option(
            help="Branch, tag or commit on the hub.",
            envvar="BERTCLI_REVISION",
            rich_help_panel=MODEL,
        ),
    ] = None
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Never touch the network.",
            envvar="BERTCLI_OFFLINE",
            rich_help_panel=MODEL,
        ),
    ] = False

    def folder(self) -> ModelFolder:
        """Return where the tokenizer's files are; they are fetched when they are not there."""
        return find_model(
            self.model, files=TOKENIZER_FILES, revision=self.revision, offline=self.offline
        )

    def tokenizer(self, console: Console, *, parse_special: bool = True) -> Tokenizer:
        """Return the tokenizer of the model."""
        folder = self.folder()
        console.detail(f"model: {folder.path} ({folder.source})")
        tokenizer = Tokenizer.load(folder.path, parse_special=parse_special)
        for warning in tokenizer.warnings:
            console.warn(warning)
        return tokenizer


@dataclass(frozen=True)
class LayoutOptions:
    """How long the sequences are made."""

    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Length to cut or pad to; alone, it turns truncation on. Default: the model's.",
            envvar="BERTCLI_MAX_LENGTH",
            rich_help_panel=LAYOUT,
        ),
    ] = None
    truncation: Annotated[
        Truncation | None,
        typer.Option(
            metavar="WHAT",
            help="Cut what is too long: longest_first (or true), only_first, only_second, "
            "do_not_truncate (false). Default: do not.",
            envvar="BERTCLI_TRUNCATION",
            rich_help_panel=LAYOUT,
        ),
    ] = None
    truncation_side: Annotated[
        Side | None,
        typer.Option(help="Where it is cut (default: right).", rich_help_panel=LAYOUT),
    ] = None
    padding: Annotated[
        Padding | None,
        typer.Option(
            metavar="HOW",
            help="Fill up with [PAD]: longest (or true), max_length, do_not_pad (false). "
            "Default: do not.",
            envvar="BERTCLI_PADDING",
            rich_help_panel=LAYOUT,
        ),
    ] = None
    padding_side: Annotated[
        Side | None,
        typer.Option(help="Where it is filled up (default: right).", rich_help_panel=LAYOUT),
    ] = None
    pad_to_multiple_of: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Pad to a multiple of this.", rich_help_panel=LAYOUT),
    ] = None
    stride: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Tokens that neighbouring windows share (--overflowing).",
            rich_help_panel=LAYOUT,
        ),
    ] = 0
    special_tokens: SpecialTokens = True
    parse_special: ParseSpecial = True

    def layout(self, columns: tuple[str, ...], *, overflowing: bool, offset_unit: str) -> Layout:
        """Return the layout that these options ask for."""
        padding, truncation = strategies(
            self.padding, self.truncation, self.max_length, overflowing=overflowing
        )
        return Layout(
            columns=columns,
            special_tokens=self.special_tokens,
            max_length=self.max_length,
            truncation=truncation,
            truncation_side=self.truncation_side,
            padding=padding,
            padding_side=self.padding_side,
            pad_to_multiple_of=self.pad_to_multiple_of,
            stride=self.stride,
            overflowing=overflowing,
            offset_unit=offset_unit,
        )


@dataclass(frozen=True)
class OutputOptions:
    """Where the result goes, and in what form."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File to write (default, and -: stdout); its suffix sets the format. It appears "
            "whole or not at all.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    format: Annotated[
        Literal[
            "auto", "table", "jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet", "txt"
        ],
        typer.Option(
            "--format",
            "-f",
            help="auto: for people on a terminal, JSONL in a pipe or file.",
            rich_help_panel=OUTPUT,
        ),
    ] = "auto"
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace an existing file.", rich_help_panel=OUTPUT),
    ] = False

    @property
    def on_terminal(self) -> bool:
        """Whether the result goes to a terminal."""
        return self.output is None and stdout_is_terminal()

    def __post_init__(self) -> None:
        if self.output == Path("-"):
            object.__setattr__(self, "output", None)  # stdout, as `-i -` is stdin

    def form(self, *, piped: str = "jsonl", terminal: str = "table") -> str:
        """Return the format to write: as asked, by the suffix, or by who reads stdout."""
        from bertcli.writers import format_of

        if self.format == "table" and self.output is not None:
            raise UsageError("a table is for a terminal, not for a file", "leave out --output")
        if self.format != "auto":
            return self.format
        if self.output is not None:
            return format_of(self.output)
        return terminal if stdout_is_terminal() else piped

    def open(self, form: str) -> AbstractContextManager[Callable[..., None]]:
        """Open the writer of a format."""
        from bertcli.writers import TENSORS, open_writer

        if self.on_terminal and form in (*TENSORS, "parquet"):
            raise UsageError(f"{form} is not for a terminal", "give -o FILE, or pipe it on")
        return open_writer(self.output, form, overwrite=self.overwrite)


@dataclass(frozen=True)
class ConsoleOptions:
    """What is said on stderr."""

    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="No notes, warnings or progress.", envvar="BERTCLI_QUIET"
        ),
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what was chosen and found.")
    ] = False

    def console(self) -> Console:
        """Return what writes messages to stderr."""
        return Console(quiet=self.quiet, verbose=self.verbose)
