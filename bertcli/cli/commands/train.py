"""`bertcli train`: a model from examples; and the processes, notes and progress of any training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from bertcli.cli.display.console import Console, empty, truncated
from bertcli.cli.options.common import ConsoleOptions, ModelOptions
from bertcli.cli.options.groups import (
    INPUT,
    LAYOUT,
    OptionGroup,
    argument,
    decimal,
    flag,
    number,
    option,
    record,
)
from bertcli.cli.options.training import (
    MAX_GRAD_NORM,
    SEED,
    WARMUP_STEPS,
    WEIGHT_DECAY,
    DeviceOptions,
    ExampleOptions,
    SavingOptions,
    extra_fields,
    extra_option,
    run_folder,
)
from bertcli.errors import BertcliError
from bertcli.files.versions import require_torch
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader
from bertcli.training.options import FEW, FineTuningJob, RunFolder, TrainingOptions

if TYPE_CHECKING:
    from bertcli.training.fine_tuning import FineTuningTask
    from bertcli.training.loop import Ranks, TrainedTask


def train_task(
    opened: "Callable[[Ranks, Console], TrainedTask]",
    place: RunFolder,
    keep: int,
    where: DeviceOptions,
    console: Console,
) -> None:
    """Open a task on every process that torchrun started, and train it."""
    require_torch("training")
    from bertcli.inference.devices import dtype_of, slow, use_threads
    from bertcli.training.loop import joined

    use_threads(where.threads)
    with joined(where.device) as ranks, _speaking(ranks):
        from bertcli.cli.display.training import watching
        from bertcli.training.checkpoints import Checkpoints
        from bertcli.training.run import TrainingRun

        console = console if ranks.first else Console(quiet=True)
        if why := slow(dtype_of(where.precision), ranks.device):
            console.warn(why)
        checkpoints = Checkpoints.of(place, keep)
        run = TrainingRun(opened(ranks, console), checkpoints, ranks)
        for note in run.notes:
            console.note(note)
        with watching(run, console) as show:
            try:
                for event in run.events():
                    show(event)
            except KeyboardInterrupt:
                console.note(f"interrupted; {checkpoints.kept()}; continue with --resume")
                raise


@contextmanager
def _speaking(ranks: "Ranks") -> Iterator[None]:
    """Let only one process per machine report an error that all of them have."""
    try:
        yield
    except BertcliError as error:
        if ranks.silent and type(error) is not BertcliError:
            raise typer.Exit(error.exit_code) from None
        raise


class TrainJobOptions(OptionGroup, panel=INPUT):
    """The file of examples and the output folder."""

    file: str = argument(
        "Examples: jsonl, csv, tsv or parquet with fields such as text and label.", "FILE"
    )
    output = run_folder("DIR")


class MethodOptions(OptionGroup, panel="Training", of=FineTuningJob):
    """Which weights are trained, and on what loss."""

    frozen = flag(
        "Train only a head on vectors computed once, or all weights (default: frozen for up "
        f"to {FEW:,} labelled examples).",
        "--frozen/--full",
        default=None,
    )
    extra: list[str] | None = extra_option(
        "Train all weights, and an extra embedding NAME for the ids in a field: a list with "
        "one per word or token, or one number for the whole text"
    )
    layers = number("Train layer N and above (default: everything).", low=0)
    class_weights = option("balanced: weight labels by inverse frequency.")
    label_smoothing = decimal("Probability mass moved from each label to the others.", high=0.99)
    max_length = number(
        "Truncate texts to N tokens (default: the model's limit).",
        low=3,
        envvar="BERTCLI_MAX_LENGTH",
        panel=LAYOUT,
    )

    def __post_init__(self) -> None:
        extra_fields(self.extra)


class StepOptions(OptionGroup, panel="Training", of=TrainingOptions):
    """The optimizer and its schedule."""

    epochs = decimal(
        "Passes over the examples (default: 3; frozen: 30, or 1,000 steps).", default=None
    )
    steps = number("Optimizer steps, instead of --epochs.")
    batch_size = number("Examples per step (default: 32; frozen: 64).", default=None)
    learning_rate = decimal(
        "Peak learning rate, after the warm-up (default: 5e-5; frozen: 1e-3).", default=None
    )
    warmup_steps = WARMUP_STEPS
    weight_decay = WEIGHT_DECAY
    max_grad_norm = MAX_GRAD_NORM
    seed = SEED


class HeldOutOptions(OptionGroup, panel="Evaluation", of=FineTuningJob):
    """Evaluation, and the choice of the weights to keep."""

    eval = option("Examples to evaluate on, instead of --eval-fraction.", "FILE")
    eval_fraction = decimal(
        "Fraction of the examples to hold out; equal texts stay together; 0: none.", high=0.9
    )
    eval_every = number("Steps between evaluations (default: an epoch).")
    patience = number("Stop after N evaluations without a better one.")
    log_every = number("Steps between lines of the log (default: 10; frozen: 100).")


STEPS = ("epochs", "batch_size", "learning_rate", "log_every")  # settled with the method


def train(
    job: TrainJobOptions,
    examples: ExampleOptions,
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

    Fields of each task:
    classify    text[, pair], label: one of several classes
    multilabel  text[, pair], labels (a list): any of several labels
    regress     text[, pair], score (a number): a score, such as relevance
    tag         words, tags (lists), or a CoNLL file: a tag for each word
    answer      question, context, answer[, start]: spans of contexts; an empty answer: none
    embed       anchor, positive[, negative]: vectors that are near where texts belong together
    embed       text, pair, score with --task embed: vectors whose cosines follow the scores

    $ bertcli train reviews.jsonl -o sentiment
    $ bertcli train pairs.csv --full --epochs 2 -o relevance
    """
    console = messages.console()
    asked = {"extra": extra_fields(method.extra), "fields": examples.fields}
    training = record(FineTuningJob, job, examples, method, steps, held, **asked)
    usual = {name: getattr(TrainingOptions(), name) for name in STEPS}
    options = record(TrainingOptions, steps, held, saving, where, dtype=where.precision, **usual)
    readers: dict[str, Reader] = {}
    place = record(RunFolder, job, saving)

    def reader(path: str) -> Reader:
        readers[path] = Reader(examples.source(path), console.warn)
        return readers[path]

    def opened(ranks: "Ranks", console: Console) -> "TrainedTask":
        from bertcli.training.fine_tuning import head_task
        from bertcli.training.frozen import FrozenTask
        from bertcli.training.labelled_texts import LabelledTexts
        from bertcli.training.pairs import pair_task

        texts = LabelledTexts.read(training, reader, options.seed)
        for note in texts.notes:
            console.note(note)
        folder = model.folder(MODEL_FILES)
        based = replace(training, base=folder.name)
        place.refuse_inputs(training.file, training.eval, folder.path)
        frozen = training.frozen
        if frozen is None and not training.extra and texts.task not in ("tag", "answer", "embed"):
            frozen = len(texts.train) <= FEW
            if not frozen:
                faster = "--frozen trains a head alone, in far less time"
                console.note(f"all weights are trained; {faster}")
        task: FineTuningTask
        if texts.task == "embed":
            task = pair_task(based, options, texts, folder.path)
        elif frozen:
            compute = {"device": str(ranks.device), "dtype": where.dtype, "threads": where.threads}
            task = FrozenTask.open(based, options, texts, folder, compute, console.watch)
        else:
            task = head_task(based, options, texts, folder.path)
        console.warn(truncated(task.tally, task.max_length))
        console.note(empty(task.tally))
        return task

    train_task(opened, place, saving.keep, where, console)
    for reader_of_file in readers.values():
        console.close(reader_of_file.records, reader_of_file)
