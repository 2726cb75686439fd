"""Windows of records, and prefetching."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from bertcli.records.text_block import TextBlock

T = TypeVar("T")

DONE = object()


def windows(
    blocks: Iterable[Sequence[T]], size: int, *, full: bool = False
) -> Iterator[Sequence[T]]:
    """Split blocks into sequences of at most ``size`` items.

    A block that is short because its source is slow is passed on at once, unless ``full`` asks for
    windows that do not depend on the blocks.
    """
    held: list[Sequence[T]] = []
    missing = size
    for block in blocks:
        at = 0
        while at < len(block):
            held.append(block[at : at + missing])
            at += missing
            missing -= len(held[-1])
            if not missing:
                yield _joined(held)
                held, missing = [], size
        if held and not full:
            yield _joined(held)
            held, missing = [], size
    if held:
        yield _joined(held)


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, TextBlock) for part in parts):
        return TextBlock.joined(parts)
    return list(chain.from_iterable(parts))


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
