"""The progress of a training run, on stderr: a live view on a terminal, else lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from bertcli.cli.display.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bertcli.training.run import Event, TrainingRun

HISTORY = 2000  # losses kept for the curve; beyond, every second one is dropped
CURVE_WIDTH, CURVE_HEIGHT = 72, 8  # characters at most
FRAMES = 4  # a second
# Bits of a braille character: the rows of its left and of its right column, from the top.
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Show = Callable[["Event"], None]


@contextmanager
def watching(run: TrainingRun, console: Console) -> Iterator[Show]:
    """Yield a function that shows the events of a run."""
    if console.quiet:
        yield lambda event: None
        return
    progress = TrainingProgress(run.schedule.steps, run.state.step)
    if console.watched:
        with _live(progress) as show:
            yield show
        for line in progress.last_lines(run.best):
            console.note(line)
    else:
        yield lambda event: console.note(progress.seen_line(event))


class TrainingProgress:
    """The progress of a run so far."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps, self.first, self.step = steps, done, done
        self.began = monotonic()
        self.losses: list[float] = []
        self.every, self.seen = 1, 0
        self.last: dict[str, Any] = {}
        self.held: dict[str, Any] = {}

    def see(self, event: Event) -> None:
        """Add an event."""
        self.step = event.step
        if event.kind == "step":
            self._add(sum(value for name, value in event.values.items() if name.endswith("loss")))
        elif event.kind == "log":
            self.last = dict(event.values)
        elif event.kind == "evaluation":
            self.held = dict(event.values)

    def line(self, event: Event) -> str:
        """Describe an event in a line; empty for events that are not shown."""
        at = f"step {event.step:,}/{self.steps:,}"
        if event.kind == "log":
            return f"{at}  {training_line(event.values)}  {self.left()} left"
        if event.kind == "evaluation":
            return f"{at}  {evaluation_line(event.values)}"
        return f"{at}  checkpoint: {event.values['path']}" if event.kind == "checkpoint" else ""

    def seen_line(self, event: Event) -> str:
        """Add an event, and return its line."""
        self.see(event)
        return self.line(event)

    def last_lines(self, best: Mapping[str, Any]) -> Iterator[str]:
        """Describe what was last, and the weights that are kept; the log has all of it."""
        if self.last:
            yield f"step {self.step:,}/{self.steps:,}  {training_line(self.last)}"
        if best:
            yield f"weights of step {best['step']:,} kept; {evaluation_line(best)}"
        elif self.held:
            yield f"step {self.step:,}/{self.steps:,}; {evaluation_line(self.held)}"

    def left(self) -> str:
        """Estimate the time left."""
        done = self.step - self.first
        seconds = (monotonic() - self.began) / max(done, 1) * (self.steps - self.step)
        return str(timedelta(seconds=round(seconds)))

    def _add(self, loss: float) -> None:
        self.seen += 1
        if self.seen % self.every == 0:
            self.losses.append(loss)
        if len(self.losses) > HISTORY:
            self.losses, self.every = self.losses[1::2], self.every * 2


def training_line(values: Any) -> str:
    """Describe the losses and the speed."""
    parts = ""
    if "mlm_loss" in values:
        parts = f" (words {values['mlm_loss']:.4f}, pairs {values['nsp_loss']:.4f})"
    return (
        f"loss {values['loss']:.4f}{parts}  lr {values['lr']:.2e}  "
        f"gradients {values['grad_norm']:.2f}  {values['tokens_per_second']:,.0f} tokens/s"
    )


def evaluation_line(values: Any) -> str:
    """Describe the evaluation on held-out instances or examples."""
    if "next_sentence_interval" not in values:
        metrics = [
            f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in values.items()
            if isinstance(value, float) and name != "eval_loss"
        ]
        return f"held out: loss {values['eval_loss']:.4f}  {'  '.join(metrics)}"
    low, high = values["next_sentence_interval"]
    return (
        f"held out: loss {values['eval_loss']:.4f}  perplexity {values['perplexity']:,.1f}  "
        f"masked words {values['masked_accuracy']:.1%} (commonest word "
        f"{values['unigram_accuracy']:.1%})  next sentences "
        f"{values['next_sentence_accuracy']:.1%} (95%: {low:.1%} to {high:.1%}, the same answer "
        f"always {values['commoner_label_accuracy']:.1%})"
    )


def curve(values: Sequence[float], width: int, height: int) -> list[str]:
    """Draw a curve in braille: lines of at most `width` characters, each 2 by 4 dots."""
    columns = min(2 * width, len(values))
    means = []
    for column in range(columns):
        start, end = column * len(values) // columns, (column + 1) * len(values) // columns
        means.append(sum(values[start:end]) / (end - start))
    low, high = min(means, default=0.0), max(means, default=0.0)
    rows = 4 * height - 1
    levels = [round((high - mean) / ((high - low) or 1.0) * rows) for mean in means]
    cells = [[0] * -(-columns // 2) for _ in range(height)]
    before = levels[0] if levels else 0
    for column, level in enumerate(levels):
        for row in range(min(before, level), max(before, level) + 1):
            cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]
        before = level
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


@contextmanager
def _live(progress: TrainingProgress) -> Iterator[Show]:
    from rich.live import Live

    from bertcli.cli.display.screen import Screen

    screen = Screen(stderr=True)
    with Live(console=screen, refresh_per_second=FRAMES, transient=True) as live:

        def show(event: Event) -> None:
            progress.see(event)
            live.update(_picture(progress, screen.width))

        yield show


def _picture(progress: TrainingProgress, width: int) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    share = ProgressBar(total=progress.steps, completed=progress.step, width=min(width // 3, 40))
    head.add_row(f"step {progress.step:,}/{progress.steps:,}", share, f"{progress.left()} left")
    parts: list[RenderableType] = [head]
    if len(progress.losses) > 1:
        for line in curve(progress.losses, min(width - 2, CURVE_WIDTH), CURVE_HEIGHT):
            parts.append(Text(line, "cyan", no_wrap=True, overflow="crop"))
        spread = f"loss {max(progress.losses):.2f} to {min(progress.losses):.2f}"
        parts.append(Text(spread, "dim"))
    if progress.last:
        parts.append(Text(training_line(progress.last)))
    if progress.held:
        parts.append(Text(evaluation_line(progress.held)))
    return Group(*parts)
