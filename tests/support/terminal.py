"""Run a command with a pseudo-terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

from front import DEADLINE, PROGRAM, environment


def at_terminal(
    *argv,
    program=PROGRAM,
    columns=80,
    env=(),
    stdin=subprocess.DEVNULL,
    stdout=None,
    stderr=None,
    typed=(),
):
    """Run a command with a terminal for streams that are not given; return exit code and screen.

    ``typed`` are pairs: a text to wait for on the screen, and the text to type then.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    running = subprocess.Popen(
        [*program, *map(str, argv)],
        stdin=theirs if stdin is None else stdin,
        stdout=stdout or theirs,
        stderr=stderr or theirs,
        env=environment({"TERM": "xterm-256color", **dict(env)}),
        start_new_session=True,
    )
    os.close(theirs)
    seen, left, after = bytearray(), list(typed), 0
    while True:
        while left and (found := seen.find(left[0][0], after)) >= 0:
            after = found + len(left[0][0])
            os.write(ours, left.pop(0)[1])
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # on Linux, the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    return running.wait(DEADLINE), bytes(seen).replace(b"\r\n", b"\n")
