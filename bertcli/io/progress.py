"""The steps that a long run reports, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar

from bertcli.errors import Messages, PrintedLog


class BatchDone(NamedTuple):
    """A step in which the model has run over a batch of texts and tokens.

    ``earlier_texts`` is the number of texts that an earlier run had done.
    """

    texts: int = 0
    tokens: int = 0
    earlier_texts: int = 0


class Advance(NamedTuple):
    """A step of a run without a model: the number of items done, their unit, and the share of all.

    The share is None if the total is unknown.
    """

    done: int
    unit: str
    share: float | None


Step = BatchDone | Advance
Show = Callable[[Step], None]
ResultT = TypeVar("ResultT", covariant=True)


def show_nothing(step: Step) -> None:
    """Ignore a step."""


class Executable(Protocol[ResultT]):
    """A long run that reports its steps."""

    def execute(self, show: Show = show_nothing) -> ResultT:
        """Execute the run and return its result."""


class Display(Messages, Protocol):
    """Shows the progress of runs: the console of a command, or a `PrintedDisplay`."""

    def follow(self, run: Executable[ResultT]) -> ResultT:
        """Execute a run, show its progress, and return its result."""


class PrintedDisplay(PrintedLog):
    """The `Display` of functions called from Python: lines on stderr, or none."""

    def follow(self, run: Executable[ResultT]) -> ResultT:
        """Execute a run and return its result."""
        return run.execute()


@dataclass
class Progress:
    """The work of this process: the sum of the steps of a run."""

    earlier_texts: int = 0  # texts done by an earlier run
    texts: int = 0
    tokens: int = 0
    start: float = field(default_factory=monotonic)

    def add(self, step: Step) -> None:
        """Add a step."""
        if isinstance(step, BatchDone):
            self.texts += step.texts
            self.tokens += step.tokens
            self.earlier_texts += step.earlier_texts

    @property
    def seconds(self) -> float:
        """The time since the start in seconds."""
        return max(monotonic() - self.start, 1e-9)

    def rates(self, unit: str) -> str:
        """Return a line with texts (or ``unit``) and tokens per second."""
        texts = self.texts / self.seconds
        tokens = self.tokens / self.seconds
        return f"{texts:,.0f} {unit}/s  {tokens:,.0f} tokens/s"
