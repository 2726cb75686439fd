"""What names of files tell: files beside an output, the same file twice, addresses, digests.

    refuse_inputs(("reviews.jsonl", "-"), [Path("out.npy"), Path("out.npy.partial")])
    public("http://me:secret@mirror.org/x?token=abc")  # 'http://***@mirror.org/x?token=***'

No file is both read and written by one run: neither by its name nor through a link. What a run
writes is the output, first, and the files beside it that it makes and removes. The manifest of
``out.npy`` is ``out.npy.manifest.json``. What opens a door stays out of addresses.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertcli.errors import ModelError, OutputError, option

Identity = tuple[int, int] | str  # the device of a file and its number there; a name to come

HINT = "write to another place, or move the input away"


def input_name(path: str | Path) -> str:
    r"""Return what records, messages and manifests call an input: its path, or stdin.

    Bytes of a path that are not UTF-8, which no format of rows can hold, are escaped: ``\xff``.
    """
    name = "stdin" if str(path) == "-" else str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode(errors=ESCAPES).decode()
    return name


def normalized(path: str) -> str:
    """Return one name for all spellings of a path: relative if it is below the working folder.

    ``notes/a.txt`` is also ``./notes//a.txt`` and ``/home/me/notes/a.txt``. Links are not followed.
    """
    if path == "-":
        return path
    full_path = os.path.abspath(path)
    return full_path.removeprefix(os.path.join(os.getcwd(), "")) or full_path


def _escaped_byte(bad: UnicodeError) -> tuple[str, int]:
    """Return the escape of half of a surrogate pair: Python stands one for a byte of a path."""
    assert isinstance(bad, UnicodeEncodeError)
    code = ord(bad.object[bad.start])
    is_byte = 0xDC80 <= code <= 0xDCFF  # PEP 383
    return f"\\x{code - 0xDC00:02x}" if is_byte else f"\\u{code:04x}", bad.start + 1


ESCAPES = "bertcli.escapes"
codecs.register_error(ESCAPES, _escaped_byte)


def refuse_inputs(inputs: Iterable[str | Path], own: Sequence[str | Path]) -> None:
    """Raise OutputError when an input is one of the files that a run writes.

    ``-`` is stdin, or among those that are written stdout, which may be redirected. Pipes and
    devices are no matter: nothing of theirs is lost.
    """
    outputs = {*(_identity(path, sys.stdout) for path in own)} - {None}
    for named in inputs:
        if _identity(named, sys.stdin) in outputs:
            output = "stdout" if own[0] == "-" else own[0]
            name = input_name(named)
            raise OutputError(f"{output}: the input {name} would be overwritten", HINT)


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


def beside(path: Path, end: str) -> Path:
    """Return the place of the side file with this end."""
    return path.with_name(path.name + end)


def manifest_beside(path: Path) -> Path:
    """Return where the manifest of a file is: for a link, beside what it points to."""
    return beside(Path(os.path.realpath(path)), ".manifest.json")


def making(path: Path, end: str = "bertcli") -> Path:
    """Return the hidden name of what is to become this file or folder."""
    return path.with_name(f".{path.name}.{end}.tmp")


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


class WatchedFiles:
    """Files that must not change while they are mapped, told by size, time of change and inode."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.before = {path: _version_of(path) for path in paths}

    def refuse_changes(self) -> None:
        """Raise ModelError for a file that has changed: what was made of it meanwhile is void."""
        for path, version in self.before.items():
            if _version_of(path) != version:
                raise ModelError(
                    f"{path}: was changed while it was in use",
                    f"run the command again with {option('overwrite')}, when the model is complete",
                )


def _version_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when the contents of a file do: size, time of change, inode."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading a megabyte at a time."""
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
