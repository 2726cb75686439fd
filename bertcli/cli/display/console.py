"""Messages and progress for people, all on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, TypeVar

import typer

from bertcli.cli.display.messages import counted, numbered_rows, skipped, unfit_ids
from bertcli.files.addresses import public
from bertcli.files.printable import printable

if TYPE_CHECKING:
    from bertcli.inference.progress import ModelRun
    from bertcli.records.reader import Reader

T = TypeVar("T")
Batch = TypeVar("Batch", bound=Sized)

LONGEST = 1200  # characters of a message: names of fields and tensors may have any length
STEP = 64  # items between two looks at the clock


def stdout_is_terminal() -> bool:
    """Return whether stdout is a terminal; closed, it is None."""
    return sys.stdout is not None and sys.stdout.isatty()


def say(kind: str, message: str) -> None:
    """Write one line to stderr, of bounded length: an error, a hint, a note or a warning."""
    line = printable(public(" ".join(message.split())))
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}... ({len(line) - LONGEST:,} more characters)"
    sys.stderr.write(f"{kind}: {line}\n")


class Console:
    """Writes notes and warnings, unless quiet; empty messages are ignored."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose

    def note(self, message: str) -> None:
        """Write a note."""
        self._write("note", message)

    def warn(self, message: str) -> None:
        """Write a warning."""
        self._write("warning", message)

    def detail(self, message: str) -> None:
        """Write a note, with --verbose only."""
        if self.verbose:
            self._write("note", message)

    @property
    def watched(self) -> bool:
        """Whether progress is shown: stderr is a terminal, and not quiet."""
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return terminal and not self.quiet

    def track(
        self,
        batches: Iterable[Batch],
        reader: Reader,
        *,
        beside_output: bool,
        truncated: Callable[[], int] = lambda: 0,
    ) -> Iterator[Batch]:
        """Yield windows of records, with a progress bar when somebody watches for long.

        There is none where the output itself goes to the terminal (``beside_output``).
        ``truncated`` tells how many texts were cut so far.
        """
        if beside_output or not self.watched:
            yield from batches
            return
        from bertcli.cli.display.progress_bars import ReadingBar

        bar, records = ReadingBar(reader, truncated), 0
        try:
            for batch in batches:
                records += len(batch)
                bar.show(records)
                yield batch
        finally:
            bar.stop()

    def count(self, items: Iterable[T], total: int, what: str) -> Iterator[T]:
        """Yield items, with a progress bar when somebody watches for long."""
        if not self.watched:
            yield from items
            return
        from bertcli.cli.display.progress_bars import CountingBar

        bar = CountingBar(total, what)
        try:
            for number, item in enumerate(items):
                if number % STEP == 0:
                    bar.show(number)
                yield item
        finally:
            bar.stop()

    def follow(self, run: ModelRun, *, beside_output: bool = False) -> None:
        """Run a model to the end, with a progress bar, and with --verbose say what it came to."""
        from bertcli.inference.progress import Progress, Ran

        progress, bar = Progress(), None
        if self.watched and not beside_output:
            from bertcli.cli.display.progress_bars import ModelBar

            bar = ModelBar(progress, run)
        try:
            for step in run:
                progress.add(step)
                if isinstance(step, Ran):
                    self.warn(step.warning)
                if bar:
                    bar.show()
        finally:
            if bar:
                bar.stop()
        if progress.texts:
            texts = counted(progress.texts, "text", "texts")
            tokens = counted(progress.tokens, "token", "tokens")
            self.detail(f"{texts}, {tokens} in {progress.seconds:,.1f} s: {progress.rates}")

    def close(self, records: int, reader: Reader, *, numbered: bool = False) -> None:
        """Say what became of the input; exit with 1 when records were skipped.

        ``numbered`` tells that a record without an id was written with the number of its row.
        """
        if not records and not reader.skipped:
            self.note("no records: the input is empty")
        if reader.unfit_ids:
            self.note(unfit_ids(reader.unfit_ids))
        if numbered and reader.with_id and reader.without_id:
            self.warn(numbered_rows(reader.without_id))
        if reader.replaced:
            characters = counted(reader.replaced, "character", "characters")
            self.warn(f"{characters} could not be decoded and were replaced by U+FFFD")
        if reader.skipped:
            self.warn(skipped(reader.skipped))
            raise typer.Exit(1)

    def _write(self, kind: str, message: str) -> None:
        if message and not self.quiet:
            say(kind, message)
