"""No file is both read and written by one run: neither by its name nor through a link.

    refuse_inputs(("reviews.jsonl", "-"), [Path("out.npy"), Path("out.npy.partial")])

What a run writes is the output, first, and the files beside it that it makes and removes.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertcli.errors import OutputError

Identity = tuple[int, int] | str  # the device of a file and its number there; a name to come

HINT = "write to another place, or move the input away"


def refuse_inputs(inputs: Iterable[str | Path], own: Sequence[Path]) -> None:
    """Raise OutputError when an input is one of the files that a run writes.

    ``-`` is stdin, which may be redirected from a file. Pipes and devices are no matter: nothing of
    theirs is lost.
    """
    outputs = {identity: path for path in reversed(own) if (identity := _identity(path))}
    if not outputs:
        return
    for named in inputs:
        for path, identity in _files(named):
            if identity in outputs:
                raise _both(path, outputs[identity], own[0])


def refuse_stdout(inputs: Iterable[str | Path]) -> None:
    """Raise OutputError when stdout is appended to a file that is read: it would have no end."""
    stdout = _identity_of(sys.stdout)
    for named in inputs if stdout else ():
        for path, other in _files(named):
            if other == stdout:
                raise OutputError(f"stdout is redirected to {path}, which is also an input", HINT)


def _both(named: str, own: Path, output: Path) -> OutputError:
    if own != output and output.is_dir():
        return OutputError(f"{output}: the input {named} lies in the output folder", HINT)
    if own != output:
        return OutputError(
            f"{output}: the input {named} is a file that this run writes: {own.name}", HINT
        )
    if named == str(output):
        return OutputError(f"{output}: is both the input and the output", HINT)
    kind = "folder" if output.is_dir() else "file"
    return OutputError(f"{output}: the input {named} is the same {kind}", HINT)


def _files(named: str | Path) -> Iterator[tuple[str, Identity]]:
    """Yield the files that an input stands for."""
    if str(named) == "-":
        if identity := _identity_of(sys.stdin):
            yield "stdin", identity
        return
    if identity := _identity(Path(named)):
        yield str(named), identity


def _identity(path: Path) -> Identity | None:
    with suppress(OSError, ValueError):
        try:
            return _of(os.stat(path))
        except FileNotFoundError:
            return os.path.realpath(path)
    return None


def _identity_of(stream: Any) -> Identity | None:
    with suppress(OSError, ValueError, AttributeError):  # closed, or no file of the system
        return _of(os.fstat(stream.fileno()))
    return None


def _of(status: os.stat_result) -> Identity | None:
    lasting = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (status.st_dev, status.st_ino) if lasting else None
