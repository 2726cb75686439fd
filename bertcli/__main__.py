"""The process: `python -m bertcli`, and the `bertcli` command."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN = 0.01  # seconds


def heed(caught: list[int]) -> Callable[[], None]:
    """Let signals end the run by an exception, note them, and return what undoes that.

    C code lets no other exception through, and files are tidied up on the way. What nohup or a
    shell's & ignores stays ignored.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        caught.append(number)
        raise KeyboardInterrupt

    def again(number: int) -> None:
        if signal.getsignal(number) is stop:
            os.kill(os.getpid(), number)

    def lost(what: "UnraisableHookArgs") -> None:
        """Send the signal again: where it arrived (in a `__del__`, say) its exception ended."""
        if caught and issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN, again, caught[-1:]).start()
        else:
            sys.__unraisablehook__(what)

    def undo() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    sys.unraisablehook = lost
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows
    every = [getattr(signal, name) for name in names]
    numbers = [number for number in every if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, stop)
    return undo


def run() -> NoReturn:
    """Run the command line and exit with its code, or as a shell expects: 128 + the signal."""
    caught: list[int] = []
    undo = heed(caught)
    gc.disable()  # modules are no garbage: looking through them takes 15 ms at the start ...
    code = 130
    try:
        from bertcli.cli.app import main

        code = main()
        gc.freeze()  # ... and as much at the end
    except KeyboardInterrupt:
        pass
    undo()  # there is nothing left to tidy up
    sys.exit(128 + caught[0] if caught else code)


if __name__ == "__main__":
    run()
