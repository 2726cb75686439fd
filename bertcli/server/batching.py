"""The queue of texts: requests take turns, and one thread runs their texts in batches.

    batcher = Batcher(4096, metrics)
    vectors = await batcher.results(rows, runner)     # while `batcher.work()` runs as a task

A batch has at most a number of tokens, and one text of each request in turn until it is full. So a
short request waits for one batch, whatever the length of those before it. The engine groups the
texts of a batch by length, as it does those of a file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from bertcli.errors import BertcliError
from bertcli.server.metrics import Metrics
from bertcli.tokenizing.batch import Encoded


class Runner(Protocol):
    """What computes the results of tokenized texts."""

    def run(self, rows: Sequence[Encoded]) -> Sequence[Any]:
        """Return a result for each text. Raises BertcliError for a text without a result."""


class Job:
    """The texts of a request that are to be run."""

    def __init__(self, rows: Sequence[Encoded], runner: Runner) -> None:
        self.rows = rows
        self.runner = runner
        self.results: list[Any] = [None] * len(rows)
        self.missing = len(rows)
        longest_first = sorted(range(len(rows)), key=lambda index: -rows[index].length)
        self.waiting = deque(longest_first)  # indices of rows that are in no batch yet
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def receive(self, index: int, result: Any) -> None:
        """Store the result of a text. The last one completes the job."""
        self.results[index] = result
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(self.results)

    def fail(self, error: BaseException) -> None:
        """End the job with an error; its other texts are not run."""
        self.waiting.clear()
        if not self.done.done():
            self.done.set_exception(error)


class BatchedText(NamedTuple):
    """A text in a batch: its job, and its number there."""

    job: Job
    number: int

    @property
    def row(self) -> Encoded:
        """The tokens."""
        return self.job.rows[self.number]


class Outcome(NamedTuple):
    """Texts of one or several jobs, with their results, or the error of the only job."""

    texts: Sequence[BatchedText]
    results: Sequence[Any]
    error: BertcliError | None = None


class Batcher:
    """The queue, and the thread that runs batches of its texts. Used from one event loop."""

    def __init__(self, budget: int, metrics: Metrics) -> None:
        self.budget = budget  # tokens of a batch
        self.metrics = metrics
        self.jobs: deque[Job] = deque()  # in the order of their turns
        self.arrived = asyncio.Event()
        self.stopped: BertcliError | None = None  # the error of jobs that arrive
        self.thread = ThreadPoolExecutor(1, "model")

    async def results(self, rows: Sequence[Encoded], runner: Runner) -> list[Any]:
        """Return the results of texts. If the caller is cancelled, no more of them are run."""
        if self.stopped:
            raise self.stopped
        if not rows:
            return []
        job = Job(rows, runner)
        self.jobs.append(job)
        self.arrived.set()
        try:
            return await job.done
        finally:
            job.waiting.clear()

    def fail_all(self, error: BertcliError) -> None:
        """End all jobs that have texts in no batch yet, and those that arrive later."""
        self.stopped = error
        for job in self.jobs:
            job.fail(error)

    async def work(self) -> None:
        """Run batches, forever."""
        loop = asyncio.get_running_loop()
        while True:
            await self.arrived.wait()
            batch = self.next_batch()
            if not batch:
                self.arrived.clear()
                continue
            self.metrics.count_batch(len(batch), sum(text.row.length for text in batch))
            running = loop.run_in_executor(self.thread, run_batch, batch)
            await asyncio.wait([running])
            failure = running.exception()
            if failure is not None:  # not an error that a text may cause
                for job in {text.job for text in batch}:
                    job.fail(failure)
                continue
            for outcome in running.result():
                if outcome.error is not None:
                    outcome.texts[0].job.fail(outcome.error)
                for text, result in zip(outcome.texts, outcome.results, strict=False):
                    text.job.receive(text.number, result)

    def next_batch(self) -> list[BatchedText]:
        """Take texts from the jobs in turn, until the batch is full."""
        batch: list[BatchedText] = []
        tokens = 0
        while self.jobs:
            job = self.jobs[0]
            if not job.waiting:
                self.jobs.popleft()
                continue
            tokens += job.rows[job.waiting[0]].length
            if batch and tokens > self.budget:
                break
            batch.append(BatchedText(job, job.waiting.popleft()))
            self.jobs.rotate(-1)
        return batch


def run_batch(batch: Sequence[BatchedText]) -> list[Outcome]:
    """Run the texts of a batch, those of the same runner together."""
    groups: dict[int, list[BatchedText]] = {}
    for text in batch:
        groups.setdefault(id(text.job.runner), []).append(text)
    return [outcome for texts in groups.values() for outcome in run_texts(texts)]


def run_texts(texts: Sequence[BatchedText]) -> list[Outcome]:
    """Run texts of one runner. After an error, each job runs by itself, so that only one fails."""
    runner = texts[0].job.runner
    try:
        return [Outcome(texts, runner.run([text.row for text in texts]))]
    except BertcliError as error:
        jobs = {id(text.job): text.job for text in texts}
        if len(jobs) == 1:
            return [Outcome(texts, (), error)]
        by_job = [[text for text in texts if text.job is job] for job in jobs.values()]
        return [outcome for of_job in by_job for outcome in run_texts(of_job)]
