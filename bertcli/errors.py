"""What can go wrong, and the exit code it ends with.

BertcliError           1  failed on this input or model
├── UsageError         2  the options contradict each other
├── InputError         1  a record cannot be read; names its file and line
├── ModelError         1  a model folder is missing, incomplete or broken
├── OutputError        1  the result cannot be written
├── PrecisionError     1  vectors that have no form in the precision asked for
└── PipeClosed         0  whoever reads our output has had enough, as `head` does: no message

Every message is one line that says what and where; the hint says what to do.
"""

from __future__ import annotations

SKIP = "correct or remove that record; commands with --on-error can skip such ones"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: "1 text", "2 texts"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


class BertcliError(Exception):
    """A failure that the user can act on: shown as `error: ...` and `hint: ...`."""

    exit_code = 1
    usual_hint = ""  # where there is no better one

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.hint = " ".join((hint or self.usual_hint).split())


class UsageError(BertcliError):
    """The command was called in a way that has no meaning."""

    exit_code = 2
    usual_hint = "--help says what goes together"


class InputError(BertcliError):
    """A record, or the file that holds it, cannot be read."""

    usual_hint = "correct the input there, or give another"


class ModelError(BertcliError):
    """A model folder is missing, incomplete or broken."""

    usual_hint = "correct or fetch the model's folder again, or give another --model"


class OutputError(BertcliError):
    """The result cannot be written."""

    usual_hint = "choose another place"


class PrecisionError(BertcliError):
    """The vectors, as they are, cannot be written in the precision that was asked for."""


NO_ROOM = (  # in messages of torch on a CPU, of OpenVINO and of what it calls
    "can't allocate memory",
    "bad_alloc",
    "Failed to allocate",
)


def out_of_memory(failed: BaseException) -> bool:
    """Tell whether this is what Python, NumPy or torch raise when there is no room for more."""
    if isinstance(failed, MemoryError) or type(failed).__name__ == "OutOfMemoryError":  # of torch
        return True
    return isinstance(failed, RuntimeError) and any(one in str(failed) for one in NO_ROOM)


class PipeClosed(BertcliError):
    """The reader of our output went away."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("")
