"""Several devices at once: a process per device, which run the batches that one device would.

    texts -> batches -> whichever process is free -> vectors, in the order of the texts

What is in a batch is settled before a process takes it, and a batch runs on one device as a whole:
so the vectors do not depend on how fast the others are, nor on their number. The processes load the
model by themselves, all at the same time; when the parent dies, even by a kill, they find their
pipe closed and end. There a batch is begun as soon as it has arrived, before the vectors of the one
before it are waited for: a GPU has work then while those come back.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import Queue
from typing import Any, NoReturn

from bertcli.errors import BertcliError
from bertcli.files.system_calls import born_deaf, ignore_terminal, start_tracker
from bertcli.inference.progress import Ran
from bertcli.inference.runner import (
    DistinctTexts,
    Finish,
    PendingBatch,
    Runner,
    Tokens,
    Work,
    result_of,
)

DEPTH = 2  # batches that a process holds: one to run, one that has arrived when it is done
PATIENCE = 10.0  # seconds until a process that was asked to end is killed

Job = tuple[Tokens, Finish]
Open = Callable[[], Runner]  # is sent to the process


@dataclass(eq=False)
class PoolProcess:
    """A process as its parent sees it. It answers in the order in which it was asked."""

    name: str
    process: BaseProcess
    line: Connection
    ready: bool = False
    held: deque[PendingBatch] = field(default_factory=deque)

    @property
    def ended(self) -> str:
        """How the process came to its end."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by {signal.Signals(-code).name}"


class ProcessPool:
    """Processes that hold the same model. ``close`` ends them, at the latest with the program."""

    def __init__(
        self, names: Sequence[str], openers: Sequence[Open], threads: int, budget: int
    ) -> None:
        """Start a process for each opener, which loads the model there; names are for messages.

        Each has so many threads; ``budget`` is the tokens of a batch.
        """
        self.threads, self.budget = threads, budget
        self.waiting: deque[PendingBatch] = deque()
        self.steps: deque[Ran] = deque()  # not yet reported
        self.workers: list[PoolProcess] = []
        self.failure: BaseException | None = None  # which ended all processes
        self.close = weakref.finalize(self, _stop, self.workers)
        spawn = multiprocessing.get_context("spawn")
        try:
            start_tracker()
            with _later(), born_deaf():
                for name, opener in zip(names, openers, strict=True):
                    ours, theirs = spawn.Pipe()
                    process = spawn.Process(target=work, args=(theirs, opener), daemon=True)
                    process.start()
                    theirs.close()  # or its end would not be noticed
                    self.workers.append(PoolProcess(name, process, ours))
        except BaseException:
            self.close()
            raise

    @property
    def busy(self) -> bool:
        """Whether there is work for every process once it is through with what it holds."""
        return len(self.waiting) >= len(self.workers)

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Hand out the texts in batches, now; what is returned waits for their vectors.

        Raises, then, what went wrong in a process.
        """
        distinct = DistinctTexts(texts)
        self.waiting.extend(distinct.divided(distinct.rows, finish, budget or self.budget))
        self._listen(0)
        self._hand_out()
        return self._wait(distinct)

    def _wait(self, distinct: DistinctTexts) -> Work:
        while distinct.left or self.steps:
            while self.steps:
                yield self.steps.popleft()
            if distinct.left:
                self._hand_out()
                self._listen(None)
        return distinct.kept

    def _hand_out(self) -> None:
        if self.failure:
            raise self.failure
        while self.waiting:
            free = [
                process for process in self.workers if process.ready and len(process.held) < DEPTH
            ]
            if not free:
                return
            worker, job = min(free, key=lambda process: len(process.held)), self.waiting.popleft()
            worker.held.append(job)
            try:
                worker.line.send((job.batch, job.finish))
            except OSError:
                self._lost(worker)

    def _listen(self, timeout: float | None) -> None:
        """Take in what the processes have to say."""
        if self.failure:  # of one window, and this is asked for another
            raise self.failure
        lines = {worker.line: worker for worker in self.workers}
        for line in wait(list(lines), timeout):
            worker = lines[line]  # type: ignore[index]
            try:
                kind, value = worker.line.recv()
            except (EOFError, OSError):
                self._lost(worker)
            match kind:
                case "vectors":
                    done = worker.held.popleft()
                    self.steps.append(done.take(value))
                case "ready":
                    worker.ready = True
                case "warning":
                    self.steps.append(Ran(warning=value))
                case _:
                    self._fail(value)

    def _lost(self, worker: PoolProcess) -> NoReturn:
        lost = BertcliError(
            f"the process for {worker.name} {worker.ended}",
            "it may have run out of memory; with -o FILE, --resume continues the run",
        )
        self._fail(lost)

    def _fail(self, failure: BaseException) -> NoReturn:
        """End all processes and raise what went wrong, now and whenever they are asked again."""
        self.failure = failure
        self.close()
        raise failure from None


def _stop(workers: list[PoolProcess]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.line.close()


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
        vectors = result_of(begun.popleft(), lambda message: answers.put(("warning", message)))
        answers.put(("vectors", vectors))


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
