"""The progress of a training run, on stderr: a bar on a terminal, else lines."""

from __future__ import annotations

from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

from bertcli.cli.display.console import Console, ProgressBar, clock

if TYPE_CHECKING:
    from bertcli.training.run import TrainingRun


def follow_training(run: TrainingRun, console: Console) -> None:
    """Train, and show the events: in a bar on a terminal, else in lines.

    The bar leaves what was last, and which weights are kept; the log has all of it.
    """
    steps, first, began = run.schedule.steps, run.state.step, monotonic()
    place = counts = losses = held_out = ""
    with closing(ProgressBar(console.watched)) as bar:
        for event in run.events():
            place, line = f"step {event.step:,}/{steps:,}", ""
            share = (event.step - first) / max(steps - first, 1)  # of the steps of this process
            seconds = monotonic() - began
            match event.kind:
                case "step":
                    parts = (event.values[name] for name in event.values if name.endswith("loss"))
                    counts = f"{place}  loss {sum(parts):.4f}"
                case "log":
                    losses = training_line(event.values)
                    line = f"{losses}  {clock(seconds * (1 - share) / (share or 1))} left"
                case "evaluation":
                    line = held_out = evaluation_line(event.values)
                case "checkpoint":
                    line = f"checkpoint: {event.values['path']}"
            if bar.shown:
                bar.update(counts, share, seconds)
            elif line:
                console.note(f"{place}  {line}")
    if bar.shown:
        console.note(f"{place}  {losses}" if losses else "")
        if best := run.state.best:
            console.note(f"weights of step {best['step']:,} kept; {evaluation_line(best)}")
        elif held_out:
            console.note(f"{place}; {held_out}")


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
