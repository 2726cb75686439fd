"""Messages and progress for people, all on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from bertcli.records import Reader

T = TypeVar("T", bound=Sized)

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
        batches: Iterable[T],
        reader: Reader,
        *,
        beside_output: bool,
        truncated: Callable[[], int] = lambda: 0,
    ) -> Iterator[T]:
        """Yield windows of records, with a progress bar when somebody watches for long.

        There is none where the output itself goes to the terminal (``beside_output``).
        ``truncated`` tells how many texts were cut so far.
        """
        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if self.quiet or beside_output or not watched:
            yield from batches
            return
        start, records, bar = monotonic(), 0, None
        try:
            for batch in batches:
                records += len(batch)
                if bar is None and monotonic() - start > QUIET_SECONDS:
                    bar = Bar(reader, start)
                if bar is not None:
                    bar.update(records, truncated())
                yield batch
        finally:
            if bar is not None:
                bar.stop()

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
    """A progress bar: share of the input, texts a second, time left, texts cut so far."""

    def __init__(self, reader: Reader, start: float) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from bertcli.streams import size_on_disk

        self.reader, self.start = reader, start
        self.progress = Progress(
            TextColumn("{task.fields[counts]}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=RichConsole(stderr=True),
            transient=True,
        )
        total = size_on_disk(reader.source.paths)
        self.task = self.progress.add_task("", total=total, counts="")
        self.progress.start()

    def update(self, records: int, truncated: int) -> None:
        """Show how far the run is."""
        rate = records / (monotonic() - self.start)
        counts = f"{records:,} texts  {rate:,.0f} texts/s"
        if truncated:
            counts += f"  {truncated:,} truncated"
        self.progress.update(self.task, completed=self.reader.bytes_read, counts=counts)

    def stop(self) -> None:
        """Remove the bar."""
        self.progress.stop()
