"""Work done by threads while the caller does other work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")


def run_ahead(
    items: Iterable[T], work: Callable[[T], R], *, threads: int = 1, max_waiting: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` for each item in order, computed by threads while the caller works.

    A result is yielded once ``max_waiting`` further items have been read, or the items end. The
    caller's thread reads the items. An error of ``work`` is raised in place of its result, and ends
    the iteration.
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


def in_background(work: Callable[..., R], *arguments: Any) -> Future[R]:
    """Return the future result of ``work(*arguments)``, for which Python does not wait at exit."""
    from concurrent.futures import Future

    future = Future[R]()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def checked(items: Iterable[T], check: Future[None]) -> Iterator[T]:
    """Yield the items while a check of all of them runs; then wait for it, and raise its error."""
    yield from items
    check.result()
