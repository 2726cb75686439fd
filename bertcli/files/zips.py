"""Zip archives, which NPZ files and torch's checkpoints are: those from outside with bounds.

    with open_zip(path) as archive:    # BadZipFile says what is wrong
        with archive.open("a.npy") as member: ...

A member is named once; its bytes are stored or deflated, which can be read piece by piece (bz2 and
lzma cannot), and not encrypted.
"""

from __future__ import annotations

import os
import stat
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

UNREADABLE = (BadZipFile, zlib.error, EOFError)  # what a broken archive raises


def open_zip(path: str | Path) -> ZipFile:
    """Open an archive for reading. Raises BadZipFile, or OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a device may have no end
        raise BadZipFile("it has no directory of members: it is no regular file")
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
