"""Windows of records, and prefetching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from queue import Empty, Queue, SimpleQueue
from threading import Lock, Semaphore, Thread
from typing import Any, TypeVar

from bertcli.records.records import Record, TextBlock

T = TypeVar("T")
R = TypeVar("R")

DONE = object()
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
            if not missing or room <= 0:
                yield _joined(parts)
                parts, missing, room = [], size, characters
        if parts and not full:
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

    ``most`` of them wait for the caller, besides one that each thread has in hand. All threads but
    one work only when the caller has to wait: where it is the slower one, they would be in its way.
    Items are taken by one thread at a time, so they may come from a generator. The first is worked
    on in place, so a short input starts no thread. An error is raised where the item would have
    been.
    """
    for first in items:
        yield work(first)
        break
    else:
        return
    turns = _Turns(items, work, most)
    for number in range(threads):
        Thread(target=turns.run, args=(number > 0,), daemon=True).start()
    try:
        while (result := turns.next())[0] is not DONE:
            yield result[0]
        if result[1] is not None:
            raise result[1]
    finally:
        turns.end(threads)


class _Turns:
    """Items that several threads work on, and what they make of them, in the order of the items.

    A turn gets what was made of an item and None, or DONE and the error that ends all, if any.
    """

    def __init__(self, items: Iterator[Any], work: Callable[[Any], Any], most: int) -> None:
        self.items, self.work = items, work
        self.queue: Queue[SimpleQueue[tuple[Any, BaseException | None]]] = Queue(most)
        self.lock, self.waited, self.ended = Lock(), Semaphore(0), False

    def next(self) -> tuple[Any, BaseException | None]:
        """Return what the next turn got; where it has to be waited for, that is heard."""
        turn = self.queue.get()
        if turn.empty():
            self.waited.release()
        return turn.get()

    def run(self, helps: bool) -> None:
        """Work until there is no item, one cannot be had or worked on, or nobody asks for more.

        One that ``helps`` takes an item when the caller has waited for another.
        """
        item: Any = None
        while item is not DONE and not self.ended:
            if helps:
                self.waited.acquire()
            turn: SimpleQueue[Any] = SimpleQueue()
            try:
                with self.lock:
                    try:
                        item = DONE if self.ended else next(self.items, DONE)
                    finally:
                        self.queue.put(turn)
                turn.put((DONE if item is DONE else self.work(item), None))
            except BaseException as error:
                turn.put((DONE, error))
                return

    def end(self, threads: int) -> None:
        """Let so many threads that wait go on, so that they end."""
        self.ended = True
        self.waited.release(threads)
        with suppress(Empty):
            while True:
                self.queue.get_nowait()
