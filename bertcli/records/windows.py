"""Windows of records, and prefetching."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

DONE = object()


def windows(blocks: Iterable[Sequence[T]], size: int, *, full: bool = False) -> Iterator[list[T]]:
    """Split blocks into lists of at most ``size`` items.

    A block that is short because its source is slow is passed on at once, unless ``full`` asks for
    windows that do not depend on the blocks.
    """
    held: list[T] = []
    for block in blocks:
        held += block
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
        if held and not full:
            yield held
            held = []
    if held:
        yield held


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the same items, the next one prepared in a thread while the caller uses this one.

    The first is prepared in place, so a short input starts no thread. An error in the thread is
    raised here, where the item would have been.
    """
    for first in items:
        yield first
        break
    else:
        return
    import threading
    from queue import Queue

    queue: Queue[object] = Queue(maxsize=1)
    failure: list[BaseException] = []

    def work() -> None:
        try:
            for item in items:
                queue.put(item)
        except BaseException as error:
            failure.append(error)
        queue.put(DONE)

    threading.Thread(target=work, daemon=True).start()
    while (item := queue.get()) is not DONE:
        yield item  # type: ignore[misc]
    if failure:
        raise failure[0]
