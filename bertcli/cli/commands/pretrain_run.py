"""`bertcli pretrain run`: BertForPreTraining from prepared instances."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions
from bertcli.cli.options.groups import record
from bertcli.cli.options.pretrain_run import (
    DeviceOptions,
    EvaluationOptions,
    JobOptions,
    OptimizerOptions,
    SavingOptions,
    StartOptions,
)
from bertcli.errors import BertcliError

if TYPE_CHECKING:
    from bertcli.training.ranks import Ranks
    from bertcli.training.run import TrainingRun


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

    [bold]bertcli pretrain run instances --config mini -o bert-mini --epochs 10[/bold]

    [bold]torchrun --nproc-per-node 2 -m bertcli pretrain run instances --config base -o mine[/bold]
    """
    console = messages.console()
    from bertcli.inference.devices import dtype_of, slow, use_threads
    from bertcli.training.options import TrainingJob, TrainingOptions
    from bertcli.training.ranks import joined

    use_threads(where.threads)
    dtype = "float32" if where.dtype == "auto" else where.dtype
    options = record(TrainingOptions, optimizer, evaluation, saving, where, dtype=dtype)
    wanted = record(TrainingJob, job, start, evaluation, saving)
    with joined(where.device) as ranks, _speaking(ranks):
        from bertcli.training.run import TrainingRun

        console = console if ranks.first else Console(quiet=True)
        if why := slow(dtype_of(options.dtype), ranks.device):
            console.warn(why)
        run = TrainingRun(wanted, options, ranks)
        for note in run.notes:
            console.note(note)
        _train(run, console)


@contextmanager
def _speaking(ranks: "Ranks") -> Iterator[None]:
    """Let only one process per machine report an error that all of them have."""
    try:
        yield
    except BertcliError as error:
        if ranks.silent and type(error) is not BertcliError:
            raise typer.Exit(error.exit_code) from None
        raise


def _train(run: "TrainingRun", console: Console) -> None:
    from bertcli.cli.display.training import watching

    with watching(run, console) as show:
        try:
            for event in run.events():
                show(event)
        except KeyboardInterrupt:
            console.note(f"interrupted; {run.checkpoints.kept()}; continue with --resume")
            raise
