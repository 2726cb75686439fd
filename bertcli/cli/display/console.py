"""Messages and progress bars on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from bertcli.errors import Log, counted, on_command_line
from bertcli.io.paths import public
from bertcli.io.printable import printable
from bertcli.io.progress import Advance, BatchDone, Executable, Progress, ResultT, Show, Step
from bertcli.io.streams import size_on_disk

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from bertcli.records.reader import Reader
    from bertcli.tokenizing.run import TokenCounts
    from bertcli.training.run import Event, TrainingRun


QUIET_SECONDS = 1.0  # shorter work shows no bar
REFRESH_SECONDS = 0.1  # minimum time between two updates of a bar


class ProgressBar:
    """A progress bar on stderr: counts, completed share and remaining time.

    Short work (see ``QUIET_SECONDS``) shows no bar.
    """

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.start = monotonic()  # start of the current work
        self.last_step = self.start
        self.next_refresh = self.start + QUIET_SECONDS
        self.unit = ""  # unit of the current work, such as "texts"
        self.rich_progress: RichProgress | None = None

    def show(self, step: Any, progress: Progress, reader: Reader | None, truncated: int) -> None:
        """Show the progress of a run after a step; ``progress`` is the sum of its steps."""
        if isinstance(step, Advance):
            done, unit, share = step
            seconds = self.seconds(unit)
            self.update(f"{done:,} {unit}  {done / seconds:,.0f} {unit}/s", share, seconds)
        elif reader:
            done = progress.earlier_texts + progress.texts
            counts, total = count_and_total(done, reader, size_on_disk(reader.source.paths))
            rates = progress.rates(reader.unit)
            if not progress.tokens:
                rates = rates.partition("  ")[0]
            counts += f"  {rates}{f'  {truncated:,} truncated' if truncated else ''}"
            share = total and progress.texts / max(progress.texts, total - progress.earlier_texts)
            self.update(counts, share, progress.seconds)
        self.last_step = monotonic()

    def seconds(self, unit: str) -> float:
        """Return the duration of the current work in seconds. A new unit starts new work."""
        if unit != self.unit:
            self.unit = unit
            self.start = self.last_step
        return max(monotonic() - self.start, 1e-9)

    def update(self, counts: str, share: float | None, seconds: float) -> None:
        """Update the bar; ``share`` is from 0 to 1, or None if unknown."""
        if not self.shown or monotonic() < self.next_refresh:
            return
        self.rich_progress = self.rich_progress or _rich_progress()
        remaining = "" if not share else clock_time(seconds * (1 - share) / share)
        total = None if share is None else 1.0
        task = self.rich_progress.task_ids[0]
        self.rich_progress.update(
            task, completed=share or 0.0, total=total, counts=counts, remaining=remaining
        )
        self.rich_progress.start()
        self.rich_progress.refresh()
        self.next_refresh = monotonic() + REFRESH_SECONDS

    def close(self) -> None:
        """Remove the bar."""
        if self.rich_progress:
            self.rich_progress.stop()


def _rich_progress() -> RichProgress:
    """Return the bar that Rich draws: counts, share and remaining time."""
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    from bertcli.cli.display.tables import Screen

    progress = Progress(
        TextColumn("{task.fields[counts]}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        TextColumn("{task.fields[remaining]}", markup=False, table_column=Column(no_wrap=True)),
        # The terminal echoes Ctrl-C as ^C. In the last column that would wrap to the next line, and
        # Rich would remove that line in place of the bar.
        console=Screen(stderr=True, margin=len("^C")),
        transient=True,
        expand=True,
        auto_refresh=False,  # redrawn only by updates, without a thread
    )
    progress.add_task("", total=None, counts="", remaining="")
    return progress


def count_and_total(done: int, reader: Reader, size: int | None) -> tuple[str, float | None]:
    """Return the count of completed texts or chunks as text, and their total (None if unknown).

    While files are still being read, the total is an estimate. ``size`` is the size of the files
    in bytes, or None for pipes, whose total is unknown.
    """
    unit = reader.unit
    total: float
    if reader.exhausted or (reader.source.texts and unit == "texts"):
        total = reader.yielded if reader.exhausted else len(reader.source.texts)
        return f"{done:,} of {total:,.0f} {unit}", total
    if size and reader.bytes_read and reader.yielded:
        total = reader.yielded * max(1.0, size / reader.bytes_read)
        return f"{done:,} of about {float(f'{total:.1e}'):,.0f} {unit}", total
    return f"{done:,} {unit}", None


def clock_time(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    return str(timedelta(seconds=max(0, round(seconds))))


STYLES: dict[str, dict[str, Any]] = {"error": {"fg": "red", "bold": True}, "hint": {"fg": "cyan"}}
MAX_MESSAGE_LENGTH = 1200  # maximum characters of a message, which may contain names of any length


def stdout_is_terminal() -> bool:
    """Return True if stdout is a terminal; a closed stdout is None."""
    return sys.stdout is not None and sys.stdout.isatty()


def stdin_is_terminal() -> bool:
    """Return True if stdin is a terminal; a closed stdin is None."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str) -> bool:
    """Ask a question on stderr. Return True for y or yes, else False, also at end of input."""
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def size_text(size: int) -> str:
    """Return a size in bytes, or in MB from 10 MB."""
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else f"{size:,} bytes"


