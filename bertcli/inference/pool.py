"""Several devices at once: a process for each, with a model of its own, which runs batches.

The processes load the model all at the same time. When the parent dies, even by a kill, they find
their pipe closed and end. There a batch is begun as soon as it has arrived, before the vectors of
the one before it are waited for: a GPU has work then while those come back.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from queue import Queue

from bertcli.errors import BertcliError, out_of_memory
from bertcli.files.system_calls import born_deaf, ignore_terminal, start_tracker
from bertcli.inference.runner import Arriving, Device, Finish, Kept, Runner, Tokens

PATIENCE = 10.0  # seconds until a process that lost its pipe has ended

Open = Callable[[], Device]  # is sent to the process


class DeviceProcess(Device):
    """A process that runs batches, as its parent sees it; it answers in the order of them."""

    depth = 2

    def __init__(self, where: str, opener: Open) -> None:
        """Start the process, which loads the model there."""
        self.where = where
        spawn = multiprocessing.get_context("spawn")
        self.line, theirs = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(theirs, opener), daemon=True)
        self.process.start()
        theirs.close()  # or its end would not be noticed

    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Send a batch."""
        try:
            self.line.send((batch, finish))
        except OSError:
            raise self._lost() from None
        return self._answer

    def _answer(self) -> Kept:
        try:
            answer: Kept | Exception = self.line.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _lost(self) -> BertcliError:
        self.process.join(PATIENCE)
        code = self.process.exitcode
        ended = f"ended with exit code {code}"
        if code is not None and code < 0:
            ended = f"was killed by {signal.Signals(-code).name}"
        return BertcliError(
            f"the process for {self.where} {ended}",
            "it may have run out of memory; with -o FILE, --resume continues the run",
        )

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.join()
        self.line.close()


def process_runner(openers: Sequence[tuple[str, Open]], budget: int) -> Runner:
    """Start a process for each device, by its name and what opens the model there."""
    processes: list[DeviceProcess] = []
    try:
        start_tracker()
        with _later(), born_deaf():
            for where, opener in openers:
                processes.append(DeviceProcess(where, opener))
    except BaseException:
        for process in processes:
            process.close()
        raise
    return Runner(processes, budget)


@contextmanager
def _later() -> Iterator[None]:
    """Hold signals back: a process that is half started could not be ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals, and may say how
        return
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for again in heard:
            signal.raise_signal(again)


# --- in a process ---


def work(line: Connection, opener: Open) -> None:
    """Load the model and answer each batch with its vectors, until the parent ends this process."""
    ignore_terminal()
    jobs: Queue[tuple[Tokens, Finish]] = Queue()
    threading.Thread(target=_receive, args=(line, jobs), daemon=True).start()
    begun: deque[Callable[[], Kept | Exception]] = deque()
    try:
        device = opener()
        while True:
            while not (begun and jobs.empty()):
                batch, finish = jobs.get()
                try:
                    begun.append(device.begin(batch, finish))
                except (RuntimeError, MemoryError) as failed:
                    if not out_of_memory(failed):
                        raise
                    device.free()
                    begun.append(MemoryError)  # whose turn comes when those before it are sent
            line.send(begun.popleft()())
    except BertcliError as error:
        line.send(error)
    except OSError:
        os._exit(1)


def _receive(line: Connection, jobs: Queue[tuple[Tokens, Finish]]) -> None:
    """Read at all times, so that the parent never waits; end with the parent."""
    try:
        while True:
            jobs.put(line.recv())
    except (EOFError, OSError):
        os._exit(1)
