"""The execution of a run: anything that reads records and writes one output file.

    result = execute(run, target)               # the run makes rows by itself
    with open_run(run, target) as writer:       # the block writes them
        writer.write(rows)

A run says what its bytes depend on and what it reads, makes rows, and sums up at the end. Whether
it starts, is resumed, updates an output or has nothing to do is decided in `RunWriter.begin`, under
the lock of the output, and acted upon in `open_run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bertcli.io.progress import Advance, Ran, Show, show_nothing
from bertcli.runs.identity import Inputs
from bertcli.runs.run_folder import OutputState, Target, WriterT


class Run(Protocol):
    """What is written, and what it depends on."""

    def inputs(self) -> Inputs:
        """Return what is read."""

    def identity(self) -> Mapping[str, Any]:
        """Return what the bytes depend on besides the inputs."""

    def resume(self, state: Any) -> None:
        """Begin after what an earlier run has committed, whose last `Commit` had this state."""

    def summary(self) -> Mapping[str, Any]:
        """Return what the manifest says of the run, once all is written."""


class Commit(NamedTuple):
    """An event of a run: what was written so far is kept, and a run with this state goes on."""

    state: Any  # a JSON value


class EventRun(Run, Protocol):
    """A run that makes what is written by itself."""

    def events(self, writer: Any) -> Iterator[Any]:
        """Yield what is to be written, `Commit`s, and steps for the display."""

    def write(self, writer: Any, event: Any) -> None:
        """Write an event that is neither a `Commit` nor a step."""


@dataclass(frozen=True)
class RunResult:
    """What was there, and what could not be compared with it."""

    state: OutputState
    unchecked: Sequence[str] = ()  # inputs that cannot be read twice, if an earlier run had them


@contextmanager
def open_run(run: Run, target: Target[WriterT]) -> Iterator[WriterT]:
    """Start or resume a run, and yield its writer; publish the output if the block succeeds.

    Where the output is complete, the block has nothing to write. Raises OutputError as
    `Target.opened` does.
    """
    with target.opened(run.identity(), run.inputs()) as writer:
        match writer.found:
            case OutputState.COMPLETE:
                yield writer
                return
            case OutputState.INTERRUPTED:
                run.resume(writer.state)
            case OutputState.NEW | OutputState.CHANGED:
                pass
        yield writer
        writer.finish(run.summary())


def execute(run: EventRun, target: Target[WriterT], show: Show = show_nothing) -> RunResult:
    """Execute a run, and return what it found; its steps are shown."""
    with open_run(run, target) as writer:
        if writer.found is not OutputState.COMPLETE:
            for event in run.events(writer):
                match event:
                    case Commit():
                        writer.commit(event.state)
                    case Ran() | Advance():
                        show(event)
                    case _:
                        run.write(writer, event)
    is_continued = writer.found in (OutputState.INTERRUPTED, OutputState.COMPLETE)
    return RunResult(writer.found, run.inputs().streams if is_continued else ())
