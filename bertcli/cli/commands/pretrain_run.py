"""`bertcli pretrain run`: BertForPreTraining from prepared instances."""

from typing import TYPE_CHECKING

from bertcli.cli.commands.training_run import train_task
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions
from bertcli.cli.options.extra import extra_fields
from bertcli.cli.options.groups import record
from bertcli.cli.options.pretrain_run import (
    EvaluationOptions,
    JobOptions,
    OptimizerOptions,
    StartOptions,
)
from bertcli.cli.options.training import DeviceOptions, SavingOptions

if TYPE_CHECKING:
    from bertcli.training.pretraining import PretrainingTask
    from bertcli.training.ranks import Ranks


def pretrain_run(
    job: JobOptions,
    start: StartOptions,
    optimizer: OptimizerOptions,
    evaluation: EvaluationOptions,
    saving: SavingOptions,
    where: DeviceOptions,
    messages: ConsoleOptions,
) -> None:
    """Train a BERT on prepared instances: masked words and next sentences.

    The result is a folder that bertcli and transformers both load. --resume continues an
    interrupted run, with the same numbers. Use torchrun for several processes.

    $ bertcli pretrain run instances --config mini -o bert-mini --epochs 10
    $ torchrun --nproc-per-node 2 -m bertcli pretrain run instances --config base -o mine
    """
    console = messages.console()
    from bertcli.training.options import PretrainingJob, RunFolder, TrainingOptions

    options = record(TrainingOptions, optimizer, evaluation, saving, where, dtype=where.precision)
    extra = extra_fields(start.extra)
    wanted = record(PretrainingJob, job, start, evaluation, extra=extra)
    place = record(RunFolder, job, saving)
    place.refuse_inputs(wanted.data, wanted.init, wanted.eval_dir)

    def opened(ranks: "Ranks", console: Console) -> "PretrainingTask":
        from bertcli.training.pretraining import PretrainingTask

        return PretrainingTask.open(wanted, options, ranks)

    train_task(opened, place, saving.keep, where, console)
