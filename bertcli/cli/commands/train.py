"""`bertcli train`: a model from examples."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.cli.commands.training_run import train_task
from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import empty, truncated
from bertcli.cli.options.common import ConsoleOptions, ModelOptions
from bertcli.cli.options.examples import ExampleOptions
from bertcli.cli.options.extra import extra_fields
from bertcli.cli.options.groups import record
from bertcli.cli.options.train import HeldOutOptions, MethodOptions, StepOptions, TrainJobOptions
from bertcli.cli.options.training import DeviceOptions, SavingOptions
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.tokenizing.run import TokenCounts
    from bertcli.training.labelled_texts import LabelledTexts
    from bertcli.training.options import FineTuningJob, RunFolder, TrainingOptions
    from bertcli.training.ranks import Ranks
    from bertcli.training.run import TrainedTask


class RunSetting(NamedTuple):
    """How a model computes, and the folder of the run."""

    compute: dict[str, Any]
    place: "RunFolder"


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
    from bertcli.training.options import FineTuningJob, RunFolder, TrainingOptions

    asked = {"extra": extra_fields(method.extra), "fields": examples.fields}
    wanted = record(FineTuningJob, job, examples, method, steps, held, **asked)
    usual = {name: getattr(TrainingOptions(), name) for name in STEPS}
    options = record(TrainingOptions, steps, held, saving, where, dtype=where.precision, **usual)
    readers: dict[str, Reader] = {}
    place = record(RunFolder, job, saving)

    def reader(path: str) -> Reader:
        readers[path] = Reader(examples.source(path), console.warn)
        return readers[path]

    def opened(ranks: "Ranks", console: Console) -> "TrainedTask":
        compute = {"device": str(ranks.device), "dtype": where.dtype, "threads": where.threads}
        return _opened(wanted, options, reader, model, RunSetting(compute, place), console)

    train_task(opened, place, saving.keep, where, console)
    for each in readers.values():
        console.close(each.records, each)


def _opened(
    wanted: "FineTuningJob",
    options: "TrainingOptions",
    reader: Callable[[str], Reader],
    model: ModelOptions,
    setting: RunSetting,
    console: Console,
) -> "TrainedTask":
    """Read the examples, and open the model that learns from them."""
    from bertcli.training.fine_tuning import HeadTask
    from bertcli.training.frozen import FrozenTask
    from bertcli.training.kept_vectors import read_vectors
    from bertcli.training.labelled_texts import LabelledTexts
    from bertcli.training.pairs import PairTask

    texts = LabelledTexts.read(wanted, reader, options.seed)
    for note in texts.notes:
        console.note(note)
    folder = model.folder(MODEL_FILES)
    wanted = replace(wanted, base=folder.name)
    setting.place.refuse_inputs(folder.path)
    if texts.task == "embed":
        pairs = PairTask.open(wanted, options, texts, folder.path)
        _tell(pairs.tally, console)
        return pairs
    if not _frozen(wanted, texts, console):
        task = HeadTask.open(wanted, options, texts, folder.path)
        _tell(task.tally, console)
        return task
    made = FrozenTask.open(folder, wanted, texts, setting.compute)
    if setting.place.resume and read_vectors(setting.place.output, made):
        console.detail(f"the vectors of {len(made.vectors):,} texts are those of the run before")
    else:
        console.watch(made)
        _tell(made.tally, console)
    return FrozenTask.of(wanted, options, texts, made)


def _frozen(wanted: "FineTuningJob", texts: "LabelledTexts", console: Console) -> bool:
    """Return whether a head alone is trained: as asked, else for few examples."""
    from bertcli.training.options import FEW

    frozen = wanted.frozen
    if frozen is None and not wanted.extra and texts.task not in ("tag", "answer"):
        frozen = len(texts.train) <= FEW
        if not frozen:
            console.note("all weights are trained; --frozen trains a head alone, in far less time")
    return bool(frozen)


def _tell(tally: "TokenCounts", console: Console) -> None:
    console.warn(truncated(tally))
    console.note(empty(tally))
