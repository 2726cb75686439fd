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
    there = {found: path for path in reversed(own) if (found := _identity(path))}
    if not there:
        return
    for named in inputs:
        for path, found in _files(named):
            if found in there:
                raise _both(path, there[found], own[0])


def refuse_stdout(inputs: Iterable[str | Path]) -> None:
    """Raise OutputError when stdout is appended to a file that is read: it would have no end."""
    found = _identity_of(sys.stdout)
    for named in inputs if found else ():
        for path, other in _files(named):
            if other == found:
                raise OutputError(f"stdout is redirected to {path}, which is also an input", HINT)


def _both(named: str, own: Path, output: Path) -> OutputError:
    if own != output:
        return OutputError(
            f"{output}: the input {named} is a file that this run writes: {own.name}", HINT
        )
    if named == str(output):
        return OutputError(f"{output}: is both the input and the output", HINT)
    return OutputError(f"{output}: the input {named} is the same file", HINT)


def _files(named: str | Path) -> Iterator[tuple[str, Identity]]:
    """Yield the files that an input stands for."""
    if str(named) == "-":
        if found := _identity_of(sys.stdin):
            yield "stdin", found
        return
    if found := _identity(Path(named)):
        yield str(named), found


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


def _of(found: os.stat_result) -> Identity | None:
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
