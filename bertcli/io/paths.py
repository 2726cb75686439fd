"""Paths: side files of an output, identity of files, credentials in URLs, digests.

    refuse_inputs(("reviews.jsonl", "-"), [Path("out.npy"), Path("out.npy.partial")])
    public("http://me:secret@mirror.org/x?token=abc")  # 'http://***@mirror.org/x?token=***'

A run never writes a file that it reads, also not through a link. It writes its output and
temporary files beside it. The manifest of ``out.npy`` is ``out.npy.manifest.json``.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from bertcli.errors import ModelError, OutputError, option

Identity = tuple[int, int] | str  # device and inode, or the path of a file to be created

HUB_SCHEME = "hf://"  # of URLs of the Hugging Face hub
# A file of a dataset in the hub's cache. Names of owners and repositories have no "--".
HUB_FILE = re.compile(
    r"(?:^|[/\\])datasets--(?P<owner>[^/\\]+?)--(?P<name>[^/\\]+)"
    r"[/\\]snapshots[/\\](?P<commit>[0-9a-f]{40})[/\\](?P<path>.+)"
)

OTHER_PATH_HINT = "write to another place, or move the input away"


def input_name(path: str | Path) -> str:
    r"""Return the name of an input in records, messages and manifests: its path, or stdin.

    A file of a dataset in the hub's cache has the URL of its commit. Bytes of a path that are not
    UTF-8 are escaped as ``\xff``, because outputs are UTF-8.
    """
    name = "stdin" if str(path) == "-" else str(path)
    if "datasets--" in name and (file := HUB_FILE.search(name)):
        dataset = f"{HUB_SCHEME}datasets/{file['owner']}/{file['name']}"
        path_in_dataset = file["path"].replace("\\", "/")
        name = f"{dataset}@{file['commit']}/{path_in_dataset}"
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode(errors=ESCAPE_ERRORS).decode()
    return name


def normalized(path: str) -> str:
    """Return one name for all spellings of a path: relative if it is below the working folder.

    ``notes/a.txt`` is also ``./notes//a.txt`` and ``/home/me/notes/a.txt``. Links are not followed.
    """
    if path == "-":
        return path
    full_path = os.path.abspath(path)
    return full_path.removeprefix(os.path.join(os.getcwd(), "")) or full_path


def _escaped_byte(error: UnicodeError) -> tuple[str, int]:
    """Return the escape of a lone surrogate, which stands for a byte of a path (PEP 383)."""
    assert isinstance(error, UnicodeEncodeError)
    code = ord(error.object[error.start])
    is_byte = 0xDC80 <= code <= 0xDCFF
    escape = f"\\x{code - 0xDC00:02x}" if is_byte else f"\\u{code:04x}"
    return escape, error.start + 1


ESCAPE_ERRORS = "bertcli.escapes"
codecs.register_error(ESCAPE_ERRORS, _escaped_byte)


def refuse_inputs(inputs: Iterable[str | Path], outputs: Sequence[str | Path]) -> None:
    """Raise OutputError if an input is also an output; the first output is named in the message.

    ``-`` is stdin or stdout, which may be redirected. Pipes and devices may be both.
    """
    output_identities = {_identity(path, sys.stdout) for path in outputs} - {None}
    for path in inputs:
        if _identity(path, sys.stdin) in output_identities:
            output = "stdout" if outputs[0] == "-" else outputs[0]
            name = input_name(path)
            raise OutputError(f"{output}: the input {name} would be overwritten", OTHER_PATH_HINT)


def _identity(path: str | Path, stream: Any) -> Identity | None:
    """Return the identity of a regular file or folder, or None; ``-`` is the stream."""
    with suppress(OSError, ValueError, AttributeError):  # the stream is closed, or not a file
        try:
            status = os.stat(stream.fileno() if str(path) == "-" else path)
        except FileNotFoundError:
            return os.path.realpath(path)
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            return status.st_dev, status.st_ino
    return None


def beside(path: Path, suffix: str) -> Path:
    """Return the path of a side file, whose name is that of ``path`` with this suffix."""
    return path.with_name(path.name + suffix)


def manifest_beside(path: Path) -> Path:
    """Return the path of the manifest of a file; for a link, beside its target."""
    return beside(Path(os.path.realpath(path)), ".manifest.json")


def unfinished_path(path: Path, tag: str = "bertcli") -> Path:
    """Return the hidden path beside ``path`` of an unfinished file or folder."""
    return path.with_name(f".{path.name}.{tag}.tmp")


HIDDEN = "***"

ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://\S+")
# User and password end at the "@" before the path. A "/" in a password is invalid, but happens: a
# colon without a port number behind it shows that this is not a path with an "@".
USER = re.compile(r"(?<=://)(?:[^/?#]*|[^/@:]*:(?!\d*/)[^@]*)@")
QUERY = re.compile(r"([?&][\w.~%-]+=)[^&\s'\"]+")


def public(text: str) -> str:
    """Return a text without users, passwords and query values in its URLs."""
    if "://" not in text:
        return text

    def hidden(address: re.Match[str]) -> str:
        return QUERY.sub(rf"\1{HIDDEN}", USER.sub(f"{HIDDEN}@", address[0], count=1))

    return ADDRESS.sub(hidden, text)


class WatchedFiles:
    """Files and their versions at the start, such as model files, which are mapped."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.versions = {path: _version_of(path) for path in paths}

    @property
    def changed(self) -> list[Path]:
        """The files that have been written, replaced or removed."""
        return [path for path, version in self.versions.items() if _version_of(path) != version]

    def refuse_changes(self) -> None:
        """Raise ModelError if a model file has changed, because results may be wrong then."""
        path = next(iter(self.changed), None)
        if path is not None:
            raise ModelError(
                f"{path}: was changed while it was in use",
                f"run the command again with {option('overwrite')}, when the model is complete",
            )


def _version_of(path: Path) -> tuple[int, int, int] | None:
    """Return size, modification time and inode of a file; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb", buffering=0) as file:
        return sha256_of(file)


def sha256_of(file: FileIO) -> str:
    """Return the SHA-256 of an open file, from its position on."""
    import hashlib

    digest = hashlib.sha256()
    buffer = bytearray(1 << 18)  # reused: new memory takes longer than the reading
    while size := file.readinto(buffer):
        digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()
