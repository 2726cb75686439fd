"""The steps that a long run reports, and how far it has got. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar

from bertcli.errors import Messages, PrintedLog


class Ran(NamedTuple):
    """The model has run over so many texts and tokens.

    An earlier run had done so many texts ``before``.
    """

    texts: int = 0
    tokens: int = 0
    before: int = 0


class Advance(NamedTuple):
    """How many items are done, and their share of all; None when their number is unknown.

    It is the step of a run without a model.
    """

    done: int
    what: str
    share: float | None


Step = Ran | Advance
Show = Callable[[Step], None]
ResultT = TypeVar("ResultT", covariant=True)


def show_nothing(step: Step) -> None:
    """Ignore a step."""


class Executable(Protocol[ResultT]):
    """A long run, which reports its steps."""

    def execute(self, show: Show = show_nothing) -> ResultT:
        """Execute the run, and return its result."""


class Display(Messages, Protocol):
    """What shows a user how a run goes: the console of a command, or a `PrintedDisplay`."""

    def follow(self, run: Executable[ResultT]) -> ResultT:
        """Execute a run, show its progress, and return its result."""


class PrintedDisplay(PrintedLog):
    """The `Display` of a function that Python code calls: lines on stderr, or none."""

    def follow(self, run: Executable[ResultT]) -> ResultT:
        """Execute a run, and return its result."""
        return run.execute()


@dataclass
class Progress:
    """What this process has done: the sum of the steps that a run yields."""

    before: int = 0  # texts that an earlier run had done
    texts: int = 0
    tokens: int = 0
    start: float = field(default_factory=monotonic)

    def add(self, step: Step) -> None:
        """Count a step."""
        if isinstance(step, Ran):
            self.texts += step.texts
            self.tokens += step.tokens
            self.before += step.before

    @property
    def seconds(self) -> float:
        """The time since the run began."""
        return max(monotonic() - self.start, 1e-9)

    def rates(self, unit: str) -> str:
        """Return texts, or what the ``unit`` is, and tokens per second."""
        texts = self.texts / self.seconds
        tokens = self.tokens / self.seconds
        return f"{texts:,.0f} {unit}/s  {tokens:,.0f} tokens/s"
