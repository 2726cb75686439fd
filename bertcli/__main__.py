"""The process: `python -m bertcli`, and the `bertcli` command."""

import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN = 0.01  # seconds


def run() -> NoReturn:
    """Run the command line and exit with its code, or as a shell expects: 128 + the signal."""
    caught: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        """End by an exception, so that files are tidied up; C code lets no other one through."""
        caught.append(number)
        raise KeyboardInterrupt

    def lost(what: "UnraisableHookArgs") -> None:
        """Send the signal again: where it arrived (in a `__del__`, say) its exception ended."""
        if caught and issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(AGAIN, os.kill, (os.getpid(), caught[-1])).start()
        else:
            sys.__unraisablehook__(what)

    sys.unraisablehook = lost
    every = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    numbers = [  # what nohup or a shell's & ignores stays ignored; Windows has no SIGHUP
        number
        for number in every
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in numbers:
        signal.signal(number, stop)
    gc.disable()  # modules are no garbage: looking through them takes 15 ms at the start ...
    code = 130
    try:
        from bertcli.cli.app import main

        code = main()
        gc.freeze()  # ... and as much at the end
    except KeyboardInterrupt:
        pass
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)  # there is nothing left to tidy up
    sys.exit(128 + caught[0] if caught else code)


if __name__ == "__main__":
    run()
