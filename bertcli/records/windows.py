"""Windows of records, and prefetching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, islice
from queue import Empty, Queue
from threading import Event, Lock, Semaphore, Thread
from typing import Any, TypeVar

from bertcli.records.records import Record, TextBlock

T = TypeVar("T")
R = TypeVar("R")

CHARACTERS = 4 << 20  # of a window: some hundred MB once they are tokens


def windows(
    blocks: Iterable[Sequence[T]], size: int, *, full: bool = False, characters: int = CHARACTERS
) -> Iterator[Sequence[T]]:
    """Split blocks into sequences of at most ``size`` items.

    A window ends early with the item that fills it with so many ``characters``. A block that is
    short because its source is slow is passed on at once, unless ``full`` asks for windows that do
    not depend on the blocks.
    """
    parts: list[Sequence[T]] = []
    missing, room = size, characters
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + missing]
            weight = _characters(part)
            if weight > room:
                totals = accumulate(map(_characters, part), initial=1 - room)
                part = part[: next(count for count, total in enumerate(totals) if total > 0)]
            parts.append(part)
            start, missing, room = start + len(part), missing - len(part), room - weight
            if not missing or room <= 0 or (start == len(block) and not full):
                yield _joined(parts)
                parts, missing, room = [], size, characters
    if parts:
        yield _joined(parts)


def _characters(value: Any) -> int:
    """Return about how many characters of memory a value takes, a block as much as its records."""
    match value:
        case str():
            return len(value)
        case None:
            return 0
        case TextBlock():
            return _characters(value.columns[:4])
        case Record():
            return _characters([value.text, value.pair, value.id, value.extra, value.ids])
        case dict():
            return _characters([*value.values()])
        case list() | tuple():
            return sum(map(_characters, value))
        case _:
            return 8


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    joined = [*chain.from_iterable(parts)]
    return TextBlock.of(joined) if isinstance(parts[0], TextBlock) else joined


def ahead(
    items: Iterator[T], work: Callable[[T], R], *, threads: int = 1, most: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` of each item in their order, made by threads while the caller works.

    ``most`` of them wait for the caller, besides those that are in hand. All threads but one help
    only when the caller has to wait: else they would be in its way. They take the items, so these
    may come from a generator that waits. The first is worked on in place, so a short input starts
    no thread. An error is raised where the item would have been.
    """
    for first in islice(items, 1):
        yield work(first)
    second = [*islice(items, 1)]
    if not second:
        return
    items = chain(second, items)
    from concurrent.futures import Future  # which a short input does not need

    turns: Queue[Future[R] | None] = Queue(most)
    lock, ended, waited = Lock(), Event(), Semaphore(0)

    def take(*, helps: bool) -> None:
        while True:
            if helps:
                waited.acquire()
            turn: Future[R] = Future()
            with lock:
                if ended.is_set():
                    return
                try:
                    item = next(items)
                except BaseException as failed:
                    ended.set()
                    turn.set_exception(failed)
                    turns.put(None if isinstance(failed, StopIteration) else turn)
                    return
                turns.put(turn)
            try:
                turn.set_result(work(item))
            except BaseException as failed:
                turn.set_exception(failed)

    for number in range(threads):
        Thread(target=take, kwargs={"helps": number > 0}, daemon=True).start()
    try:
        while turn := turns.get():
            if not turn.done():
                waited.release()
            yield turn.result()
    finally:
        ended.set()
        waited.release(threads)
        with suppress(Empty):
            while True:
                turns.get_nowait()
