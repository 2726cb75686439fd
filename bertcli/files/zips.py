"""Zip archives, which NPZ files and torch's checkpoints are: those from outside with bounds.

    with open_zip(path) as archive:    # BadZipFile says what is wrong
        with archive.open("a.npy") as member: ...

A directory of members is read whole, so its size is bounded; a member is named once; its bytes are
stored or deflated, which can be read piece by piece (bz2 and lzma cannot), and not encrypted.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from zipfile import ZIP_DEFLATED
from zipfile import ZIP_STORED as ZIP_STORED
from zipfile import BadZipFile as BadZipFile
from zipfile import ZipFile as ZipFile
from zipfile import ZipInfo as ZipInfo

LARGEST = 1 << 24  # bytes of a directory: those of 100,000 members and more
UNREADABLE = (BadZipFile, zlib.error, EOFError)  # what a broken archive raises
_END, _END64, _LOCATOR = 22, 56, 20  # bytes of the records at the end of an archive
_COMMENT = 1 << 16  # bytes at most, behind the last of them


def open_zip(path: str | Path) -> ZipFile:
    """Open an archive for reading. Raises BadZipFile, or OSError."""
    with open(path, "rb") as file:
        _check_directory(file)
    try:
        archive = ZipFile(path)
    except (ValueError, NotImplementedError, struct.error, RuntimeError) as broken:
        raise BadZipFile(f"its directory is broken: {broken}") from None
    try:
        _check_members(archive)
    except BadZipFile:
        archive.close()
        raise
    return archive


def _check_directory(file: IO[bytes]) -> None:
    """Refuse a directory that is too large, found as zipfile finds it."""
    size = file.seek(0, 2)
    most = _COMMENT + _END + _LOCATOR + _END64
    file.seek(max(0, size - most))
    tail = file.read(most)  # of a device there is no end
    at = len(tail) - _END
    if tail[at : at + 4] != b"PK\5\6" or tail[-2:] != b"\0\0":  # there is a comment
        at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + _END:
        raise BadZipFile("it has no directory of members: it is truncated, or no zip")
    directory: int = struct.unpack("<L", tail[at + 12 : at + 16])[0]
    locator, record = at - _LOCATOR, at - _LOCATOR - _END64
    if record >= 0 and tail[locator : locator + 4] == b"PK\6\7":
        directory = struct.unpack("<Q", tail[record + 40 : record + 48])[0]
    if directory > LARGEST:
        raise BadZipFile(f"a directory of {directory:,} bytes, and {LARGEST:,} is the limit")


def _check_members(archive: ZipFile) -> None:
    entries = archive.infolist()
    counts = Counter(entry.filename for entry in entries)
    for entry in entries:
        name = entry.filename
        if counts[name] > 1:
            raise BadZipFile(f"{name!r} is in it twice")
        if entry.flag_bits & 1:
            raise BadZipFile(f"{name!r} is encrypted")
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise BadZipFile(f"{name!r} is compressed in a way that is not supported")


@contextmanager
def npz_archive(file: IO[bytes]) -> Iterator[Callable[[str], IO[bytes]]]:
    """Yield what opens an array of an archive, to write it there. Equal arrays give equal bytes."""
    with ZipFile(file, "w") as archive:

        def member(name: str) -> IO[bytes]:
            entry = ZipInfo(f"{name}.npy")  # its date is fixed
            return archive.open(entry, "w", force_zip64=True)

        yield member
