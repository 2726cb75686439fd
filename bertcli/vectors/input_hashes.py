"""What a run reads, and whether it is still the same when the run is resumed.

Files are hashed whole before the first row: a change behind the rows that are committed, which
nothing else would show, is found as well. Pipes and stdin cannot be read twice; of these only the
records that are committed are compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertcli.errors import OutputError
from bertcli.files.same_file import refuse_inputs
from bertcli.files.streams import can_be_reread, unreadable
from bertcli.inference.progress import Hashed

T = TypeVar("T")

BLOCK = 1 << 20  # bytes read at a time
ARGUMENTS = "arguments"  # the name of texts that are none of a file

Described = dict[str, Any]  # name, bytes and sha256, of which the last two may be None
Hashing = Generator[Hashed, None, T]  # yields how far it is


@dataclass(frozen=True)
class Inputs:
    """The files that a run reads, ``-`` for stdin, or its texts; other files that it needs."""

    paths: Sequence[str] = ()
    texts: Sequence[str | None] = ()
    needed: Sequence[Path] = ()
    times: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of files that were hashed

    def refuse(self, own: Sequence[Path]) -> None:
        """Raise OutputError when one of them is a file that the run writes."""
        refuse_inputs((*self.paths, *self.needed), own)

    @property
    def streams(self) -> list[str]:
        """Those that can be read only once."""
        return ["stdin" if path == "-" else path for path in self.paths if not can_be_reread(path)]

    def described(self) -> Hashing[list[Described]]:
        """Return name, size and sha256 of each, and yield how far that is.

        Raises InputError for one that is not there.
        """
        size = sum(os.stat(path).st_size for path in self.paths if can_be_reread(path))
        found, done = [], 0
        for path in self.paths:
            found.append((yield from self._file(path, done, size)))
            done += found[-1]["bytes"] or 0
        if self.texts:
            whole = repr(tuple(self.texts)).encode()
            digest = hashlib.sha256(whole).hexdigest()
            found.append({"name": ARGUMENTS, "bytes": None, "sha256": digest})
        return found

    def _file(self, path: str, done: int, size: int) -> Hashing[Described]:
        if not can_be_reread(path):
            return {"name": "stdin" if path == "-" else path, "bytes": None, "sha256": None}
        digest, length = hashlib.sha256(), 0
        try:
            with open(path, "rb", buffering=0) as file:
                self.times[path] = _times(os.fstat(file.fileno()))
                while block := file.read(BLOCK):
                    digest.update(block)
                    length += len(block)
                    yield Hashed(done + length, size)
        except OSError as failed:
            raise unreadable(path, failed) from None
        return {"name": path, "bytes": length, "sha256": digest.hexdigest()}

    def refuse_changing(self, output: str, was: Sequence[Mapping[str, Any]]) -> Hashing[None]:
        """Raise OutputError when a file that was hashed has changed since: while it was read."""
        for one in was:
            name = one["name"]
            if name not in self.times or _times_of(name) == self.times[name]:
                continue
            now = yield from self._file(name, 0, os.stat(name).st_size)
            if now["sha256"] != one["sha256"]:
                raise OutputError(
                    f"{output}: input changed while it was read: {name}",
                    "once nothing writes to it, start over with --overwrite",
                )


def _times(found: os.stat_result) -> tuple[int, ...]:
    """Return what differs where a file may have changed."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _times_of(path: str) -> tuple[int, ...]:
    try:
        return _times(os.stat(path))
    except OSError as failed:
        raise unreadable(path, failed) from None


def refuse_changed(
    output: str, was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> None:
    """Raise OutputError, naming the file, when an input is not what it was."""
    before = {str(one.get("name")): one for one in was}
    for one in now:
        earlier = before.get(one["name"], {})
        if earlier.get("sha256") != one["sha256"]:
            raise OutputError(
                f"{output}: input changed: {one['name']}: its records are not those of the run "
                f"that is resumed (sha256 was {_shown(earlier)}, now {_shown(one)})",
                "restore the input, or start over with --overwrite",
            )


def _shown(one: Mapping[str, Any]) -> str:
    return str(one.get("sha256") or "unknown")[:12]
