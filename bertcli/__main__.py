"""The process: `python -m bertcli`, and the `bertcli` command.

Everything that changes the process as a whole is here, so that the library never does: signals,
garbage collection, closed streams and the exit.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from bertcli.io.system_calls import (
    END_SIGNALS,
    BusErrors,
    erase_interrupt_echo,
    on_alarm,
    open_missing_streams,
    set_alarm,
    silence,
)

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

REPEAT_SECONDS = 0.01  # until an interrupt that Python ignored is raised again
GC_THRESHOLD = 100_000  # new objects between two garbage collections; Python's default is 700
# What C extensions raise in place of an interrupt: torch while it checks its arguments, and the
# import of NumPy.
MASKED_INTERRUPTS = (
    AttributeError,
    ImportError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)


class Interrupts:
    """Turn the signals that end a process into KeyboardInterrupt, and remember the first.

    So files are cleaned up on the way, also after SIGTERM and SIGHUP. Signals that the parent
    process ignores, as nohup and a shell's `&` do, stay ignored.
    """

    def __init__(self) -> None:
        self.first_signal: int | None = None
        self.signals = [
            number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
        ]

    def install(self) -> None:
        """Raise KeyboardInterrupt for signals from now on."""
        for number in self.signals:
            signal.signal(number, self._interrupt)
        on_alarm(self._interrupt)
        sys.unraisablehook = self._repeat_ignored

    def uninstall(self) -> None:
        """Let signals end the process at once from now on."""
        set_alarm(0)
        for number in self.signals:
            signal.signal(number, signal.SIG_DFL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.first_signal is None:
            self.first_signal = number
            if number == signal.SIGINT:
                erase_interrupt_echo()
        raise KeyboardInterrupt

    def _repeat_ignored(self, unraisable: "UnraisableHookArgs") -> None:
        """Raise an interrupt again if it came in a `__del__` method or a callback.

        Python drops exceptions there, see the documentation of `sys.unraisablehook`.
        """
        if self.first_signal is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
            set_alarm(REPEAT_SECONDS)
        else:
            sys.__unraisablehook__(unraisable)


def run() -> NoReturn:
    """Run the command line and exit with its code, or with 128 + the signal that ended it."""
    gc.set_threshold(GC_THRESHOLD)  # collecting while modules are imported takes 35 ms
    open_missing_streams()
    BusErrors.explained = True
    interrupts = Interrupts()
    interrupts.install()
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # NumPy's idle threads sleep: 25 ms
    code = 130
    try:
        from bertcli.cli.app import main

        code = main()
    except KeyboardInterrupt:
        pass
    except MASKED_INTERRUPTS:
        if interrupts.first_signal is None:
            raise
    interrupts.uninstall()
    try:
        sys.stderr.flush()
    except OSError:  # a log on a full disk, for which Python would exit with 120
        silence(2)
    if interrupts.first_signal is not None:
        end_process(128 + interrupts.first_signal)
    if has_other_threads():
        sys.exit(code)
    end_process(code)


def has_other_threads() -> bool:
    """Return True if threads are running that Python waits for before it exits."""
    return any(
        not thread.daemon and thread is not threading.main_thread()
        for thread in threading.enumerate()
    )


def end_process(code: int) -> NoReturn:
    """Run the exit handlers, flush stdout and exit, without finalizing the interpreter.

    Finalization takes 15 ms, and threads that still work in torch or OpenVINO may crash in it.
    It would also end an interrupted `python -m bertcli` by SIGINT in place of 130, where the
    interrupt came in code compiled from a string, as the methods of dataclasses are: see
    https://bugs.python.org/issue1054041.
    """
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # sys.exit reports that stdout is full
        if sys.stdout is not None:
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
