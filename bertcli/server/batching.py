"""The queue of texts: requests take turns, and threads run their texts in batches.

    batcher = Batcher(2048, metrics)
    vectors = await batcher.results(rows, runner)

A batch has texts that the engine runs together: OpenVINO, those of one padded length. It starts
with a text of the request whose turn it is, and takes one of each request in turn until it is full.
As many batches run at once as the engine can run. So a short request waits for one batch, whatever
the length of those before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from bertcli.engines.engine import Runtime
from bertcli.errors import BertcliError
from bertcli.server.metrics import Metrics
from bertcli.tokenizing.batch import Encoded


class Runner(Protocol):
    """What computes the results of tokenized texts. Used from several threads at once."""

    runtime: Runtime

    def run(self, rows: Sequence[Encoded]) -> Sequence[Any]:
        """Return a result for each text. Raises BertcliError for a text without a result."""


class Group(NamedTuple):
    """What the texts of a batch have in common."""

    runner_id: int
    padded_length: int  # 0 if the engine runs texts of any lengths together


class Job:
    """The texts of a request that are to be run."""

    def __init__(self, rows: Sequence[Encoded], runner: Runner) -> None:
        self.rows = rows
        self.runner = runner
        self.results: list[Any] = [None] * len(rows)
        self.missing = len(rows)
        self.waiting: dict[Group, deque[int]] = {}  # indices of rows that are in no batch yet
        lengths = np.array([row.length for row in rows])
        padded = runner.runtime.engine.padded_lengths(lengths).tolist()
        for index in np.argsort(-lengths, kind="stable").tolist():
            group = Group(id(runner), padded[index])
            self.waiting.setdefault(group, deque()).append(index)
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def next_text(self, group: Group) -> BatchedText:
        """Return the text of a group that is to be run next."""
        return BatchedText(self, self.waiting[group][0])

    def drop_next_text(self, group: Group) -> None:
        """Remove the next text of a group: it is in a batch."""
        self.waiting[group].popleft()
        if not self.waiting[group]:
            del self.waiting[group]

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
    """The queue, and the threads that run batches of its texts. Used from one event loop."""

    def __init__(self, budget: int, metrics: Metrics) -> None:
        self.budget = budget  # tokens of a batch
        self.metrics = metrics
        self.jobs: deque[Job] = deque()  # in the order of their turns
        self.running = 0  # batches
        self.stopped: BertcliError | None = None  # the error of jobs that arrive
        self.threads = ThreadPoolExecutor(thread_name_prefix="model")

    async def results(self, rows: Sequence[Encoded], runner: Runner) -> list[Any]:
        """Return the results of texts. If the caller is cancelled, no more of them are run."""
        if self.stopped:
            raise self.stopped
        if not rows:
            return []
        job = Job(rows, runner)
        self.jobs.append(job)
        self.start_batches()
        try:
            return await job.done
        finally:
            job.waiting.clear()

    def fail_all(self, error: BertcliError) -> None:
        """End all jobs that have texts in no batch yet, and those that arrive later."""
        self.stopped = error
        for job in self.jobs:
            job.fail(error)

    def start_batches(self) -> None:
        """Start as many batches as there are texts for, and as the engine can run at once."""
        loop = asyncio.get_running_loop()
        while batch := self.next_batch():
            self.running += 1
            self.metrics.count_batch(len(batch), sum(text.row.length for text in batch))
            outcomes = loop.run_in_executor(self.threads, run_texts, batch)
            outcomes.add_done_callback(partial(self.end_batch, batch))

    def next_batch(self) -> list[BatchedText]:
        """Take texts of one group from the jobs in turn, until the batch is full.

        There is no batch while the engine runs as many as it can.
        """
        while self.jobs and not self.jobs[0].waiting:
            self.jobs.popleft()
        if not self.jobs or self.running >= self.jobs[0].runner.runtime.concurrency:
            return []
        group = next(iter(self.jobs[0].waiting))
        turns = deque(job for job in self.jobs if group in job.waiting)
        self.jobs.rotate(-1)
        batch: list[BatchedText] = []
        tokens = 0
        while turns:
            job = turns.popleft()
            text = job.next_text(group)
            tokens += group.padded_length or text.row.length
            if batch and tokens > self.budget:
                break
            batch.append(text)
            job.drop_next_text(group)
            if group in job.waiting:
                turns.append(job)
        return batch

    def end_batch(
        self, batch: Sequence[BatchedText], outcomes: asyncio.Future[list[Outcome]]
    ) -> None:
        """Give the results of a batch to its jobs, and start the next batches."""
        self.running -= 1
        if outcomes.cancelled():  # the server stops
            return
        self.start_batches()
        failure = outcomes.exception()
        if failure is not None:  # not an error that a text may cause
            for job in {text.job for text in batch}:
                job.fail(failure)
            return
        for outcome in outcomes.result():
            if outcome.error is not None:
                outcome.texts[0].job.fail(outcome.error)
            for text, result in zip(outcome.texts, outcome.results, strict=False):
                text.job.receive(text.number, result)


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
