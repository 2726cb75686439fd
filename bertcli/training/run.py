"""A training run: start or resume, train, evaluate, write checkpoints, the log and the model.

    OUT/config.json, model.safetensors, tokenizer files    the result, written when complete
    OUT/log.jsonl, loss.svg                                the log, and its losses as a figure
    OUT/checkpoint-STEP/                                   for --resume

What is trained, and what its files are, is the task's. With several processes all of them read,
and only the first writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import ceil, inf, isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bertcli.checkpoints.load import load_tensors
from bertcli.errors import BertcliError, ModelError, OutputError, out_of_memory
from bertcli.files.lock import locked
from bertcli.files.system_calls import sync, sync_folder
from bertcli.files.typed_json import (
    BadJsonError,
    JsonObject,
    as_json,
    is_regular,
    kind_of,
    parse,
    strict,
)
from bertcli.inspection.drawing import FAINT, INK, SENTENCES, drawing, encode, require_matplotlib
from bertcli.training.checkpoints import (
    LOG,
    OPTIMIZER,
    PLOT,
    Checkpoints,
    State,
    put_moments,
    read_state,
)
from bertcli.training.loop import (
    Ranks,
    RunSummary,
    StepResult,
    TrainedTask,
    Training,
    evaluating,
    moments,
    restore_moments,
)
from bertcli.vectors.journal import refuse_changes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOVE = "move the log away; the run continues with a new one"


class Event(NamedTuple):
    """An event to show: a `step`, a line of the `log`, an `evaluation` or a `checkpoint`."""

    kind: str
    step: int
    values: Mapping[str, Any]


class TrainingRun:
    """A run that is ready to start or resume; `events` trains."""

    def __init__(self, task: TrainedTask, checkpoints: Checkpoints, ranks: Ranks) -> None:
        self.task, self.checkpoints, self.ranks = task, checkpoints, ranks
        self.options = options = task.options
        self.notes = list(task.notes)
        self.plots = ranks.first
        if self.plots:
            try:
                require_matplotlib(f"drawing {PLOT}")
            except BertcliError as error:
                self.notes.append(f"{error}: {error.hint}; only {LOG} is written")
                self.plots = False
        self.schedule = options.schedule(len(task.rows))
        numbers = {
            **options.numbers(),
            "steps": self.schedule.steps,
            "warmup_steps": self.schedule.warmup_steps,
        }
        self.fingerprint = as_json({**task.identity, "options": numbers})
        self.state = state = self._state()
        self.best, self.waited = dict(state.best), state.waited
        torch.manual_seed(options.seed)
        checkpoint = checkpoints.path(state.step) if state.step else None
        model = task.model(checkpoint).to(ranks.device)
        self.training = training = Training(model, task.objective, task.rows, options, ranks)
        if checkpoint:
            stored = load_tensors(checkpoint / OPTIMIZER)
            restore_moments(model, training.optimizer, stored, state.updates)
            if state.scaler:
                training.scaler.load_state_dict(dict(state.scaler))

    def _state(self) -> State:
        """Return the state of the last checkpoint; OutputError when it is of another run."""
        last = self.checkpoints.last() if self.checkpoints.resume else None
        if last is None:
            return State()
        state = read_state(last)
        refuse_changes(str(last), state.fingerprint, self.fingerprint)
        if state.step == self.schedule.steps or self._enough(state.waited):
            self.notes.append(f"the run is complete: {last.name} is its last step")
        now = as_json(self._made_with())
        differ = [
            f"{key} {was}, now {now[key]}"
            for key, was in state.made_with.items()
            if was != now[key]
        ]
        if differ:
            self.notes.append(
                f"the run was started with {'; '.join(differ)}: results may differ by "
                "rounding and by dropout"
            )
        return state

    def _made_with(self) -> dict[str, Any]:
        device = self.ranks.device.type
        return {
            "torch": torch.__version__,
            "device": device,
            "processes": self.ranks.count,
            "threads": torch.get_num_threads() if device == "cpu" else None,
            "gradient_accumulation_steps": self.options.gradient_accumulation_steps,
        }

    def events(self) -> Iterator[Event]:
        """Train, and yield what happens; the result is written when this is exhausted.

        ModelError, naming the last good checkpoint, when the loss is no number any more or memory
        runs out; OutputError when something cannot be written.
        """
        self.ranks.wait()  # all processes have checked the folder before anything is written
        with ExitStack() as stack:
            log = self._take(stack) if self.ranks.first else None
            window = LogWindow(self.state.window)
            for number in range(self.state.step, self.schedule.steps):
                if self.stopped:
                    break
                began = monotonic()
                result = self._step(number)
                window.add(result, monotonic() - began)
                yield Event("step", result.step, result.values)
                for event in self._after(result.step, window):
                    if log is not None and event.kind != "checkpoint":
                        with self.checkpoints.explained(f"{LOG} cannot be written"):
                            log.write({"step": event.step, **event.values})
                    yield event
                if self._due(result.step, self.options.save_every):
                    yield self._save(result.step, log, window)
            if log is not None:
                self._finish()

    def _take(self, stack: ExitStack) -> Log:
        """Lock the folder, and truncate the log to its size at the checkpoint."""
        output, state = self.checkpoints.folder, self.state
        with self.checkpoints.explained("cannot be written"):
            existed = output.exists()
            output.mkdir(exist_ok=True)
            sync_folder(output.parent)
        try:
            stack.enter_context(locked(output / ".lock", output))
        except OutputError:
            if not existed:
                output.rmdir()
            raise
        with self.checkpoints.explained("cannot be written"):
            self.checkpoints.sweep(state.best.get("step"))
            if not state.step:
                self.checkpoints.clear()
            self.task.keep(output)
            log = Log(output / LOG, state.log_bytes)
        stack.callback(log.file.close)
        if state.best:
            read_state(self.checkpoints.best)  # not hours later, where it is needed
        return log

    def _step(self, number: int) -> StepResult:
        try:
            return self.training.step(number)
        except FloatingPointError as bad:
            raise ModelError(
                f"step {number + 1}: {bad}; {self.checkpoints.kept()}",
                "try a lower --learning-rate or a longer --warmup-steps",
            ) from None
        except (RuntimeError, MemoryError) as full:
            if not out_of_memory(full):
                raise
            raise ModelError(
                f"step {number + 1}: out of memory on {self.ranks.device}: "
                f"{str(full).split('. ')[0]}; {self.checkpoints.kept()}",
                "use --gradient-accumulation-steps 2 or --gradient-checkpointing",
            ) from None

    @property
    def stopped(self) -> bool:
        """Whether the run ends early."""
        return self._enough(self.waited)

    def _enough(self, waited: int) -> bool:
        return 0 < self.task.patience <= waited

    def _due(self, step: int, every: int | None) -> bool:
        """Return whether something is due after this step; after the last step, everything is."""
        last = step == self.schedule.steps or self.stopped
        return last or bool(every and step % every == 0)

    def _after(self, step: int, window: LogWindow) -> Iterator[Event]:
        """Yield what is due after a step; the last one is known once it is evaluated."""
        options, objective, training = self.options, self.task.objective, self.training
        metrics: Mapping[str, Any] = {}
        if len(objective.held) and self._due(step, options.eval_every):
            with evaluating(training.model, self.ranks.device, training.dtype):
                metrics = objective.evaluate(training.model, self.ranks, options.batch_size)
            self._select(step, metrics)
        if self._due(step, options.log_every):
            epoch = step * options.batch_size / len(self.task.rows)
            yield Event("log", step, window.close(epoch, objective.losses))
        if metrics:
            yield Event("evaluation", step, metrics)

    def _select(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keep the weights if they are the best so far."""
        if not self.task.keeps_best:
            return
        if self.best and not metrics["eval_loss"] < self.best["eval_loss"]:
            self.waited += 1
            return
        self.best, self.waited = {"step": step, **metrics}, 0
        if self.ranks.first:
            put, model = self.task.put, self.training.model
            self.checkpoints.write_best(lambda to: put(to, model), self.state.best.get("step"))

    def _save(self, step: int, log: Log | None, window: LogWindow) -> Event:
        training = self.training

        def fill(folder: Path) -> None:
            self.task.put(folder, training.model)
            put_moments(folder, moments(training.model, training.optimizer))

        if log is not None:
            with self.checkpoints.explained(f"{LOG} cannot be written"):
                sync(log.file)
            self.state = State(
                step=step,
                updates=training.updates,
                log_bytes=log.file.seek(0, os.SEEK_END),
                window=window.sums,
                scaler=training.scaler.state_dict(),
                fingerprint=self.fingerprint,
                made_with=self._made_with(),
                best=self.best,
                waited=self.waited,
            )
            self.checkpoints.write(self.state, fill)
        return Event("checkpoint", step, {"path": str(self.checkpoints.path(step))})

    def _finish(self) -> None:
        """Write the model and the figure of the log to the output folder."""
        model = self.task.model(self.checkpoints.best) if self.best else self.training.model

        def fill(folder: Path) -> None:
            self.task.publish(folder, model, RunSummary(self.schedule.steps, self.best))
            if self.plots:
                (folder / PLOT).write_bytes(plot(self.checkpoints.folder / LOG))

        self.checkpoints.publish(fill)


