"""The options of `bertcli chunk`."""

from typing import Annotated, ClassVar

from bertcli.cli.display.console import Console
from bertcli.cli.options.common import At, Overlap, ParseSpecial, SpecialTokens
from bertcli.cli.options.groups import INPUT, LAYOUT, OptionGroup, flag, number
from bertcli.cli.options.inputs import TextField, Texts, note_files
from bertcli.cli.options.task import TaskFileOptions
from bertcli.records.reader import Reader


class ChunkTextOptions(OptionGroup):
    """The texts to divide."""

    PANEL: ClassVar = INPUT

    texts: Texts = None
    text_field: TextField = None

    def reader(self, files: TaskFileOptions, console: Console, taken: frozenset[str]) -> Reader:
        """Return the reader of the texts, files or stdin that were given."""
        note_files(self.texts or (), console)
        return Reader(files.text_source(self, taken=taken), console.warn, console.note)


class ChunkOptions(OptionGroup):
    """How texts are divided."""

    PANEL: ClassVar = LAYOUT

    max_length: Annotated[
        int | None,
        number(
            "Tokens of a chunk, at most (default: the model's limit).", envvar="BERTCLI_MAX_LENGTH"
        ),
    ] = None
    overlap: Overlap = 0
    at: At = "token"
    first: Annotated[bool, flag("--first", "Only the first chunk of each text: truncate it.")] = (
        False
    )
    special_tokens: SpecialTokens = True
    parse_special: ParseSpecial = True
