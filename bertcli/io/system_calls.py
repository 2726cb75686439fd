"""What not every system has, and what stands in for it: Windows has neither fork nor hangups.

Nothing else in the package asks which system this is, or calls what only some have.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


OWNER = 0o600  # who may always read and write what is not finished
UNSYNCED = (errno.EACCES, errno.EINVAL, errno.ENOTSUP)  # of folders that one may only write to
MOVES_OPEN_FILES = os.name == "posix"  # and removes them
# What asks a run to end.
ENDING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


# --- files ---


def opener(mode: int | None) -> Callable[[str, int], int]:
    """Return what opens a file to write, never the one that a link of its name points to.

    A new one is for its owner and those whom ``mode`` names; None: as usual.
    """
    own = 0o666 if mode is None else mode | OWNER
    no_link = getattr(os, "O_NOFOLLOW", 0)
    return lambda path, flags: os.open(path, flags | no_link, own)


def write_all(file: IO[bytes], data: bytes | bytearray) -> None:
    """Write to a file without a buffer, which may take a part at a time."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def sync(file: IO[Any]) -> None:
    """Put what was written to a file on the disk."""
    file.flush()
    os.fsync(file.fileno())


def open_lock(path: Path) -> int:
    """Open a lock file, which is created if there is none; never a link, pipe or device."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    lock = os.open(path, flags, OWNER)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise FileExistsError(errno.EEXIST, "not a regular file", str(path))
    return lock


def hold(opened: int) -> bool | None:
    """Hold what is open until it is closed, or this process ends; return whether that succeeds.

    It does not while another process holds it. None: the system has no such locks, as on some
    clusters, and nobody can tell.
    """
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt = import_module("msvcrt")
            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def is_at(place: Path, opened: int) -> bool:
    """Tell whether this name is still that of what is open. Windows renames nothing open."""
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return False
    return os.name != "posix" or os.path.samestat(status, os.fstat(opened))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files. Windows opens no folder."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as failed:
        if failed.errno not in UNSYNCED:
            raise


# --- standard streams ---


def fill_closed() -> None:
    """Put the null device where a standard stream is closed: a file would get its number.

    Messages then go nowhere; `sys.stdin` and `sys.stdout` stay None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is taken
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def silence(number: int) -> None:
    """Let what is still to be written to a standard stream go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


# --- mapped files ---

SHORTER = (
    b"error: a model file became shorter while it was in use\n"
    b"hint: run the command again when the model is complete\n"
)


class BusErrors:
    """What happens when a mapped file is truncated by another process, which raises SIGBUS.

    The process that runs a command sets ``explained``: it then ends with a message and exit code 1.
    Python's own handlers cannot do this, as they run after the instruction that fails.
    """

    explained = False
    handler: Any = None

    @classmethod
    def expect(cls) -> None:
        """Explain bus errors from now on, because a file is mapped."""
        if not cls.explained or cls.handler or not hasattr(signal, "SIGBUS"):
            return
        import ctypes  # 10 ms

        def explain(number: int) -> None:
            os.write(2, SHORTER)
            os._exit(1)

        cls.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain)
        ctypes.CDLL(None).signal(int(signal.SIGBUS), cls.handler)


# --- processes ---


def cores() -> int:
    """Return how many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def on_alarm(heard: Callable[[int, Any], None]) -> None:
    """Say what an alarm calls."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, heard)


def alarm(seconds: float) -> None:
    """Ring after so many seconds, or not at all: a signal, which also ends a wait of the system."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
