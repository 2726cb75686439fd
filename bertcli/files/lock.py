"""One writer at a time: a lock on a file, which the system gives back when its holder dies."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bertcli.errors import OutputError
from bertcli.files.atomic import explained
from bertcli.files.system_calls import MOVES_OPEN_FILES, OWNER

PATIENCE = 0.2  # seconds; a lock file that others make and remove is tried again
# A file system without locks, as some on clusters are: work there goes on unguarded.
UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(path: Path, output: Path, mode: int | None = None) -> Iterator[None]:
    """Hold the lock file at ``path`` while the block runs, and remove it afterwards.

    Raises OutputError, about ``output``, when a living process holds it. The file that a dead one
    left is no obstacle.
    """
    from filelock import FileLock, Timeout

    own: dict[str, Any] = {} if mode is None else {"mode": mode | OWNER}
    lock = FileLock(path, timeout=PATIENCE, fallback_to_soft=False, **own)
    with explained(output):
        try:
            lock.acquire()
        except Timeout:
            if not path.exists():
                path.touch()  # where none can be made, this says why
            raise OutputError(
                f"{output}: another bertcli is writing it (process {_holder(path)})",
                "wait for it to end, or choose another name",
            ) from None
        except OSError as failed:
            if failed.errno not in UNSUPPORTED:
                raise
        else:
            with suppress(OSError):  # for those who are refused; a full disk is noticed soon enough
                path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        if MOVES_OPEN_FILES:
            path.unlink(missing_ok=True)  # before the lock is given back, or it may be another's
        lock.release()
        if not MOVES_OPEN_FILES:
            with suppress(OSError):
                path.unlink()


def _holder(path: Path) -> str:
    with suppress(OSError), path.open(errors="replace") as file:
        return file.read(20) or "unknown"
    return "unknown"
