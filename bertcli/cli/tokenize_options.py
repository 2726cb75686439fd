"""The options of `bertcli tokenize` alone."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from bertcli.errors import UsageError

FIELDS, MODES = "Fields", "Instead of tokens"


def _flag(name: str, about: str, panel: str = FIELDS) -> Any:
    return typer.Option(name, help=about, rich_help_panel=panel)


@dataclass(frozen=True)
class FieldOptions:
    """Which fields a record has."""

    token_type_ids: Annotated[
        bool, _flag("--token-type-ids/--no-token-type-ids", "0 for the text, 1 for its pair.")
    ] = True
    attention_mask: Annotated[
        bool, _flag("--attention-mask/--no-attention-mask", "1 for tokens, 0 for padding.")
    ] = True
    tokens: Annotated[bool, _flag("--tokens", "The tokens.")] = False
    offset_mapping: Annotated[bool, _flag("--offsets", "Where each token stands in its text.")] = (
        False
    )
    offset_unit: Annotated[
        Literal["char", "byte", "utf16"],
        typer.Option(help="What offsets count.", rich_help_panel=FIELDS),
    ] = "char"
    word_ids: Annotated[bool, _flag("--word-ids", "Which word each token is of.")] = False
    sequence_ids: Annotated[bool, _flag("--sequence-ids", "0 for the text, 1 for its pair.")] = (
        False
    )
    special_tokens_mask: Annotated[
        bool, _flag("--special-tokens-mask", "1 for [CLS], [SEP] and [PAD].")
    ] = False
    length: Annotated[bool, _flag("--length", "The number of tokens.")] = False
    text: Annotated[bool, _flag("--text", "The text and its pair.")] = False
    overflowing: Annotated[
        bool, _flag("--overflowing", "A record for every window of a text that is too long.")
    ] = False

    def columns(self) -> tuple[str, ...]:
        """Return the columns that are written."""
        names = (
            "token_type_ids",
            "attention_mask",
            "special_tokens_mask",
            "tokens",
            "offset_mapping",
            "word_ids",
            "sequence_ids",
        )
        return ("input_ids", *(name for name in names if getattr(self, name)))

    def extra(self) -> tuple[str, ...]:
        """Return the fields that are written and are not columns."""
        chosen = {
            "length": self.length,
            "text": self.text,
            "overflow_to_sample_mapping": self.overflowing,
        }
        return tuple(name for name, wanted in chosen.items() if wanted)


@dataclass(frozen=True)
class ModeOptions:
    """What is made of the tokens."""

    from_tokens: Annotated[
        bool, _flag("--from-tokens", "The arguments are tokens: print their ids.", MODES)
    ] = False
    count: Annotated[bool, _flag("--count", "Only the number of tokens.", MODES)] = False
    stats: Annotated[
        bool, _flag("--stats", "One summary: lengths, unknown words, what would be cut.", MODES)
    ] = False
    window: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Records that --padding longest makes equally long together.",
            rich_help_panel="Length and special tokens",
        ),
    ] = 10_000

    def __post_init__(self) -> None:
        if self.from_tokens + self.count + self.stats > 1:
            raise UsageError("--from-tokens, --count and --stats exclude each other")