def print_text(text: str) -> None:
    """Write a text to stdout. Raises OutputError if stdout is closed or its disk is full."""
    from bertcli.formats.writers import open_output

    with open_output(None, is_drawn=True) as output:
        output.write(f"{text}\n".encode(sys.stdout.encoding, "backslashreplace"))


def say(level: str, message: str) -> None:
    """Write one line to stderr, cut if it is long. ``level`` is error, hint, note or warning."""
    line = printable(public(on_command_line(message)))
    if len(line) > MAX_MESSAGE_LENGTH:
        line = f"{line[:MAX_MESSAGE_LENGTH]}..."
    label = f"{level}:"
    no_color = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if level in STYLES and (os.environ.get("FORCE_COLOR") or sys.stderr.isatty()) and not no_color:
        label = typer.style(label, **STYLES[level])
    with suppress(OSError):  # a failing log must not abort the computation
        sys.stderr.write(f"{label} {line}\n")


class Console(Log):
    """Log that writes to stderr. With ``quiet``, nothing is written; empty messages are ignored."""

    quiet: bool
    verbose: bool
    beside_output = False  # True if rows are written to the terminal during the run

    def write(self, level: str, message: str) -> None:
        """Write a message. Messages of level debug need --verbose."""
        if message and not self.quiet and (self.verbose or level != "debug"):
            say("warning" if level == "warning" else "note", message)

    @property
    def watched(self) -> bool:
        """True if progress is shown: stderr is a terminal that can draw it, and not quiet."""
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return terminal and not self.quiet

    def track(self, run: Iterable[Any], reader: Reader | None = None) -> Iterator[Any]:
        """Yield the steps of a run while showing a progress bar.

        A run may also yield windows of the texts of its ``reader``. No bar is shown if the output
        itself goes to the terminal (``beside_output``). With --verbose, log the totals at the end.
        """
        with self.progress(run, reader) as show:
            for step in run:
                show(step if isinstance(step, Step) else BatchDone(len(step)))
                yield step

    @contextmanager
    def progress(self, run: Any, reader: Reader | None = None) -> Iterator[Show]:
        """Yield a function that shows each step of a run, see `track`."""
        progress = Progress()
        reader = reader or getattr(run, "reader", None)
        with closing(ProgressBar(self.watched and not self.beside_output)) as bar:

            def show(step: Step) -> None:
                progress.add(step)
                if bar.shown:
                    tally: TokenCounts | None = getattr(run, "tally", None)
                    bar.show(step, progress, reader, tally.truncated if tally else 0)

            yield show
        if progress.tokens and reader:
            texts = counted(progress.texts, reader.unit.removesuffix("s"))
            tokens = counted(progress.tokens, "token")
            self.detail(
                f"{texts}, {tokens} in {progress.seconds:,.1f} s: {progress.rates(reader.unit)}"
            )

    def follow(self, run: Executable[ResultT]) -> ResultT:
        """Execute a run with a progress bar."""
        with self.progress(run) as show:
            return run.execute(show)

    def follow_training(self, run: TrainingRun) -> None:
        """Train to the end and show the progress."""
        follow_training(run, self)

    def warn_truncated(
        self, tally: TokenCounts, limit: int | None, advice: str = "", unit: str = "texts"
    ) -> None:
        """Warn about truncated texts: "1 of 2 texts truncated to 8 tokens (3 dropped)"."""
        if line := tally.truncation(limit, unit):
            self.warn(f"{line}{advice}")

    def warn_special_tokens(self, tally: TokenCounts) -> None:
        """Warn about special tokens in the texts, and say how to prevent parsing them."""
        if tally.literals:
            self.warn(
                f"special tokens in the input were parsed as special tokens ({tally.literals:,}); "
                "--no-parse-special treats them as plain text"
            )

    def note_empty(self, tally: TokenCounts) -> None:
        """Note how many texts were empty."""
        self.note(tally.emptiness())

    def close(self, reader: Reader) -> None:
        """Summarize the input. Exit with code 1 if records were skipped."""
        reader.summarize(self)
        self.exit_if_skipped(reader.skipped)

    def exit_if_skipped(self, records: int, details: str = "") -> None:
        """Exit with code 1 and a warning if records were skipped."""
        if records:
            self.warn(f"{counted(records, 'record was', 'records were')} skipped{details}")
            raise typer.Exit(1)


