"""The progress of a training run, on stderr: a bar on a terminal, else lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from bertcli.cli.display.console import Console, ProgressBar, clock

if TYPE_CHECKING:
    from bertcli.training.run import Event, TrainingRun

Show = Callable[["Event"], None]


@contextmanager
def watching(run: TrainingRun, console: Console) -> Iterator[Show]:
    """Yield a function that shows the events of a run."""
    progress = TrainingProgress(run.schedule.steps, run.state.step)
    with closing(ProgressBar(console.watched)) as bar:

        def show(event: Event) -> None:
            line = progress.see(event)
            if bar.shown:
                bar.update(progress.counts(), progress.share, progress.seconds)
            else:
                console.note(line)

        yield show
    if bar.shown:
        for line in progress.last_lines(run.state.best):
            console.note(line)


class TrainingProgress:
    """The progress of a run so far."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps, self.first, self.step = steps, done, done
        self.began = monotonic()
        self.loss: float | None = None
        self.last = self.held = ""  # what was said last of the training, and of held-out examples

    def see(self, event: Event) -> str:
        """Add an event, and describe it in a line; empty for events that are not shown."""
        self.step = event.step
        at = f"{self.place}  "
        match event.kind:
            case "step":
                losses = (value for name, value in event.values.items() if name.endswith("loss"))
                self.loss = sum(losses)
            case "log":
                self.last = training_line(event.values)
                left = clock(self.seconds * (1 - self.share) / (self.share or 1))
                return f"{at}{self.last}  {left} left"
            case "evaluation":
                self.held = evaluation_line(event.values)
                return f"{at}{self.held}"
            case "checkpoint":
                return f"{at}checkpoint: {event.values['path']}"
        return ""

    @property
    def place(self) -> str:
        """The step, of how many."""
        return f"step {self.step:,}/{self.steps:,}"

    @property
    def share(self) -> float:
        """The share of the steps of this process that is done."""
        return (self.step - self.first) / max(self.steps - self.first, 1)

    @property
    def seconds(self) -> float:
        """The time since the run began."""
        return monotonic() - self.began

    def counts(self) -> str:
        """Describe where the run is."""
        return self.place if self.loss is None else f"{self.place}  loss {self.loss:.4f}"

    def last_lines(self, best: Mapping[str, Any]) -> Iterator[str]:
        """Describe what was last, and the weights that are kept; the log has all of it."""
        if self.last:
            yield f"{self.place}  {self.last}"
        if best:
            yield f"weights of step {best['step']:,} kept; {evaluation_line(best)}"
        elif self.held:
            yield f"{self.place}; {self.held}"


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
