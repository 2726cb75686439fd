"""Common parts of the commands that train: processes, notes, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from bertcli.cli.display.console import Console
from bertcli.cli.options.training import DeviceOptions
from bertcli.errors import BertcliError
from bertcli.files.versions import require_torch

if TYPE_CHECKING:
    from bertcli.training.checkpoints import Checkpoints
    from bertcli.training.loop import Ranks, TrainedTask
    from bertcli.training.options import RunFolder
    from bertcli.training.run import TrainingRun


def train_task(
    opened: Callable[[Ranks, Console], TrainedTask],
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
        from bertcli.training.checkpoints import Checkpoints
        from bertcli.training.run import TrainingRun

        console = console if ranks.first else Console(quiet=True)
        if why := slow(dtype_of(where.precision), ranks.device):
            console.warn(why)
        checkpoints = Checkpoints.of(place, keep)
        run = TrainingRun(opened(ranks, console), checkpoints, ranks)
        for note in run.notes:
            console.note(note)
        _train(run, checkpoints, console)


@contextmanager
def _speaking(ranks: Ranks) -> Iterator[None]:
    """Let only one process per machine report an error that all of them have."""
    try:
        yield
    except BertcliError as error:
        if ranks.silent and type(error) is not BertcliError:
            raise typer.Exit(error.exit_code) from None
        raise


def _train(run: TrainingRun, checkpoints: Checkpoints, console: Console) -> None:
    from bertcli.cli.display.training import watching

    with watching(run, console) as show:
        try:
            for event in run.events():
                show(event)
        except KeyboardInterrupt:
            console.note(f"interrupted; {checkpoints.kept()}; continue with --resume")
            raise
