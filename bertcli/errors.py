"""What can go wrong, and the exit code it ends with; and what is said of what does not fail.

BertcliError           1  failed on this input or model
├── UsageError         2  the options contradict each other
├── InputError         1  a record cannot be read; names its file and line
├── ModelError         1  a model folder is missing, incomplete or broken
├── OutputError        1  the result cannot be written
├── PrecisionError     1  vectors that have no form in the precision asked for
└── PipeClosed         0  whoever reads our output has had enough, as `head` does: no message

Every message is one line that says what and where; the hint says what to do. Both name options by
`option`: the command line shows them as `--dim 9`, Python as `dim=9`.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Protocol

LONGEST_WORD = 600  # characters, in a message
ENDING = 40  # characters of its end that are shown


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: "1 text", "2 texts"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def one_line(message: str) -> str:
    """Return a message without line ends, whose words have a bounded length.

    A value of a file may be a word of any length, and what looks for addresses in a word takes
    time with the square of its length.
    """
    return " ".join(map(_shortened, message.split()))


def _shortened(word: str) -> str:
    if len(word) <= LONGEST_WORD:
        return word
    return f"{word[: LONGEST_WORD - ENDING]}...{word[-ENDING:]}"


def option(name: str, value: Any = None) -> str:
    """Return an option in a message, spelled both ways; a value of None leaves it out.

    `--dim 9` and `dim=9`, `--resume` and `resume`, `--no-unused` and `unused=False`.
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


# An option in a message: both spellings, between characters that no message shows.
_BEGIN, _OR, _END = "\x02", "\x03", "\x04"
_OPTION = re.compile(f"{_BEGIN}([^{_END}]*?){_OR}([^{_END}]*?){_END}")

SKIP = f"correct or remove that record; {option('on_error', 'skip')} skips it"


def on_command_line(message: str) -> str:
    """Return a message on one line, with options as the command line has them."""
    return one_line(_OPTION.sub(r"\1", message))


def in_python(message: str) -> str:
    """Return a message on one line, with options as keywords."""
    return one_line(_OPTION.sub(r"\2", message))


class Messages(Protocol):
    """What takes notes and warnings; an empty one is ignored."""

    def note(self, message: str) -> None:
        """Show a note."""

    def warn(self, message: str) -> None:
        """Show a warning."""


class Log:
    """Messages of the library: Python's log "bertcli" has them, or the console of a command."""

    def warn(self, message: str) -> None:
        """Write a warning."""
        self.write("warning", message)

    def note(self, message: str) -> None:
        """Write a note."""
        self.write("info", message)

    def detail(self, message: str) -> None:
        """Write a note for those who ask for details."""
        self.write("debug", message)

    def write(self, level: str, message: str) -> None:
        """Write a message of a level of Python's log."""
        import logging  # 3 ms, which nearly all commands do without

        getattr(logging.getLogger("bertcli"), level)(in_python(message))


LOG = Log()
NAMES = {"info": "note", "warning": "warning"}  # of levels, as they are shown


class PrintedLog(Log):
    """Messages on stderr, for a function that Python code calls; none where it is quiet."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def write(self, level: str, message: str) -> None:
        """Write a line; an empty message and one of the level debug are ignored."""
        if message and not self.quiet and level != "debug":
            sys.stderr.write(f"{NAMES[level]}: {in_python(message)}\n")


class BertcliError(Exception):
    """A failure that the user can act on: shown as `error: ...` and `hint: ...`.

    ``str(error)`` and ``error.hint`` are for callers from Python. ``marked`` and ``marked_hint``
    are the texts as they were raised: what an error that names this one is made of, and what the
    command line shows.
    """

    exit_code = 1
    usual_hint = ""  # where there is no better one

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(in_python(message))
        self.marked = message
        self.marked_hint = hint or self.usual_hint

    @property
    def hint(self) -> str:
        """What to do, with options as keywords."""
        return in_python(self.marked_hint)


class UsageError(BertcliError):
    """The command was called in a way that has no meaning."""

    exit_code = 2
    usual_hint = f"see {option('help')}"


class InputError(BertcliError):
    """A record, or the file that holds it, cannot be read."""

    usual_hint = "correct the input there, or give another"


class ModelError(BertcliError):
    """A model folder is missing, incomplete or broken."""

    usual_hint = f"correct or fetch the model's folder again, or give another {option('model')}"


class OutputError(BertcliError):
    """The result cannot be written."""

    usual_hint = "choose another place"


class PrecisionError(BertcliError):
    """The vectors, as they are, cannot be written in the precision that was asked for."""


NO_ROOM = (  # in messages of libraries, of Python's threads and of the system's loader
    "can't alloc",
    "annot allocate",
    "bad_alloc",
    "Failed to allocate",
    "failed to map segment",
    "can't start new thread",
    "ThreadPoolBuildError",
    "Resource temporarily unavailable",
    "Broken promise",  # of OpenVINO, whose thread could not begin
    "error return without exception set",  # of CPython, where C code found no memory
)


def out_of_memory(failed: BaseException | None) -> bool:
    """Return whether an exception, or one that it came of, says that there is no room for more."""
    if failed is None:
        return False
    if isinstance(failed, MemoryError) or type(failed).__name__ == "OutOfMemoryError":  # of torch
        return True
    of_libraries = isinstance(
        failed, RuntimeError | ImportError | OSError | SystemError
    ) or panicked(failed)
    if of_libraries and any(phrase in str(failed) for phrase in NO_ROOM):
        return True
    return out_of_memory(failed.__cause__ or failed.__context__)


def panicked(failed: BaseException) -> bool:
    """Return whether a library in Rust failed, as tokenizers does by a regex without an end."""
    return type(failed).__name__ == "PanicException"  # no Exception, nor one to be imported


class PipeClosed(BertcliError):
    """The reader of our output went away."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("")
