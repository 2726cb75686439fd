"""What names of files tell: files beside an output, the same file twice, addresses, digests.

    refuse_inputs(("reviews.jsonl", "-"), [Path("out.npy"), Path("out.npy.partial")])
    public("http://me:secret@mirror.org/x?token=abc")  # 'http://***@mirror.org/x?token=***'

No file is both read and written by one run: neither by its name nor through a link. What a run
writes is the output, first, and the files beside it that it makes and removes. The manifest of
``out.npy`` is ``out.npy.manifest.json``; where that is longer than a file system takes, the name in
it is cut and a digest of the whole name takes its place, so that the side files of two outputs
never meet: ``loooo~5f0c9a1b2c3d.manifest.json``. What opens a door stays out of addresses.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertcli.errors import OutputError

Identity = tuple[int, int] | str  # the device of a file and its number there; a name to come

HINT = "write to another place, or move the input away"


def input_name(path: str | Path) -> str:
    """Return what messages and manifests call an input: its path, or stdin."""
    return "stdin" if str(path) == "-" else str(path)


def refuse_inputs(inputs: Iterable[str | Path], own: Sequence[Path]) -> None:
    """Raise OutputError when an input is one of the files that a run writes.

    ``-`` is stdin, which may be redirected from a file. Pipes and devices are no matter: nothing of
    theirs is lost.
    """
    outputs = {_identity(path, None): path for path in reversed(own)}
    for named in inputs:
        identity = _identity(named, sys.stdin)
        if identity and identity in outputs:
            raise _both(input_name(named), outputs[identity], own[0])


def refuse_stdout(inputs: Iterable[str | Path]) -> None:
    """Raise OutputError when stdout is appended to a file that is read: it would have no end."""
    stdout = _identity("-", sys.stdout)
    for named in inputs:
        if stdout and _identity(named, sys.stdin) == stdout:
            name = input_name(named)
            raise OutputError(f"stdout is redirected to {name}, which is also an input", HINT)


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


def _identity(named: str | Path, stream: Any) -> Identity | None:
    """Return what tells a file, or for ``-`` the stream, from all others that last."""
    with suppress(OSError, ValueError, AttributeError):  # closed, or no file of the system
        try:
            status = os.stat(stream.fileno() if str(named) == "-" else named)
        except FileNotFoundError:
            return os.path.realpath(named)
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            return status.st_dev, status.st_ino
    return None


LONGEST = 255  # bytes of a name, on the file systems in use


def side_name(name: str, end: str) -> str:
    """Return the name of the side file with this end."""
    import hashlib

    if _size(name + end) <= LONGEST:
        return name + end

    mark = f"~{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"
    room = LONGEST - _size(mark + end)
    return os.fsencode(name)[:room].decode("utf-8", "ignore") + mark + end


def beside(path: Path, end: str) -> Path:
    """Return the place of the side file with this end."""
    return path.with_name(side_name(path.name, end))


def manifest_beside(path: Path) -> Path:
    """Return where the manifest of a file is: for a link, beside what it points to."""
    return beside(Path(os.path.realpath(path)), ".manifest.json")


def making(path: Path) -> Path:
    """Return the hidden name of what is to become this file or folder."""
    return path.with_name(side_name(f".{path.name}", ".bertcli.tmp"))


def making_alone(path: Path) -> Path:
    """Return such a name that no other process has."""
    return path.with_name(side_name(f".{path.name}", f".{os.urandom(4).hex()}.tmp"))


def _size(name: str) -> int:
    return len(os.fsencode(name))


HIDDEN = "***"

ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://\S+")
# A name and a password end at the "@" before the path. A password with a "/" in it, which is wrong
# but happens, is told from a port, and from a path with an "@", by what follows the colon.
USER = re.compile(r"(?<=://)(?:[^/?#]*|[^/@:]*:(?!\d*/)[^@]*)@")
QUERY = re.compile(r"([?&][\w.~%-]+=)[^&\s'\"]+")


def public(text: str) -> str:
    """Return a text whose addresses have no names, no passwords and no values of a query."""
    if "://" not in text:
        return text

    def hidden(address: re.Match[str]) -> str:
        return QUERY.sub(rf"\1{HIDDEN}", USER.sub(f"{HIDDEN}@", address[0], count=1))

    return ADDRESS.sub(hidden, text)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading a megabyte at a time."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
