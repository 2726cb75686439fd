"""`bertcli tag`: entities in texts, such as names and places."""

from typing import Annotated, Literal

from bertcli.cli.commands.task_run import open_head, write
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import OptionGroup, option
from bertcli.cli.options.inputs import InputOptions
from bertcli.cli.options.task import StrideOptions


class EntityOptions(OptionGroup):
    """How entities are found."""

    aggregation: Annotated[
        Literal["none", "simple", "first", "average", "max"],
        option(
            "How tokens are merged into entities. none: not at all; simple: neighbours with the "
            "same label; first, average, max: each word gets one label before.",
            "STRATEGY",
            envvar="BERTCLI_AGGREGATION",
        ),
    ] = "simple"
    ignore_labels: Annotated[str, option("Labels to leave out.", "L1,L2,...")] = "O"


def tag(
    source: InputOptions,
    model: ModelOptions,
    entities: EntityOptions,
    length: StrideOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Find entities in texts, with label, score and character offsets.

    $ bertcli tag 'Angela lives in Berlin.' -m dslim/bert-base-NER
    $ bertcli tag -i articles.jsonl --stride 32 -m dslim/bert-base-NER -o tags.jsonl

    Only entities in the text are returned; its pair, if any, serves as context.
    """
    console = messages.console()
    form, reader = output.form(), source.reader(console)
    head = open_head("BertForTokenClassification", model, length, compute, console)
    from bertcli.tasks.tag import TagTask

    ignored = tuple(label for label in entities.ignore_labels.split(",") if label)
    task = TagTask(head, entities.aggregation, ignored)
    console.detail(f"labels: {', '.join(head.labels)}")
    write(task.stream(reader), output, form, model, console, "--stride N tags all of them")
