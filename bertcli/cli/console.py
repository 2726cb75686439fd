"""Messages and progress for people, all on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from bertcli.records import Reader

T = TypeVar("T")

STEP = 64  # items between two looks at the clock
QUIET_SECONDS = 1.0  # work shorter than this shows no progress bar


def stdout_is_terminal() -> bool:
    """Tell whether people see stdout; it may also be closed, and is None then."""
    return sys.stdout is not None and sys.stdout.isatty()


class Console:
    """Writes notes and warnings, unless it is quiet."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose

    def note(self, message: str) -> None:
        """Say something that is worth knowing."""
        self._write("note", message)

    def warn(self, message: str) -> None:
        """Say something that may be wrong."""
        self._write("warning", message)

    def detail(self, message: str) -> None:
        """Say something for those who asked with --verbose."""
        if self.verbose:
            self._write("note", message)

    def track(
        self,
        batches: Iterable[list[T]],
        reader: Reader,
        *,
        beside_output: bool,
        truncated: Callable[[], int] = lambda: 0,
    ) -> Iterator[list[T]]:
        """Yield windows of records, with a progress bar when somebody watches for long.

        There is none where the output itself goes to the terminal (``beside_output``).
        ``truncated`` tells how many texts were cut so far.
        """
        if beside_output or not self._watched():
            yield from batches
            return
        from bertcli.streams import size_on_disk

        records, bar = 0, Bar(lambda: size_on_disk(reader.source.paths))
        with bar:
            for batch in batches:
                records += len(batch)
                extra = f"  {truncated():,} truncated" if truncated() else ""
                bar.update(reader.bytes_read, records, "texts", extra)
                yield batch

    def count(self, items: Iterable[T], total: int, what: str) -> Iterator[T]:
        """Yield items, with a progress bar when somebody watches for long."""
        if not self._watched():
            yield from items
            return
        with Bar(lambda: total) as bar:
            for number, item in enumerate(items):
                if number % STEP == 0:
                    bar.update(number, number, what)
                yield item

    def _watched(self) -> bool:
        seen = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return seen and not self.quiet

    def close(self, records: int, reader: Reader) -> None:
        """Say what became of the input; exit with 1 when records were skipped."""
        if not records and not reader.skipped:
            self.note("no records: the input is empty")
        if reader.replaced:
            self.warn(f"{reader.replaced} characters could not be decoded and became U+FFFD")
        if reader.skipped:
            self.warn(f"{reader.skipped} records were skipped")
            raise typer.Exit(1)

    def _write(self, kind: str, message: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"{kind}: {' '.join(message.split())}\n")


class Bar:
    """A progress bar that appears when work takes long: share, rate, time left."""

    def __init__(self, total: Callable[[], int | None]) -> None:
        self.total, self.start = total, monotonic()
        self.progress: Progress | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def update(self, completed: int, done: int, what: str, extra: str = "") -> None:
        """Show how far the run is: ``completed`` of the total, and what was ``done``."""
        seconds = monotonic() - self.start
        if self.progress is None and seconds > QUIET_SECONDS:
            self.progress = self._appear()
        if self.progress is not None:
            counts = f"{done:,} {what}  {done / seconds:,.0f} {what}/s{extra}"
            self.progress.update(self.task, completed=completed, counts=counts)

    def _appear(self) -> Progress:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        progress = Progress(
            TextColumn("{task.fields[counts]}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=RichConsole(stderr=True),
            transient=True,
        )
        self.task = progress.add_task("", total=self.total(), counts="")
        progress.start()
        return progress
