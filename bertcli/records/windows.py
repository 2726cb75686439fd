"""Windows of records, and prefetching."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

from bertcli.records.records import Record, TextBlock

T = TypeVar("T")
R = TypeVar("R")

CHARACTERS = 4 << 20  # of a window: some hundred MB once they are tokens


def windows(
    blocks: Iterable[Sequence[Record]],
    size: int,
    *,
    full: bool = False,
    characters: int = CHARACTERS,
) -> Iterator[Sequence[Record]]:
    """Split blocks into sequences of at most ``size`` records.

    A window ends early with the record that fills it with so many ``characters``. A block that is
    short because its source is slow is passed on at once, unless ``full`` asks for windows that do
    not depend on the blocks.
    """
    parts: list[Sequence[Record]] = []
    missing, room = size, characters
    for block in blocks:
        start = 0
        while start < len(block):
            part = block[start : start + missing]
            weight = _characters(part)
            if weight > room:
                weights = (_characters([record]) for record in part)
                totals = accumulate(weights, initial=1 - room)
                part = part[: next(count for count, total in enumerate(totals) if total > 0)]
            parts.append(part)
            start, missing, room = start + len(part), missing - len(part), room - weight
            if not missing or room <= 0 or (start == len(block) and not full):
                yield _joined(parts)
                parts, missing, room = [], size, characters
    if parts:
        yield _joined(parts)


def _characters(records: Sequence[Record]) -> int:
    return sum(map(len, TextBlock.of(records).strings))


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    joined = [*chain.from_iterable(parts)]
    return TextBlock.of(joined) if isinstance(parts[0], TextBlock) else joined


def ahead(
    items: Iterable[T], work: Callable[[T], R], *, threads: int = 1, most: int = 1
) -> Iterator[R]:
    """Yield ``work(item)`` of each item in their order, made by threads while the caller works.

    ``most`` of them wait for the caller, who waits for the items: those of a slow source are not
    for threads. An error is raised where the item would have been.
    """
    from concurrent.futures import Future, ThreadPoolExecutor  # which few texts do not need

    pool, turns = ThreadPoolExecutor(threads), deque[Future[R]]()
    try:
        for item in items:
            turns.append(pool.submit(work, item))
            if len(turns) > most:
                yield turns.popleft().result()
        while turns:
            yield turns.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
