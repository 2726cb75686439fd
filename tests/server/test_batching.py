"""Which texts share a batch, and which batches run at the same time."""

import asyncio
from threading import Barrier
from types import SimpleNamespace

import numpy as np
from front import DEADLINE

from bertcli.server.batching import Batcher
from bertcli.server.metrics import Metrics


class Meeting:
    """Runs texts of one length together; a batch ends only while another one runs."""

    def __init__(self, concurrency):
        self.runtime = SimpleNamespace(
            concurrency=concurrency, engine=SimpleNamespace(padded_lengths=np.copy)
        )
        self.barrier = Barrier(2)
        self.batches = []

    def run(self, rows):
        self.batches.append([row.length for row in rows])
        self.barrier.wait(DEADLINE)
        return [row.length for row in rows]


def test_two_batches_run_at_the_same_time_each_of_one_length():
    meeting = Meeting(2)

    async def ask():
        batcher = Batcher(100, Metrics())
        requests = ([7, 9, 9], [9, 7])
        rows = [[SimpleNamespace(length=length) for length in lengths] for lengths in requests]
        return await asyncio.gather(*(batcher.results(of_one, meeting) for of_one in rows))

    assert asyncio.run(ask()) == [[7, 9, 9], [9, 7]]
    assert all(len(set(lengths)) == 1 for lengths in meeting.batches)
