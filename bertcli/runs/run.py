"""The execution of a run, which reads records and writes one output file.

    result = execute(run, target)               # the run makes rows by itself
    with open_run(run, target) as writer:       # the block writes them
        writer.write(rows)

A run provides its inputs, a fingerprint of what else its bytes depend on, its rows, and a summary
for the manifest. `RunWriter.begin` decides, under the lock of the output, if the run starts, is
resumed, updates an output or has nothing to do; `open_run` acts on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bertcli.io.progress import Advance, BatchDone, Show, show_nothing
from bertcli.runs.identity import Inputs
from bertcli.runs.run_folder import OutputState, Target, WriterT


class Run(Protocol):
    """An execution that writes an output: what the output depends on, and how it is resumed."""

    @property
    def inputs(self) -> Inputs:
        """The inputs."""

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What the bytes depend on besides the inputs: options and model files."""

    def resume(self, state: Any) -> None:
        """Continue after the last `Commit` of an earlier run, which had this state."""

    def summary(self) -> Mapping[str, Any]:
        """Return the run's entries of the manifest, once all is written."""


class Commit(NamedTuple):
    """An event that commits everything written so far. A resumed run gets its state."""

    state: Any  # a JSON value


class EventRun(Run, Protocol):
    """A run that produces its rows as events."""

    def events(self, writer: Any) -> Iterator[Any]:
        """Yield events: rows to write, `Commit`s, and steps for the display."""

    def write(self, writer: Any, event: Any) -> None:
        """Write an event that is neither a `Commit` nor a step."""


@dataclass(frozen=True)
class RunResult:
    """The state in which the run found its output, and inputs that could not be checked."""

    state: OutputState
    unchecked: Sequence[str] = ()  # inputs of a continued run that cannot be read twice


@contextmanager
def open_run(run: Run, target: Target[WriterT]) -> Iterator[WriterT]:
    """Start or resume a run and yield its writer; publish the output if the block succeeds.

    If the output is complete, the block must write nothing. Raises OutputError as
    `Target.opened` does.
    """
    with target.opened(run.fingerprint, run.inputs) as writer:
        match writer.output_state:
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
    """Execute a run, showing its steps, and return the state in which it found the output."""
    with open_run(run, target) as writer:
        if writer.output_state is not OutputState.COMPLETE:
            for event in run.events(writer):
                match event:
                    case Commit():
                        writer.commit(event.state)
                    case BatchDone() | Advance():
                        show(event)
                    case _:
                        run.write(writer, event)
    is_continued = writer.output_state in (OutputState.INTERRUPTED, OutputState.COMPLETE)
    return RunResult(writer.output_state, run.inputs.streams if is_continued else ())
