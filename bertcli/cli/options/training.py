"""The options of commands that train, or that read examples or write a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bertcli.cli.options.common import complete_device
from bertcli.cli.options.groups import (
    COMPUTE,
    INPUT,
    OUTPUT,
    OptionGroup,
    decimal,
    flag,
    number,
    option,
)
from bertcli.cli.options.inputs import (
    DELIMITER,
    ENCODING,
    ENCODING_ERRORS,
    FORMAT_OF_FILES,
    ON_ERROR,
    field_option,
)
from bertcli.errors import UsageError
from bertcli.files.typed_json import is_text
from bertcli.records.examples import TASKS, FieldNames, examples_source
from bertcli.records.source import Source
from bertcli.training.options import TrainingOptions

WARMUP_STEPS = number(
    "Steps in which the learning rate rises from 0 (default: a tenth of all steps).", low=0
)
WEIGHT_DECAY = decimal("Weight decay of AdamW; biases and LayerNorm are excluded.")
MAX_GRAD_NORM = decimal("Clip gradients to this norm; 0: never.")
SEED = number(
    "Random seed: new weights, order, dropout, held-out examples.", low=0, envvar="BERTCLI_SEED"
)


def run_folder(metavar: str) -> Any:
    """Return the option of the folder of a run."""
    about = "Folder for the model, checkpoints and log."
    return option(about, metavar, "--output", "-o", kind=Path, panel=OUTPUT)


class SavingOptions(OptionGroup, panel=OUTPUT, of=TrainingOptions):
    """Checkpoints and existing runs."""

    save_every = number("Steps between checkpoints.")
    keep = number("Number of checkpoints to keep.")
    resume = flag("Resume from the last checkpoint, if any.")
    overwrite = flag("Start over and replace an existing run.")


class DeviceOptions(OptionGroup, panel=COMPUTE, of=TrainingOptions):
    """Device, precision and memory."""

    device = option(
        "auto (the best available), cpu, cuda, cuda:N, mps or xpu; with torchrun, one GPU per "
        "process.",
        default="auto",
        envvar="BERTCLI_DEVICE",
        complete=complete_device,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "Compute precision (autocast); weights stay float32. auto: float32.",
        default="auto",
        envvar="BERTCLI_DTYPE",
    )
    threads = number("CPU threads (default: all cores).", envvar="BERTCLI_THREADS")
    gradient_accumulation_steps = number(
        "Split each batch into N parts: the same result with less memory."
    )
    gradient_checkpointing = flag(
        "Recompute activations in the backward pass: the same result with less memory."
    )

    @property
    def precision(self) -> str:
        """The compute precision."""
        return "float32" if self.dtype == "auto" else self.dtype


def extra_option(about: str) -> Any:
    """Return an option that takes NAME=FIELD, see `extra_fields`."""
    return option(f"{about}; repeatable.", "NAME=FIELD", kind=list[str] | None)


def extra_fields(options: Sequence[str] | None) -> dict[str, str]:
    """Return extra embedding -> field of its ids, of options NAME=FIELD.

    Raises UsageError for a name that cannot be one, or that is given twice.
    """
    fields: dict[str, str] = {}
    for text in options or ():
        name, _, field = text.partition("=")
        if not (name.isidentifier() and field):
            raise UsageError(
                f"--extra {text}: NAME=FIELD expected", "for example --extra emotion=emotion_ids"
            )
        if name in fields:
            raise UsageError("--extra names an embedding twice")
        fields[name] = field
    return fields


class ExampleOptions(OptionGroup, panel=INPUT, of=Source):
    """What examples are for, and how they are read."""

    task = option(
        f"Kind of task: {', '.join(TASKS)} (default: by the fields).",
        "TASK",
        complete=lambda incomplete: [name for name in TASKS if name.startswith(incomplete)],
    )
    text_field = field_option("Name of the field text, words, question or anchor.")
    pair_field = field_option("Name of the field pair, context or positive.")
    label_field = field_option(
        "Name of the field label, labels, score, tags or answer. Without --task, a list "
        "is labels (of words: tags), a number with a decimal point a score."
    )
    input_format = FORMAT_OF_FILES
    delimiter = DELIMITER
    on_error = ON_ERROR
    encoding = ENCODING
    encoding_errors = ENCODING_ERRORS

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


class FolderOptions(OptionGroup, panel=OUTPUT):
    """The output folder."""

    output: Path = option(
        "Output folder. Written completely or not at all.", "DIR", "--output", "-o"
    )
    overwrite = flag("Replace a folder that this command wrote.")

    def __post_init__(self) -> None:
        """Refuse a name that tokenizers could not open afterwards."""
        if not is_text(str(self.output)):
            raise UsageError(f"--output {str(self.output)!r} is not UTF-8", "choose another name")
