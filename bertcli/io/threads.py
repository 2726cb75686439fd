"""Work done by threads while the caller does other work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_ahead(
    items: Iterable[T], work: Callable[[T], R], *, threads: int = 1, max_waiting: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` for each item in order, computed by threads while the caller works.

    At most ``max_waiting`` results wait for the caller. Items are read by the caller's thread, and
    an error is raised in place of the result of its item.
    """
    from concurrent.futures import Future, ThreadPoolExecutor  # slow to import: not for few texts

    pool = ThreadPoolExecutor(threads)
    pending = deque[Future[R]]()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > max_waiting:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
