"""The options of `bertcli tokenize` alone."""

from typing import Annotated, ClassVar, Literal

from bertcli.cli.options.common import ParseSpecial, SpecialTokens
from bertcli.cli.options.groups import LAYOUT, OptionGroup, flag, number, option, record
from bertcli.errors import UsageError
from bertcli.tokenizing.columns import Layout, strategies

Padding = Literal["longest", "max_length", "do_not_pad", "true", "false"]
Truncation = Literal[
    "longest_first", "only_first", "only_second", "do_not_truncate", "true", "false"
]
Side = Literal["left", "right"]


class FieldOptions(OptionGroup):
    """The fields of a record."""

    PANEL: ClassVar = "Fields"

    token_type_ids: Annotated[
        bool, flag("--token-type-ids/--no-token-type-ids", "0 for the text, 1 for its pair.")
    ] = True
    attention_mask: Annotated[
        bool, flag("--attention-mask/--no-attention-mask", "1 for tokens, 0 for padding.")
    ] = True
    tokens: Annotated[bool, flag("--tokens", "The tokens.")] = False
    offset_mapping: Annotated[
        bool, flag("--offsets", "Start and end of each token in its text.")
    ] = False
    offset_unit: Annotated[Literal["char", "byte", "utf16"], option("Unit of the offsets.")] = (
        "char"
    )
    word_ids: Annotated[bool, flag("--word-ids", "The word that each token belongs to.")] = False
    sequence_ids: Annotated[bool, flag("--sequence-ids", "0 for the text, 1 for its pair.")] = False
    special_tokens_mask: Annotated[
        bool, flag("--special-tokens-mask", "1 for [CLS], [SEP] and [PAD].")
    ] = False
    length: Annotated[bool, flag("--length", "The number of tokens.")] = False
    text: Annotated[bool, flag("--text", "The text and its pair.")] = False
    overflowing: Annotated[bool, flag("--overflowing", "One record per window of a long text.")] = (
        False
    )
    ragged: Annotated[
        bool,
        flag("--ragged", "npz and safetensors: one flat input_ids for all texts, and offsets."),
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
        return tuple(name for name, is_chosen in chosen.items() if is_chosen)


class LayoutOptions(OptionGroup):
    """Truncation, padding and special tokens."""

    PANEL: ClassVar = LAYOUT

    max_length: Annotated[
        int | None,
        number(
            "Truncate or pad to N tokens; alone, it truncates. Default: the model's limit.",
            envvar="BERTCLI_MAX_LENGTH",
        ),
    ] = None
    truncation: Annotated[
        Truncation | None,
        option(
            "Truncate longer texts (default: do not). true is longest_first, false "
            "do_not_truncate.",
            "STRATEGY",
            envvar="BERTCLI_TRUNCATION",
        ),
    ] = None
    truncation_side: Annotated[Side | None, option("Side to truncate (default: right).")] = None
    padding: Annotated[
        Padding | None,
        option(
            "Pad shorter texts (default: do not). true is longest, false do_not_pad.",
            "STRATEGY",
            envvar="BERTCLI_PADDING",
        ),
    ] = None
    padding_side: Annotated[Side | None, option("Side to pad (default: right).")] = None
    pad_to_multiple_of: Annotated[int | None, number("Pad to a multiple of N.")] = None
    stride: Annotated[
        int, number("Tokens shared by neighbouring windows (--overflowing).", low=0)
    ] = 0
    special_tokens: SpecialTokens = True
    parse_special: ParseSpecial = True
    window: Annotated[int, number("Number of records that --padding longest pads together.")] = (
        10_000
    )

    def layout(self, fields: FieldOptions, columns: tuple[str, ...]) -> Layout:
        """Return the layout of these options."""
        padding, truncation = strategies(
            self.padding, self.truncation, self.max_length, overflowing=fields.overflowing
        )
        return record(Layout, self, fields, columns=columns, padding=padding, truncation=truncation)


class ModeOptions(OptionGroup):
    """Output other than token ids."""

    PANEL: ClassVar = "Other output"

    from_tokens: Annotated[
        bool, flag("--from-tokens", "The arguments are tokens; print their ids.")
    ] = False
    count: Annotated[bool, flag("--count", "Print only the number of tokens.")] = False
    stats: Annotated[
        bool,
        flag(
            "--stats",
            "Print one summary of all texts: lengths, unknown words, texts that would be "
            "truncated.",
        ),
    ] = False
    per_file: Annotated[
        bool, flag("--per-file", "With --count or --stats: a result per input file, and the total.")
    ] = False

    def __post_init__(self) -> None:
        if self.from_tokens + self.count + self.stats > 1:
            raise UsageError("--from-tokens, --count and --stats cannot be combined")
        if self.per_file and not (self.count or self.stats):
            raise UsageError("--per-file requires --count or --stats")

    @property
    def is_summary(self) -> bool:
        """Whether what is written comes at the end of the input."""
        return self.stats or self.per_file
