"""`bertcli train`: a model from examples."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bertcli.cli.commands.training_run import train_task
from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import empty, truncated
from bertcli.cli.options.common import ConsoleOptions, ModelOptions
from bertcli.cli.options.groups import record
from bertcli.cli.options.train import (
    HeldOutOptions,
    MethodOptions,
    StepOptions,
    TrainJobOptions,
)
from bertcli.cli.options.training import DeviceOptions, SavingOptions
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.training.options import FineTuningJob, TrainingOptions
    from bertcli.training.ranks import Ranks
    from bertcli.training.run import TrainedTask

STEPS = ("epochs", "batch_size", "learning_rate")  # by default, those of the method


def train(
    job: TrainJobOptions,
    model: ModelOptions,
    method: MethodOptions,
    steps: StepOptions,
    held: HeldOutOptions,
    saving: SavingOptions,
    where: DeviceOptions,
    messages: ConsoleOptions,
) -> None:
    """Train a model on examples: texts with labels or scores.

    The fields of the examples decide the task. The result is a folder for --model, and for
    transformers. --resume continues an interrupted run, with the same numbers.

    $ bertcli train reviews.jsonl -o sentiment
    $ bertcli train pairs.csv --full --epochs 2 -o relevance
    """
    console = messages.console()
    from bertcli.training.options import FineTuningJob, RunFolder, TrainingOptions

    wanted = record(FineTuningJob, job, method, steps, held)
    usual = {name: getattr(TrainingOptions(), name) for name in STEPS if not getattr(steps, name)}
    options = record(TrainingOptions, steps, held, saving, where, dtype=where.precision, **usual)
    readers: dict[str, Reader] = {}

    def reader(path: str) -> Reader:
        readers[path] = Reader(job.source(path), console.warn)
        return readers[path]

    def opened(ranks: "Ranks", console: Console) -> "TrainedTask":
        return _opened(wanted, options, reader, model, console)

    train_task(opened, record(RunFolder, job, saving), saving.keep, where, console)
    for each in readers.values():
        console.close(each.records, each)


def _opened(
    wanted: "FineTuningJob",
    options: "TrainingOptions",
    reader: Callable[[str], Reader],
    model: ModelOptions,
    console: Console,
) -> "TrainedTask":
    """Read the examples, and open the model that learns from them."""
    from bertcli.training.fine_tuning import ClassifierTask
    from bertcli.training.labelled_texts import LabelledTexts

    texts = LabelledTexts.read(wanted, reader, options.seed)
    for note in texts.notes:
        console.note(note)
    task = ClassifierTask.open(wanted, options, texts, model.folder(MODEL_FILES).path)
    console.warn(truncated(task.tally))
    console.note(empty(task.tally))
    return task