# --- the log ---


class LogWindow:
    """Sums over the steps since the last line; checkpoints store them."""

    def __init__(self, sums: Mapping[str, float]) -> None:
        self.sums = dict(sums)
        self.lr = 0.0

    def add(self, step: StepResult, seconds: float) -> None:
        """Add a step."""
        values = {**step.values, "seconds": seconds, "steps": 1}
        self.lr = values.pop("lr")
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def close(self, epoch: float, losses: Sequence[str]) -> dict[str, Any]:
        """Return the line of these steps, means and the last learning rate, and reset the sums."""
        sums, self.sums = self.sums, {}
        means = {name: sums[name] / sums["steps"] for name in losses}
        return {
            "epoch": round(epoch, 4),
            "loss": sum(means.values()),
            **means,
            "lr": self.lr,
            "grad_norm": sums["grad_norm"] / sums["steps"],
            "tokens_per_second": round(sums["tokens"] / max(sums["seconds"], 1e-9), 1),
        }


class Log:
    """Appends JSON lines to a file, truncated to its size at the last checkpoint."""

    def __init__(self, path: Path, size: int = 0) -> None:
        is_regular(path, OutputError, MOVE, inf)
        self.file = path.open("ab")
        self.file.truncate(min(size, self.file.seek(0, os.SEEK_END)))

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line and flush it; a number that overflowed is null."""
        self.file.write(json.dumps(strict(line)).encode() + b"\n")
        self.file.flush()


SIZE = 7.5, 4.2  # inches
MOST = 1000  # points of a curve, more than its pixels
Points = Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """Points (step, loss) under a name."""

    name: str
    points: Points
    colour: str
    dots: bool = False


def plot(log: Path, form: str = "svg") -> bytes:
    """Draw the losses of a log over its steps, held-out losses as dots.

    Return the file: svg, png or pdf. Raises OutputError for a line that is not an object.
    """
    lines = []
    with log.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                continue
            where = f"{log}:{number}"
            try:
                values = parse(line)
            except BadJsonError as bad:
                raise OutputError(f"{where}: not a line of a log: {bad}", MOVE) from None
            if not isinstance(values, dict):
                raise OutputError(f"{where}: not a line of a log, but {kind_of(values)}", MOVE)
            lines.append(JsonObject(values, where, OutputError, MOVE))
    curves = [
        Curve("loss", _points(lines, "loss"), SENTENCES[0]),
        Curve("masked words", _points(lines, "mlm_loss"), FAINT),
        Curve("held out", _points(lines, "eval_loss"), SENTENCES[1], dots=True),
    ]
    with drawing():
        return encode(_figure([curve for curve in curves if curve.points]), form, "Loss by step")


def _points(lines: Sequence[JsonObject], name: str) -> Points:
    """Return the steps and values of the lines that have this value, at most MOST of them.

    Of more, each is the mean of neighbouring points.
    """
    pairs = [(line.number("step"), line.number(name)) for line in lines]
    points = [
        (step, value)
        for step, value in pairs
        if step is not None and value is not None and isfinite(step) and isfinite(value)
    ]
    size = ceil(len(points) / MOST)
    if size < 2:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ]


def _figure(curves: Sequence[Curve]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    figure = Figure(SIZE, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1))
    axes = figure.add_subplot()
    for curve in curves:
        dots = curve.dots or len(curve.points) == 1
        style = {"linestyle": "", "marker": "o", "markersize": 4.5} if dots else {"linewidth": 1.5}
        x, y = zip(*curve.points, strict=True)
        axes.plot(x, y, color=curve.colour, label=curve.name, clip_on=False, **style)
    axes.set_xlabel("step", loc="right", color=INK)
    axes.set_xlim(0, max((x for curve in curves for x, _ in curve.points), default=0) or 1)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color=FAINT, linewidth=0.3)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    if curves:
        legend = figure.legend(loc="outside upper left", ncols=3, frameon=False)
        for text, curve in zip(legend.get_texts(), curves, strict=True):
            text.set_color(curve.colour)
    return figure
