"""One writer at a time: a lock on a file, which the system gives back when its holder dies."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertcli.errors import OutputError
from bertcli.files.side_files import opener
from bertcli.vectors.journal import explained

if sys.platform == "win32":
    import msvcrt

    def _lock(file: io.FileIO) -> None:
        file.seek(1 << 20)  # a byte that nobody reads: others may read the process number
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    # A file system without locks, as some on clusters are: work there goes on unguarded.
    UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)

    def _lock(file: io.FileIO) -> None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failed:
            if failed.errno not in UNSUPPORTED:
                raise


@contextmanager
def locked(path: Path, output: Path, mode: int | None = None) -> Iterator[None]:
    """Hold the lock file at ``path`` while the block runs, and remove it afterwards.

    Raises OutputError, about ``output``, when a living process holds it. The file that a dead one
    left is no obstacle.
    """
    with explained(output):
        file = _take(path, output, mode)
    try:
        yield
    finally:
        _give_back(file, path)


def _take(path: Path, output: Path, mode: int | None) -> io.FileIO:
    file = _held(path, output, mode)
    try:
        file.truncate(0)
        file.write(str(os.getpid()).encode())
    except BaseException:
        _give_back(file, path)
        raise
    return file


def _give_back(file: io.FileIO, path: Path) -> None:
    if sys.platform != "win32":  # which cannot remove an open file
        path.unlink(missing_ok=True)  # before the lock is given back, or it may be another's
    file.close()
    if sys.platform == "win32":
        with suppress(OSError):
            path.unlink()


def _held(path: Path, output: Path, mode: int | None) -> io.FileIO:
    while True:
        file = io.FileIO(path, "a+", opener=opener(mode))
        try:
            _lock(file)
            if _is_at(file, path):
                return file
            file.close()  # its last holder removed it just now
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read(20).decode(errors="replace")
            file.close()
            raise OutputError(
                f"{output}: another bertcli is writing it (process {holder or 'unknown'})",
                "wait for it to end, or choose another name",
            ) from None
        except BaseException:
            file.close()
            raise


def _is_at(file: io.FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
