"""The options of the commands for task heads: lengths, and inputs that are not texts or pairs."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ParseSpecial
from bertcli.cli.options.groups import INPUT, LAYOUT, OptionGroup, argument, number, option
from bertcli.cli.options.inputs import (
    Delimiter,
    Encoding,
    EncodingErrors,
    FileFormat,
    Files,
    FilesFrom,
    IdField,
    KeepFields,
    MaxRecordBytes,
    Null,
    OnError,
    SkipEmpty,
    Whole,
    fields_asked,
    named_source,
    reader_of,
)
from bertcli.errors import UsageError
from bertcli.files.streams import LARGEST_RECORD
from bertcli.records.reader import Reader
from bertcli.records.source import Source

MaxLength = Annotated[
    int | None,
    number(
        "Maximum tokens of a text or window (default: the model's limit).",
        low=3,
        envvar="BERTCLI_MAX_LENGTH",
    ),
]
TopK = Annotated[int, number("Number of results, best first.", "--top-k", "-k")]


class MaskOptions(OptionGroup):
    """How long texts with masks are."""

    PANEL: ClassVar = LAYOUT

    max_length: MaxLength = None


class CutOptions(MaskOptions):
    """How long texts are."""

    parse_special: ParseSpecial = True


class StrideOptions(MaskOptions):
    """How long texts or their windows are."""

    stride: Annotated[
        int | None, number("Split long texts into windows that share N tokens.", low=0)
    ] = None
    parse_special: ParseSpecial = True


class TaskFileOptions(OptionGroup):
    """Where records with other fields than text and pair are read from."""

    PANEL: ClassVar = INPUT

    input: Files = None
    files_from: FilesFrom = None
    input_format: FileFormat = "auto"
    whole: Whole = False
    delimiter: Delimiter = ","
    skip_empty: SkipEmpty = False
    id_field: IdField = None
    keep_fields: KeepFields = None
    null: Null = False
    on_error: OnError = "fail"
    encoding: Encoding = "utf-8"
    encoding_errors: EncodingErrors = "strict"
    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def source(self, *, given: bool, objects: bool, **changes: Any) -> Source:
        """Return the source: files or stdin, unless texts are ``given``.

        Stdin is JSONL where records are ``objects``.
        """
        asked = {"asked": fields_asked(self, "id_field", "keep_fields")}
        source = named_source(self, self.input, given=given, **(asked | changes))
        jsonl = objects and source.format == "auto" and source.paths == ("-",)
        return replace(source, format="jsonl") if jsonl else source

    def text_source(self, own: Any, **changes: Any) -> Source:
        """Return the source of single texts: those among a command's ``own`` options, or files."""
        texts, asked = tuple(own.texts or ()), fields_asked(own, "text_field")
        asked += fields_asked(self, "id_field", "keep_fields")
        about = {"texts": texts, "text_field": own.text_field, "single": True, "asked": asked}
        return self.source(given=bool(texts), objects=False, **(about | changes))


class QuestionOptions(OptionGroup):
    """Questions and contexts."""

    question: Annotated[
        str | None, option("Question for the context, or for every text of the input.", "TEXT")
    ] = None
    context: Annotated[str | None, option("Context for every question.", "TEXT")] = None
    question_field: Annotated[
        str, option("Column or key of the question.", "NAME", panel=INPUT)
    ] = "question"
    context_field: Annotated[str, option("Column or key of the context.", "NAME", panel=INPUT)] = (
        "context"
    )

    @property
    def both(self) -> bool:
        """Whether both are given, so that no input is read."""
        return self.question is not None and self.context is not None

    def reader(self, files: TaskFileOptions, console: Console) -> Reader:
        """Return the reader of questions, of contexts, or of both."""
        texts = (self.question,) if self.both else ()
        flags = {self.question_field: "--question-field", self.context_field: "--context-field"}
        changes: dict[str, Any] = {
            "texts": texts,
            "text_field": self.question_field,
            "flags": flags,
            "single": not self.both,
            "asked": (
                *fields_asked(files, "id_field", "keep_fields"),
                *(flag for name, flag in flags.items() if name not in ("question", "context")),
            ),
        }
        if self.both:
            changes["pair"] = self.context
        elif self.question is not None:
            changes["text_field"] = self.context_field
        elif self.context is None:
            changes |= {"pair_field": self.context_field, "single": False}
        objects = self.question is None and self.context is None
        source = files.source(given=self.both, objects=objects, **changes)
        return reader_of(source, console, [*filter(None, (self.question, self.context))])


class ChoiceOptions(OptionGroup):
    """Prompts and choices."""

    PANEL: ClassVar = INPUT

    texts: Annotated[
        list[str] | None,
        argument("A prompt and its choices (default: read --input or stdin).", "PROMPT CHOICE..."),
    ] = None
    prompt_field: Annotated[str, option("Column or key of the prompt.", "NAME")] = "prompt"
    choices_field: Annotated[str, option("Column or key of the list of choices.", "NAME")] = (
        "choices"
    )

    @property
    def given(self) -> tuple[str, ...]:
        """The choices among the arguments."""
        return tuple(self.texts or ())[1:]

    def reader(self, files: TaskFileOptions, console: Console) -> Reader:
        """Return the reader of prompts, whose extra fields hold the choices."""
        if self.texts and len(self.given) < 2:
            raise UsageError(
                "choose needs a prompt and at least two choices",
                "give PROMPT CHOICE CHOICE..., or --input FILE",
            )
        keep = files.keep_fields
        changes: dict[str, Any] = {"texts": tuple(self.texts or ())[:1], "single": True}
        if not self.texts:
            changes["text_field"] = self.prompt_field
            changes["flags"] = {
                self.prompt_field: "--prompt-field",
                self.choices_field: "--choices-field",
            }
            names = ",".join(filter(None, (keep, self.choices_field)))
            changes["keep"] = keep if keep == "*" else names
        source = files.source(given=bool(self.texts), objects=True, **changes)
        return reader_of(source, console, self.texts or ())
