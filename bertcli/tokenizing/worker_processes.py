"""Other processes that do a scribe's work, for inputs that are worth their start.

Each is asked through its stdin and answers through its stdout, so it ends with whoever started it,
however that ended. The order of the output is that of the input. What waits is bounded.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Queue
from subprocess import DEVNULL, PIPE, Popen
from threading import Event, Thread
from typing import NoReturn

from bertcli.errors import BertcliError
from bertcli.files.system_calls import born_deaf
from bertcli.records.records import Record
from bertcli.tokenizing.line_output import LineMaker, OutputLines, Task
from bertcli.tokenizing.tokenizer import Tokenizer

Block = tuple[int, Sequence[Record]]  # the number of the first record, and the records

AHEAD = 2  # blocks that wait for each worker, or whose output waits for the one before
HINT = "--workers 0 works without such processes"
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Windows, where it is not blocked
sys.path[:] = {path!r}
from bertcli.tokenizing.worker_processes import serve
serve()
"""


class LineJob:
    """Some records, and in the end the part made of them, or why there is none."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.done = Event()
        self.part: OutputLines | None = None
        self.error: BaseException | None = None

    def result(self) -> OutputLines:
        """Wait for the part."""
        self.done.wait()
        if self.part is None:
            raise self.error or AssertionError
        return self.part


class LineProcess:
    """A process that makes parts."""

    def __init__(self, folder: Path, parse_special: bool, task: Task) -> None:
        words = os.environ | {"TOKENIZERS_PARALLELISM": "false"}  # or they fight over the cores
        errors = None if os.environ.get("BERTCLI_DEBUG") else DEVNULL
        command = [sys.executable, "-c", CODE.format(path=sys.path)]
        try:
            with born_deaf():
                self.process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, env=words)
        except OSError as failed:
            raise BertcliError(f"no worker process can be started: {failed}", HINT) from None
        self.order: object = (folder, parse_special, task)

    def make(self, block: Block) -> OutputLines:
        """Return the part of some records. Raises BertcliError when the process is gone."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked and answers
        try:
            for message in filter(None, (self.order, block)):
                pickle.dump(message, asked, pickle.HIGHEST_PROTOCOL)
            self.order = None
            asked.flush()
            part: OutputLines = pickle.load(answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise BertcliError(
                f"a worker process ended too early (exit code {self.process.wait()})",
                f"was there enough memory? {HINT}",
            ) from None
        return part

    def work(self, jobs: Queue[LineJob | None]) -> None:
        """Do one job after the other, until there is None."""
        while job := jobs.get():
            try:
                job.part = self.make(job.block)
            except BaseException as error:
                job.error = error
            job.done.set()

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what could not be sent
                pipe and pipe.close()


class Feed:
    """Jobs for whoever is free, made of blocks in a thread; and the same in order."""

    def __init__(self, blocks: Iterator[Block], room: int) -> None:
        self.blocks = blocks
        self.ordered: Queue[LineJob | None] = Queue(room)
        self.jobs: Queue[LineJob | None] = Queue()  # no longer than the other
        self.failure: BaseException | None = None
        self.stopped = False

    def read(self) -> None:
        """Read to the end, as fast as jobs are done; an error there is kept."""
        try:
            for block in self.blocks:
                job = LineJob(block)
                self.ordered.put(job)
                self.jobs.put(job)
                if self.stopped:
                    break
        except BaseException as error:
            self.failure = error
        self.ordered.put(None)

    def stop(self) -> None:
        """Let the thread go, which may be waiting for room."""
        self.stopped = True
        while not self.ordered.empty():
            self.ordered.get_nowait()


def parts(
    blocks: Iterator[Block], tokenizer: Tokenizer, task: Task, count: int
) -> Iterator[OutputLines]:
    """Yield the parts of blocks in their order, made by so many processes.

    A part is handed out as soon as it is there, even while the next block is still to come.
    """
    assert tokenizer.folder
    parse_special = not tokenizer.core.encode_special_tokens
    feed, workers = Feed(blocks, AHEAD * count), list[LineProcess]()
    try:
        for _ in range(count):
            workers.append(LineProcess(tokenizer.folder, parse_special, task))
        Thread(target=feed.read, daemon=True).start()
        for worker in workers:
            Thread(target=worker.work, args=(feed.jobs,), daemon=True).start()
        while job := feed.ordered.get():
            yield job.result()
    finally:
        feed.stop()
        for worker in workers:
            feed.jobs.put(None)
            worker.stop()
    if feed.failure:
        raise feed.failure


def serve() -> NoReturn:
    """Be a worker: make parts of what comes in until nothing more does."""
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        folder, parse_special, task = pickle.load(asked)
        scribe = LineMaker(Tokenizer.load(folder, parse_special=parse_special), task)
        while True:
            first, records = pickle.load(asked)
            pickle.dump(scribe(records, first), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        os._exit(0)  # without a look at the closed pipe
