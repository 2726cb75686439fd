"""A GPU that always has work: batches wait for it in a queue, across windows of texts.

    texts -> batches -> two at the device, one of them running -> vectors, in the order of the texts

While it runs, this process tokenizes what comes next and writes what came before. What is in a
batch does not depend on how fast anybody is, so neither do the vectors.
"""

from __future__ import annotations

from collections import deque

from bertcli.errors import out_of_memory
from bertcli.inference.encoder import Encoder
from bertcli.inference.progress import Ran
from bertcli.inference.runner import DistinctTexts, Finish, PendingBatch, Tokens, Work
from bertcli.inference.wire import Arriving

DEPTH = 2  # batches that are at the device: one runs, one is there when it is done


class DeviceQueue:
    """A runner that begins the batches of later texts while those of earlier ones run."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.waiting: deque[PendingBatch] = deque()
        self.held: deque[tuple[PendingBatch, Arriving]] = deque()

    @property
    def busy(self) -> bool:
        """Whether there is work once what the device holds is done."""
        return bool(self.waiting)

    @property
    def threads(self) -> int:
        """The threads of one operation."""
        return self.encoder.threads

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Begin batches now, as many as may be at the device; what is returned waits for all."""
        distinct, budget = DistinctTexts(texts), budget or self.encoder.budget
        self.waiting.extend(distinct.divided(distinct.rows, finish, budget))
        self._hand_out()
        return self._wait(distinct)

    def _wait(self, distinct: DistinctTexts) -> Work:
        while distinct.left:
            self._hand_out()
            if not self.held:  # not even alone
                yield Ran(warning=self.encoder.shrink(len(self.waiting[0].rows)))
                self._divide()
                continue
            done, arriving = self.held.popleft()
            vectors = arriving()
            self._hand_out()
            yield done.take(vectors)
        return distinct.kept

    def _hand_out(self) -> None:
        """Begin batches; one that does not fit into memory waits until there is more."""
        while self.waiting and len(self.held) < DEPTH:
            first = self.waiting.popleft()
            try:
                arriving = self.encoder.begin(first.batch, first.finish)
            except (RuntimeError, MemoryError) as failed:
                if not out_of_memory(failed):
                    raise
                self.waiting.appendleft(first)
                return
            self.held.append((first, arriving))

    def _divide(self) -> None:
        """Make what waits fit the budget, which has shrunk."""
        before = [*self.waiting]
        self.waiting.clear()
        for _, rows, finish, distinct in before:
            distinct.left -= 1
            self.waiting.extend(distinct.divided(rows, finish, self.encoder.budget))
