"""System calls that differ between Linux, macOS and Windows.

No other module tests which system it runs on.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket


OWNER_MODE = 0o600  # permissions of unfinished files: read and write for their owner
# Errors of fsync for folders without read permission, and of file systems without it for folders.
IGNORED_SYNC_ERRORS = (errno.EACCES, errno.EINVAL, errno.ENOTSUP)
MOVES_OPEN_FILES = os.name == "posix"  # Windows neither renames nor removes an open file
END_SIGNALS = [signal.SIGINT, signal.SIGTERM]  # the signals that ask a process to end
if hasattr(signal, "SIGHUP"):
    END_SIGNALS.append(signal.SIGHUP)
MMAP_THRESHOLD = -3  # the options M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt
TRIM_THRESHOLD = -1
SO_ATTACH_FILTER = 26  # the socket option of Linux for a BPF program that packets must pass
RETURN_CONSTANT = 6  # instruction BPF_RET | BPF_K: the number of bytes that are let through


# --- files ---


def opener(mode: int | None) -> Callable[[str, int], int]:
    """Return an ``opener`` for `open` that refuses symbolic links.

    ``mode`` has the permissions of a new file, to which those of the owner are added; None: the
    default of the process.
    """
    permissions = 0o666 if mode is None else mode | OWNER_MODE
    no_link = getattr(os, "O_NOFOLLOW", 0)
    return lambda path, flags: os.open(path, flags | no_link, permissions)


def write_all(file: IO[bytes], data: bytes | bytearray) -> None:
    """Write all bytes to an unbuffered file, whose `write` may write only some of them."""
    remaining = memoryview(data)
    while remaining:
        written = file.write(remaining)
        remaining = remaining[written:]


def sync(file: IO[Any]) -> None:
    """Flush a file and wait until its bytes are on the disk."""
    file.flush()
    os.fsync(file.fileno())


def open_lock(path: Path) -> int:
    """Open or create a lock file; return its descriptor.

    Raises FileExistsError if the path is not a regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    lock = os.open(path, flags, OWNER_MODE)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise FileExistsError(errno.EEXIST, "not a regular file", str(path))
    return lock


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder until it is closed or this process ends; return True on success.

    False: another process has the lock. None: the file system has no locks, as on some clusters.
    """
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt = import_module("msvcrt")
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def leads_to(path: Path, descriptor: int) -> bool:
    """Return True if a path still leads to an open file or folder.

    Windows renames no open file: there, it is enough that the path exists.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.name != "posix" or os.path.samestat(status, os.fstat(descriptor))


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are on the disk. Does nothing on Windows."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in IGNORED_SYNC_ERRORS:
            raise


# --- standard streams ---


def open_missing_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next file that is opened would become stdin, stdout or stderr. `sys.stdin` and
    `sys.stdout` stay None; messages to stderr are dropped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(descriptor, True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def silence(number: int) -> None:
    """Drop everything that is written to a standard stream from now on."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, number)
    os.close(null_device)


# --- sockets ---


def ignore_new_connections(listener: socket) -> None:
    """Have Linux ignore new connections to a listening socket; those not yet accepted remain.

    The clients of ignored connections try again after a second, and are refused if the socket is
    closed by then. Without effect on other systems.
    """
    import platform  # takes 2 ms, which most commands need not pay

    if platform.system() == "Linux":
        import ctypes
        from socket import SOL_SOCKET  # takes 4 ms, which most commands need not pay

        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", RETURN_CONSTANT, 0, 0, 0))
        with suppress(OSError):  # of systems that only resemble Linux
            program = struct.pack("HP", 1, ctypes.addressof(drop_all))  # of one instruction
            listener.setsockopt(SOL_SOCKET, SO_ATTACH_FILTER, program)


def reuse_closing_port(listener: socket) -> None:
    """Let a socket bind a port on which connections of an ended process are still closing.

    Windows allows that without an option, and with SO_REUSEADDR also a port that is in use.
    """
    if os.name == "posix":
        from socket import SO_REUSEADDR, SOL_SOCKET  # takes 4 ms, which most commands need not pay

        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)


# --- mapped files ---

FILE_SHORTENED = (
    b"error: a file of the model or of vectors became shorter while it was in use\n"
    b"hint: run the command again when the file is complete\n"
)


class BusErrors:
    """The message for SIGBUS, which the system sends when a mapped file is truncated.

    Only the process of a command sets ``explained``. It then ends with a message and exit code 1.
    The handler is a C function: those of Python run after the failing instruction, which would be
    repeated forever.
    """

    explained = False
    handler: Any = None

    @classmethod
    def expect(cls) -> None:
        """Install the handler; called before a file is mapped."""
        if not cls.explained or cls.handler or not hasattr(signal, "SIGBUS"):
            return
        import ctypes  # 10 ms
        from threading import Lock

        first = Lock()  # of several threads that read the file at once

        def explain(number: int) -> None:
            first.acquire()
            os.write(2, FILE_SHORTENED)
            os._exit(1)

        cls.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain)
        ctypes.CDLL(None).signal(int(signal.SIGBUS), cls.handler)


# --- processes ---


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LargeBlocks:
    """Whether glibc returns freed blocks of a megabyte and more to the system at once.

    By default it keeps a freed block if one as large, of up to 32 MB, was freed before. The blocks
    kept from batches may take more memory than the weights; but where NumPy allocates such blocks
    again and again, returning them takes longer than its work. The setting holds for the whole
    process. Both methods are without effect if an environment variable for glibc's allocator is
    set (``GLIBC_TUNABLES`` with any content), and with other C libraries.
    """

    are_returned = False

    @classmethod
    def give_back(cls) -> None:
        """Return large blocks from now on."""
        cls.are_returned = True
        cls._set_limits(mmap_threshold=1 << 20, trim_threshold=1 << 17)

    @classmethod
    def keep(cls) -> None:
        """Undo `give_back`: keep freed blocks of up to 32 MB, the largest that glibc keeps."""
        if cls.are_returned:
            cls.are_returned = False
            cls._set_limits(mmap_threshold=32 << 20, trim_threshold=64 << 20)

    @staticmethod
    def _set_limits(*, mmap_threshold: int, trim_threshold: int) -> None:
        """Set the size from which blocks are returned, and that of free memory which is kept."""
        if {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & {*os.environ}:
            return
        import ctypes  # takes milliseconds; NumPy imports it too

        with suppress(AttributeError, OSError, TypeError):  # another C library
            c_library = ctypes.CDLL(None)
            c_library.mallopt(MMAP_THRESHOLD, mmap_threshold)
            c_library.mallopt(TRIM_THRESHOLD, trim_threshold)


def on_alarm(handler: Callable[[int, Any], None]) -> None:
    """Set the function that an alarm calls. Windows has no alarms."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, handler)


def set_alarm(seconds: float) -> None:
    """Send SIGALRM to this process after so many seconds; 0 cancels it. Windows has no alarms."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def erase_interrupt_echo() -> None:
    """Erase the ^C that a terminal shows for Ctrl-C, so that a message or prompt is alone there.

    Does nothing if stderr is no terminal, or one without cursor movement (TERM=dumb).
    """
    if os.environ.get("TERM") == "dumb":
        return
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\b\b  \b\b")
