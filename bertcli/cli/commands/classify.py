"""`bertcli classify`: texts and pairs to classes, or to one score."""

from typing import Annotated, ClassVar, Literal

from bertcli.cli.commands.task_run import open_labels, write
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import OptionGroup, flag, number, option
from bertcli.cli.options.inputs import InputOptions
from bertcli.cli.options.task import CutOptions
from bertcli.errors import UsageError


class LabelOptions(OptionGroup):
    """The labels returned, and their scores."""

    PANEL: ClassVar = "Labels"

    top_k: Annotated[
        int | None, number("Return the N most likely labels as a list.", "--top-k", "-k")
    ] = None
    threshold: Annotated[
        float | None,
        option(
            "Return all labels with at least this score as a list (multi-label models: 0.5).",
            "SCORE",
        ),
    ] = None
    scores: Annotated[
        Literal["top", "all"],
        option("all: also return the score of every label, in the model's order."),
    ] = "top"
    logits: Annotated[bool, flag("--logits", "Return raw scores, without softmax or sigmoid.")] = (
        False
    )

    def __post_init__(self) -> None:
        if self.scores == "all" and not (self.top_k is None and self.threshold is None):
            raise UsageError("--scores all cannot be combined with --top-k or --threshold")


def classify(
    source: InputOptions,
    model: ModelOptions,
    labels: LabelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Classify texts or pairs, or score how relevant one text is to another.

    $ bertcli classify 'A wonderful film.' -m textattack/bert-base-uncased-imdb
    $ bertcli classify --pairs pairs.tsv -m cross-encoder/ms-marco-TinyBERT-L2-v2
    $ bertcli classify -i reviews.csv --text-field body -m MODEL -o labels.csv
    """
    console = messages.console()
    form, reader = output.form(), source.reader(console)
    head = open_labels("classify", model, length, compute, console)
    from bertcli.tasks.classify import ClassifyTask, Shown

    shown = Shown(labels.top_k, labels.threshold, labels.scores == "all", labels.logits)
    task = ClassifyTask(head, shown)
    console.detail(f"labels: {', '.join(head.labels)}; function: {task.function}")
    write(task.stream(reader), output, form, model, console)
