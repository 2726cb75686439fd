"""The options of files of examples, which `train` and `evaluate` read."""

from typing import Annotated, ClassVar

from bertcli.cli.options.groups import INPUT, OptionGroup, option
from bertcli.cli.options.inputs import (
    Delimiter,
    Encoding,
    EncodingErrors,
    FileFormat,
    OnError,
    field_option,
)
from bertcli.errors import UsageError
from bertcli.records.example_forms import TASKS, FieldNames
from bertcli.records.examples import examples_source
from bertcli.records.source import Source


class ExampleOptions(OptionGroup):
    """What examples are for, and how they are read."""

    PANEL: ClassVar = INPUT

    task: Annotated[
        str | None,
        option(
            f"Kind of task: {', '.join(TASKS)} (default: by the fields).",
            "TASK",
            complete=lambda incomplete: [name for name in TASKS if name.startswith(incomplete)],
        ),
    ] = None
    text_field: Annotated[
        str | None, field_option("Name of the field text, words, question or anchor.")
    ] = None
    pair_field: Annotated[
        str | None, field_option("Name of the field pair, context or positive.")
    ] = None
    label_field: Annotated[
        str | None,
        field_option(
            "Name of the field label, labels, score, tags or answer. Without --task, a list "
            "is labels (of words: tags), a number with a decimal point a score."
        ),
    ] = None
    input_format: FileFormat = "auto"
    delimiter: Delimiter = ","
    on_error: OnError = "fail"
    encoding: Encoding = "utf-8"
    encoding_errors: EncodingErrors = "strict"

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise UsageError(f"unknown --task {self.task}", f"one of {', '.join(TASKS)}")

    @property
    def fields(self) -> FieldNames:
        """The fields that are named."""
        return FieldNames(self.text_field, self.pair_field, self.label_field)

    def source(self, path: str) -> Source:
        """Return the source of a file of examples or texts."""
        return examples_source(
            path,
            text_field=self.text_field,
            format=self.input_format,
            delimiter=self.delimiter,
            on_error=self.on_error,
            encoding=self.encoding,
            encoding_errors=self.encoding_errors,
        )