# --- training ---


LINES_PER_RUN = 10  # lines of a training run whose progress is not on a terminal
MAX_LINE_SECONDS = 60.0  # maximum time between two lines


def follow_training(run: TrainingRun, console: Console) -> None:
    """Train and show the progress: a bar on a terminal, else about ten lines.

    After the bar, the last losses and the step of the kept weights are shown.
    """
    from bertcli.training.run import evaluation_line

    steps = run.options.steps or 0
    first_step = run.state.step
    start = monotonic()
    position = ""  # such as "step 1/9"
    counts = ""
    losses = ""
    held_out = ""
    lines = TrainingLines(console, steps, first_step)
    with closing(ProgressBar(console.watched)) as bar:

        def show(event: Event) -> None:
            nonlocal position, counts, losses, held_out
            position = f"step {event.step:,}/{steps:,}"
            share = (event.step - first_step) / max(steps - first_step, 1)  # of this process
            seconds = monotonic() - start
            match event.name:
                case "step":
                    loss = sum(
                        value for name, value in event.values.items() if name.endswith("loss")
                    )
                    counts = f"{position}  loss {loss:.4f}"
                case "log":
                    losses = training_line(event.values)
                case "evaluation":
                    held_out = evaluation_line(event.values)
            if bar.shown:
                bar.update(counts, share, seconds)
            else:
                remaining = clock_time(seconds * (1 - share) / (share or 1))
                lines.show(event.name, event.step, losses, held_out, remaining)

        run.execute(show)
    if not bar.shown:
        lines.close()
    elif losses:
        console.note(f"{position}  {losses}")
    if best := run.state.best:
        console.note(f"weights of step {best['step']:,} kept; {evaluation_line(best)}")
    elif bar.shown and held_out:
        console.note(f"{position}; {held_out}")


class TrainingLines:
    """Lines of a training run: one per tenth of the run or per minute, and the last one."""

    def __init__(self, console: Console, steps: int, first_step: int) -> None:
        self.console = console
        self.steps = steps
        self.shown_step = first_step
        self.shown_at = monotonic()
        self.line = ""  # line of the last step, not written yet

    def show(self, event_name: str, step: int, losses: str, held_out: str, remaining: str) -> None:
        """Process an event. Write the line of the previous step if it is due."""
        if event_name == "step":  # all events of the previous step have arrived
            is_due = (step - 1 - self.shown_step) * LINES_PER_RUN >= self.steps
            if self.line and (is_due or monotonic() - self.shown_at >= MAX_LINE_SECONDS):
                self.close()
                self.shown_step = step - 1
            return
        if event_name in ("log", "evaluation"):
            fields = [f"step {step:,}/{self.steps:,}", losses, held_out, f"{remaining} left"]
            self.line = "  ".join(filter(None, fields))

    def close(self) -> None:
        """Write the last line if it has not been written."""
        self.console.note(self.line)
        self.line = ""
        self.shown_at = monotonic()


def training_line(values: Any) -> str:
    """Return a line with the losses and the speed."""
    details = ""
    if "mlm_loss" in values:
        details = f" (words {values['mlm_loss']:.4f}, pairs {values['nsp_loss']:.4f})"
    return (
        f"loss {values['loss']:.4f}{details}  lr {values['lr']:.2e}  "
        f"gradients {values['grad_norm']:.2f}  {values['tokens_per_second']:,.0f} tokens/s"
    )
