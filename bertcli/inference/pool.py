"""The processes as their parent sees them: who holds which batch, and what comes back."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from bertcli.embedding.options import EmbedOptions
from bertcli.errors import BertcliError
from bertcli.files.system_calls import born_deaf, start_tracker
from bertcli.hub import ModelFolder
from bertcli.inference.encoder import Tokens
from bertcli.inference.pool_worker import work
from bertcli.records.windows import batches

DEPTH = 2  # batches that a process holds: one to run, one that has arrived when it is done
PATIENCE = 10.0  # seconds until a process that was asked to end is killed

Warn = Callable[[str], None]


@dataclass(eq=False)
class Pending:
    """A window under way: the texts in order, the batches that are not back, the vectors so far."""

    texts: list[Tokens]
    tick: Callable[[int, int], None]
    counts: Counter[Tokens]
    left: int = 0
    found: dict[Tokens, Tensor] = field(default_factory=dict)

    def add(self, batch: Sequence[Tokens], vectors: Iterable[Any]) -> None:
        """Take in what a process made of a batch."""
        self.found |= zip(batch, map(torch.from_numpy, vectors), strict=True)
        self.left -= 1
        self.tick(
            sum(self.counts[text] for text in batch),
            sum(self.counts[text] * len(text.ids) for text in batch),
        )


class PoolBatch(NamedTuple):
    """A batch, and the window that waits for it."""

    batch: list[Tokens]
    options: EmbedOptions
    pending: Pending


@dataclass(eq=False)
class PoolProcess:
    """A process as its parent sees it. It answers in the order in which it was asked."""

    name: str
    process: BaseProcess
    line: Connection
    ready: bool = False
    held: deque[PoolBatch] = field(default_factory=deque)

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
        self, folder: ModelFolder, options: EmbedOptions, names: list[str], warn: Warn
    ) -> None:
        self.warn = warn
        self.waiting: deque[PoolBatch] = deque()
        self.ahead: deque[Pending] = deque()  # windows that were begun before they are wanted
        self.workers: list[PoolProcess] = []
        self.close = weakref.finalize(self, _stop, self.workers)
        self.threads = max(1, torch.get_num_threads() // len(names))
        spawn = multiprocessing.get_context("spawn")
        try:
            start_tracker()
            with _later(), born_deaf():
                for name in names:
                    ours, theirs = spawn.Pipe()
                    arguments = (theirs, folder, replace(options, device=name), self.threads)
                    process = spawn.Process(target=work, args=arguments, daemon=True)
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

    def begin(
        self,
        texts: list[Tokens],
        options: EmbedOptions,
        budget: int,
        tick: Callable[[int, int], None],
    ) -> Pending:
        """Hand out the texts in batches; equal ones are run once."""
        counts = Counter(texts)
        distinct, pending = list(counts), Pending(texts, tick, counts)
        for picked in batches([len(text.ids) for text in distinct], budget):
            self.waiting.append(PoolBatch([distinct[index] for index in picked], options, pending))
            pending.left += 1
        self._listen(0)
        self._hand_out()
        return pending

    def end(self, pending: Pending) -> list[Tensor]:
        """Wait for the vectors of these texts. Raises what went wrong in a process."""
        while pending.left:
            self._hand_out()
            self._listen(None)
        return [pending.found[text] for text in pending.texts]

    def _hand_out(self) -> None:
        while self.waiting:
            free = [one for one in self.workers if one.ready and len(one.held) < DEPTH]
            if not free:
                return
            worker, job = min(free, key=lambda one: len(one.held)), self.waiting.popleft()
            worker.held.append(job)
            try:
                worker.line.send((job.batch, job.options))
            except OSError:
                self._lost(worker)

    def _listen(self, timeout: float | None) -> None:
        """Take in what the processes have to say."""
        lines = {worker.line: worker for worker in self.workers}
        for line in wait(list(lines), timeout):
            worker = lines[line]  # type: ignore[index]
            try:
                kind, value = worker.line.recv()
            except (EOFError, OSError):
                self._lost(worker)
            match kind:
                case "vectors":
                    job = worker.held.popleft()
                    job.pending.add(job.batch, value)
                case "ready":
                    worker.ready = True
                case "warning":
                    self.warn(value)
                case _:
                    self.close()
                    raise value

    def _lost(self, worker: PoolProcess) -> NoReturn:
        ended = worker.ended
        self.close()
        raise BertcliError(
            f"the process for {worker.name} {ended}",
            "perhaps memory ran out; of a run with -o FILE, --resume keeps what was done",
        ) from None


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
    before = {one: signal.signal(one, lambda one, _: heard.append(one)) for one in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in heard:
            signal.raise_signal(one)
