"""The process: `python -m bertcli`, and the `bertcli` command."""

import atexit
import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from bertcli.io.system_calls import ENDING, BusErrors, alarm, fill_closed, on_alarm, silence

AGAIN = 0.01  # seconds
SELDOM = 100_000  # new objects before Python looks for garbage among them; it has 700


def heed(caught: list[int]) -> Callable[[], None]:
    """Let signals end the run by an exception, note them, and return what undoes that.

    C code lets no other exception through, and files are tidied up on the way. Where Python
    ignores exceptions (in a `__del__`, say), an alarm raises it again until it is heard. What
    nohup or a shell's & ignores stays ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        end(number, frame)

    def end(number: int, frame: FrameType | None) -> None:
        inside = frame
        while inside and inside.f_code is not ignored.__code__:
            inside = inside.f_back
        alarm(AGAIN if inside else 0)
        if not inside:
            raise KeyboardInterrupt

    def ignored(what: "sys.UnraisableHookArgs") -> None:
        if caught and issubclass(what.exc_type, KeyboardInterrupt):
            alarm(AGAIN)
        else:
            sys.__unraisablehook__(what)

    def undo() -> None:
        alarm(0)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    sys.unraisablehook = ignored
    numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, stop)
    on_alarm(end)
    return undo


def run() -> NoReturn:
    """Run the command line and exit with its code, or as a shell expects: 128 + the signal."""
    gc.set_threshold(SELDOM)  # modules are no garbage: looking through them takes 35 ms
    caught: list[int] = []
    fill_closed()
    BusErrors.explained = True
    undo = heed(caught)
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # numpy's threads wait asleep: 25 ms
    code = 130
    try:
        from bertcli.cli.app import main
        from bertcli.cli.display.console import Console

        Console.left_open = deque()  # the system frees them at once, which takes us 15 ms
        code = main()
    except KeyboardInterrupt:
        pass
    except (AttributeError, ImportError, RuntimeError, SystemError, TypeError, ValueError):
        if not caught:
            raise  # else it is what C code made of the interrupt, as torch's and NumPy's does
    undo()  # there is nothing left to tidy up
    try:
        sys.stderr.flush()
    except OSError:  # a full log, which would make the exit code 120
        silence(2)
    if caught:
        # `python -m bertcli` would end by SIGINT, whatever its code, when the last code that stood
        # in a string, such as dataclasses are made by, ended by an interrupt. Now it has not.
        exec("")
    leave(128 + caught[0] if caught else code, bool(caught))


def leave(code: int, interrupted: bool) -> NoReturn:
    """End the process with this code, at once.

    To take all modules and libraries apart takes 15 ms, and the system takes their memory back
    anyway; threads that are at work in a library meanwhile may end in its abort. What Python runs
    or waits for at its end, it still does, unless it was interrupted.
    """
    if interrupted or sum(not thread.daemon for thread in threading.enumerate()) == 1:
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # then Python itself tells of a stdout that is full
            if sys.stdout is not None:
                sys.stdout.flush()
            os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
