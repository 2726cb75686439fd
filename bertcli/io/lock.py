"""One process at a time writes an output: it holds a lock file, which the system frees at its end.

    with locked(Path("out.npy.run/bertcli.lock"), Path("out.npy")):
        ...     # no other bertcli is here

The lock file is in a folder of its output: the run folder of a file, the hidden work folder of a
folder that is published by one rename, or the output folder of a training run. A lock file that a
killed process left is no obstacle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertcli.errors import OutputError
from bertcli.io.system_calls import MOVES_OPEN_FILES, leads_to, open_lock, try_lock

LOCK = "bertcli.lock"
ATTEMPTS = 100  # to lock a folder that other processes remove meanwhile


class BusyOutputError(OutputError):
    """Another process writes the output."""

    def __init__(self, output: Path) -> None:
        super().__init__(
            f"{output}: another bertcli is writing it",
            "wait for it to end, or choose another name",
        )


@contextmanager
def locked(
    lock: Path,
    output: Path,
    *,
    check: Callable[[], object] = lambda: None,
    keep_folder: bool = False,
) -> Iterator[bool]:
    """Hold a lock file while the block runs.

    Its folder is created if need be, for its owner alone. Afterwards the lock file and the folder
    are removed if nothing else is in the folder; with ``keep_folder``, the lock file is removed
    whatever else is there, and the folder stays.
    ``check`` is called before each attempt, to refuse the folder. Yields False where the system
    has no locks, so that another process may be in the block, too.

    Raises BusyOutputError if another process holds the lock, OSError if it cannot be made.
    """
    locks: list[int] = []  # the open lock file, once there is one
    check()  # nothing is removed from a folder that is refused
    try:
        yield _hold(lock, output, check, locks)
    finally:  # also after a signal that came while the folder was made
        try:
            _release(lock, locks, keep_folder=keep_folder)
        except KeyboardInterrupt:
            _release(lock, locks, keep_folder=keep_folder)
            raise


def _hold(lock: Path, output: Path, check: Callable[[], object], locks: list[int]) -> bool:
    """Open and lock the file, and append its descriptor to ``locks``.

    Returns False where the system has no locks. Raises as `locked`.
    """
    for _ in range(ATTEMPTS):
        check()
        with suppress(FileExistsError):
            lock.parent.mkdir(0o700)
        try:
            locks.append(open_lock(lock))
        except FileNotFoundError:  # the process that held the lock has removed its folder
            continue
        is_held = try_lock(locks[0])
        if is_held is not False and leads_to(lock, locks[0]):
            return is_held is True
        os.close(locks.pop())
        if is_held is False:
            break
    raise BusyOutputError(output)


def _release(lock: Path, locks: list[int], *, keep_folder: bool) -> None:
    """Remove the lock file and its folder, see `locked`. May be called again after an interrupt.

    Without ``locks``, the file is locked first. It stays if another process holds it.
    """
    folder = lock.parent
    with suppress(OSError):
        if not locks and lock.exists():  # another's, or a signal came while it was opened
            locks.append(open_lock(lock))
            if try_lock(locks[0]) is not True or not leads_to(lock, locks[0]):
                os.close(locks.pop())
                return
        if locks:
            is_removed = False
            with suppress(OSError):  # where the folder cannot be listed
                is_removed = keep_folder or os.listdir(folder) == [lock.name]
                if is_removed and MOVES_OPEN_FILES:
                    lock.unlink()  # before it is released: then it may be another's
            os.close(locks.pop())
            if is_removed and not MOVES_OPEN_FILES:
                lock.unlink()
        if not keep_folder:
            folder.rmdir()  # fails if it is not empty
