"""What a process of a pool does: batches in, vectors out, until its parent ends.

A batch is begun as soon as it is there, before the vectors of the one before it are waited for: a
GPU has work then while those come back. A runner that has no queue begins when it is waited for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any, NoReturn

from bertcli.errors import BertcliError
from bertcli.files.system_calls import ignore_terminal
from bertcli.inference.runner import Finish, Runner, Tokens, Work, result_of

Job = tuple[Tokens, Finish]
Open = Callable[[], Runner]  # is sent to the process


def work(line: Connection, opener: Open) -> None:
    """Load the model and answer each batch with its vectors, until the parent ends this process."""
    ignore_terminal()
    jobs: Queue[Job] = Queue()
    answers: Queue[tuple[str, Any]] = Queue()
    threading.Thread(target=_receive, args=(line, jobs), daemon=True).start()
    threading.Thread(target=_send, args=(line, answers), daemon=True).start()
    try:
        runner = opener()
        answers.put(("ready", None))
        serve(runner, jobs, answers)
    except BertcliError as error:
        answers.put(("error", error))
        threading.Event().wait()  # the parent reads it, and ends this process


def serve(runner: Runner, jobs: Queue[Job], answers: Queue[tuple[str, Any]]) -> NoReturn:
    """Answer jobs in their order; those that are there are begun before the first is waited for."""
    begun: deque[Work] = deque()
    while True:
        while not (begun and jobs.empty()):
            begun.append(runner.run(*jobs.get()))
        found = result_of(begun.popleft(), lambda message: answers.put(("warning", message)))
        answers.put(("vectors", found))


def _receive(line: Connection, jobs: Queue[Job]) -> None:
    """Read at all times, so that the parent never waits; end with the parent."""
    try:
        while True:
            jobs.put(line.recv())
    except (EOFError, OSError):
        os._exit(1)


def _send(line: Connection, answers: Queue[tuple[str, Any]]) -> None:
    """Write beside the work, as the parent may be busy with the disk."""
    try:
        while True:
            line.send(answers.get())
    except OSError:
        os._exit(1)
