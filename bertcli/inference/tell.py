"""What the opening of a model has to say before it is done. Nothing here needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from logging import Logger


class Tell(Protocol):
    """Where messages go: the console of a command, a log, or nowhere."""

    def warn(self, message: str, /) -> None:
        """Write a warning."""

    def note(self, message: str, /) -> None:
        """Write a note."""

    def detail(self, message: str, /) -> None:
        """Write a note, with --verbose only."""


class Silence:
    """Says nothing."""

    def warn(self, message: str, /) -> None:
        """Drop a warning."""

    note = detail = warn


class InLog:
    """Writes to a logger of Python."""

    def __init__(self, log: Logger) -> None:
        self.warn, self.note, self.detail = log.warning, log.info, log.debug


SILENCE: Tell = Silence()
