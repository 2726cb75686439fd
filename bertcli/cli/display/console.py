"""Messages and progress for people, all on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import typer

from bertcli.cli.display.messages import numbered_rows, skipped, unfit_ids
from bertcli.errors import counted
from bertcli.files.addresses import public
from bertcli.files.printable import printable
from bertcli.files.streams import size_on_disk

if TYPE_CHECKING:
    from bertcli.inference.progress import Advance, ModelRun, Ran
    from bertcli.records.reader import Reader

Batch = TypeVar("Batch", bound=Sized)

STYLES: dict[str, dict[str, Any]] = {"error": {"fg": "red", "bold": True}, "hint": {"fg": "cyan"}}
LONGEST = 1200  # characters of a message: names of fields and tensors may have any length


def stdout_is_terminal() -> bool:
    """Return whether stdout is a terminal; closed, it is None."""
    return sys.stdout is not None and sys.stdout.isatty()


def stdin_is_terminal() -> bool:
    """Return whether somebody types at stdin; closed, it is None."""
    return sys.stdin is not None and sys.stdin.isatty()


def print_text(text: str) -> None:
    """Write a text to stdout. Raises OutputError when that is closed, or its disk full."""
    from bertcli.files.writers import open_output

    with open_output(None, drawn=True) as output:
        output.write(f"{text}\n".encode(sys.stdout.encoding, "backslashreplace"))


def say(kind: str, message: str) -> None:
    """Write one line to stderr, of bounded length: an error, a hint, a note or a warning."""
    line = printable(public(" ".join(message.split())))
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}... ({counted(len(line) - LONGEST, 'more character')})"
    label = f"{kind}:"
    if kind in STYLES:
        label = styled(label, sys.stderr, **STYLES[kind])
    with suppress(OSError):  # a full log is no reason to lose what is computed
        sys.stderr.write(f"{label} {line}\n")


def styled(text: str, stream: TextIO | None, **style: Any) -> str:
    """Return a text with a style on a terminal, unless the environment has another wish."""
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    terminal = os.environ.get("FORCE_COLOR") or (stream is not None and stream.isatty())
    return typer.style(text, **style) if terminal and not dull else text


class Console:
    """Writes notes and warnings, unless quiet; empty messages are ignored."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.verbose = quiet, verbose
        self.remarks: list[str] = []
        self.begun = monotonic()

    def note(self, message: str) -> None:
        """Write a note."""
        self._write("note", message)

    def warn(self, message: str) -> None:
        """Write a warning."""
        self._write("warning", message)

    def remark(self, message: str) -> None:
        """Write a note at the end of the run, if it succeeds; with --verbose, now."""
        if self.verbose:
            self.note(message)
        else:
            self.remarks.append(message)

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
        from bertcli.cli.display.progress_bars import ProgressBar, texts_of_all

        size, records = size_on_disk(reader.source.paths), 0
        with closing(ProgressBar()) as bar:
            for batch in batches:
                records += len(batch)
                seconds = max(monotonic() - bar.start, 1e-9)
                counts = f"{texts_of_all(records, reader, size)}  {records / seconds:,.0f} texts/s"
                if cut := truncated():
                    counts += f"  {cut:,} truncated"
                share = reader.bytes_read / size if size else None
                if reader.source.texts:
                    share = records / len(reader.source.texts)
                bar.update(counts, share, seconds)
                yield batch

    def watch(self, run: Iterable[Ran | Advance]) -> None:
        """Run to the end, with a progress bar when somebody watches for long."""
        from bertcli.cli.display.progress_bars import ProgressBar
        from bertcli.inference.progress import Ran

        what, start = "", monotonic()
        last = start
        with closing(ProgressBar()) if self.watched else nullcontext() as bar:
            for step in run:
                if isinstance(step, Ran):
                    self.warn(step.warning)
                elif bar:
                    if step.what != what:
                        what, start = step.what, last
                    last = monotonic()
                    seconds = max(last - start, 1e-9)
                    counts = f"{step.done:,} {what}  {step.done / seconds:,.0f} {what}/s"
                    bar.update(counts, step.share, seconds)

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
                bar.bar.close()
        if progress.texts:
            texts = counted(progress.texts, "text")
            tokens = counted(progress.tokens, "token")
            self.detail(f"{texts}, {tokens} in {progress.seconds:,.1f} s: {progress.rates}")

    def close(self, records: int, reader: Reader, *, numbered: bool = False) -> None:
        """Say what became of the input; exit with 1 when records were skipped.

        ``numbered`` tells that a record without an id was written with the number of its row.
        """
        for remark in self.remarks:
            self.note(remark)
        if not records and not reader.skipped:
            self.note("no records: the input is empty")
        if reader.empty:
            self.note(f"{counted(reader.empty, 'empty text')} left out")
        if reader.unfit_ids:
            self.note(unfit_ids(reader.unfit_ids))
        if numbered and reader.with_id and reader.without_id:
            self.warn(numbered_rows(reader.without_id))
        if reader.replaced:
            characters = counted(reader.replaced, "character")
            self.warn(f"{characters} could not be decoded and were replaced by U+FFFD")
        if reader.skipped:
            self.warn(skipped(reader.skipped))
            raise typer.Exit(1)

    def _write(self, kind: str, message: str) -> None:
        if message and not self.quiet:
            say(kind, message)
