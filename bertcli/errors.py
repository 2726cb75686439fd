"""Exceptions with their exit codes, and the log.

BertcliError           1  failed on this input or model
├── UsageError         2  invalid or contradicting options
├── InputError         1  a record cannot be read; the message has its file and line
├── ModelError         1  a model folder is missing, incomplete or broken
├── OutputError        1  the result cannot be written
├── PrecisionError     1  vectors cannot be written in the requested precision
└── PipeClosed         0  the reader of our output, such as `head`, has closed it: no message

A message is one line that says what is wrong and where; the hint says what to do. Both write
options with `option`, which the command line shows as `--dim 9` and Python as `dim=9`.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from typing import Any, Protocol

MAX_WORD_LENGTH = 600  # characters of a word in a message
SHOWN_END_LENGTH = 40  # characters shown from the end of a longer word


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: "1 text", "2 texts"."""
    noun = singular if count == 1 else plural or f"{singular}s"
    return f"{count:,} {noun}"


def one_line(message: str) -> str:
    """Return a message without line ends, with words of limited length.

    A value from a file may be a word of any length, and searching a word for addresses takes time
    quadratic in its length.
    """
    return " ".join(map(_shortened, message.split()))


def _shortened(word: str) -> str:
    """Return a word with its middle left out if it is too long."""
    if len(word) <= MAX_WORD_LENGTH:
        return word
    return f"{word[: MAX_WORD_LENGTH - SHOWN_END_LENGTH]}...{word[-SHOWN_END_LENGTH:]}"


def option(name: str, value: Any = None) -> str:
    """Return an option with its value for a message, spelled for the shell and for Python.

    `--dim 9` and `dim=9`, `--resume` and `resume`, `--no-unused` and `unused=False`. Without a
    value, only the name is written.
    """
    flag = f"--{name.replace('_', '-')}"
    match name, value:
        case "frozen", False:
            flag = "--full"
        case _, False:
            flag = f"--no-{flag[2:]}"
        case _, None | True:
            pass
        case _:
            flag = f"{flag} {value}"
    keyword = name if value is None else f"{name}={value!r}"
    return f"{_BEGIN}{_shortened(flag)}{_OR}{_shortened(keyword)}{_END}"


# Control characters that delimit both spellings of an option in a message.
_BEGIN, _OR, _END = "\x02", "\x03", "\x04"
_OPTION = re.compile(f"{_BEGIN}([^{_END}]*?){_OR}([^{_END}]*?){_END}")

SKIP = f"correct or remove that record; {option('on_error', 'skip')} skips it"


def on_command_line(message: str) -> str:
    """Return a message as one line, with options as command-line flags."""
    return one_line(_OPTION.sub(r"\1", message))


def in_python(message: str) -> str:
    """Return a message as one line, with options as Python keywords."""
    return one_line(_OPTION.sub(r"\2", message))


class Messages(Protocol):
    """A receiver of notes and warnings; empty messages are ignored."""

    def note(self, message: str) -> None:
        """Show a note."""

    def warn(self, message: str) -> None:
        """Show a warning."""


class Log(ABC):
    """A receiver of warnings, notes and details."""

    def warn(self, message: str) -> None:
        """Write a warning."""
        self.write("warning", message)

    def note(self, message: str) -> None:
        """Write a note."""
        self.write("info", message)

    def detail(self, message: str) -> None:
        """Write a message that is shown only with --verbose."""
        self.write("debug", message)

    @abstractmethod
    def write(self, level: str, message: str) -> None:
        """Write a message with a level of Python's logging: debug, info or warning."""


class LibraryLog(Log):
    """Log of the library: Python's logger "bertcli", or the console of a running command."""

    def __init__(self) -> None:
        self._console: Log | None = None

    def connect(self, console: Log) -> None:
        """Send the messages to this console until `disconnect`."""
        self._console = console

    def disconnect(self) -> None:
        """Send the messages to Python's logger again."""
        self._console = None

    def write(self, level: str, message: str) -> None:
        """Write a message to the console, or with options as keywords to the logger."""
        if self._console is not None:
            self._console.write(level, message)
            return
        import logging  # takes 3 ms, and few commands need it

        getattr(logging.getLogger("bertcli"), level)(in_python(message))


LOG = LibraryLog()
LABELS = {"info": "note", "warning": "warning"}  # logging level -> label of its messages


class PrintedLog(Log):
    """Log of functions called from Python: messages on stderr, or none if ``quiet``."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def write(self, level: str, message: str) -> None:
        """Write a line. Empty messages and level debug are ignored."""
        if message and not self.quiet and level != "debug":
            sys.stderr.write(f"{LABELS[level]}: {in_python(message)}\n")


class BertcliError(Exception):
    """An error that the user can act on, shown as `error: ...` and `hint: ...`.

    ``str(error)`` and ``error.hint`` are for Python callers. ``marked`` and ``marked_hint`` are the
    original texts with both spellings of options, for the command line and for errors that quote
    this one.
    """

    exit_code = 1
    usual_hint = ""  # the hint of an error that has none of its own

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(in_python(message))
        self.marked = message
        self.marked_hint = hint or self.usual_hint

    @property
    def hint(self) -> str:
        """The advice on what to do, with options as Python keywords."""
        return in_python(self.marked_hint)


class UsageError(BertcliError):
    """The options are invalid or contradict each other."""

    exit_code = 2
    usual_hint = f"see {option('help')}"


class InputError(BertcliError):
    """A record, or its file, cannot be read."""

    usual_hint = "correct the input there, or give another"


class ModelError(BertcliError):
    """A model folder is missing, incomplete or broken."""

    usual_hint = f"correct or fetch the model's folder again, or give another {option('model')}"


class OutputError(BertcliError):
    """The result cannot be written."""

    usual_hint = "choose another place"


class PrecisionError(BertcliError):
    """The vectors cannot be written in the requested precision."""


OUT_OF_MEMORY_PHRASES = (  # of libraries, Python's threads and the dynamic loader
    "can't alloc",
    "annot allocate",
    "bad_alloc",
    "Failed to allocate",
    "failed to map segment",
    "can't start new thread",
    "ThreadPoolBuildError",
    "Resource temporarily unavailable",
    "Broken promise",  # OpenVINO, if a thread could not start
    "error return without exception set",  # CPython, if C code ran out of memory
)


def out_of_memory(failed: BaseException | None) -> bool:
    """Return True if an exception, or one of its causes, means that memory ran out."""
    if failed is None:
        return False
    if isinstance(failed, MemoryError) or type(failed).__name__ == "OutOfMemoryError":  # of torch
        return True
    library_errors = (RuntimeError, ImportError, OSError, SystemError)
    if isinstance(failed, library_errors) or panicked(failed):
        message = str(failed)
        if any(phrase in message for phrase in OUT_OF_MEMORY_PHRASES):
            return True
    return out_of_memory(failed.__cause__ or failed.__context__)


def panicked(failed: BaseException) -> bool:
    """Return True if a Rust library panicked, as tokenizers does for an unbounded regex."""
    return type(failed).__name__ == "PanicException"  # not an Exception, and not importable


class PipeClosed(BertcliError):
    """The reader of our output closed it."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("")
