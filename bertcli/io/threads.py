"""Work done by threads while the caller does other work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_ahead(
    items: Iterable[T], work: Callable[[T], R], *, threads: int = 1, most: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` for each item in order, computed by threads while the caller works.

    At most ``most`` results wait for the caller. The items themselves are read by the caller's
    thread. An error is raised where its item would have been.
    """
    from concurrent.futures import Future, ThreadPoolExecutor  # slow to import: not for few texts

    pool = ThreadPoolExecutor(threads)
    pending = deque[Future[R]]()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > most:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
