"""A training run: start or resume, train, evaluate, write checkpoints and the model.

    OUT/config.json, model.safetensors, tokenizer files    the result, written when complete
    OUT/log.jsonl, loss.svg                                the log
    OUT/checkpoint-STEP/                                   for --resume

What is trained, and what its files are, is the task's. With several processes all of them read,
and only the first writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import nn

from bertcli.errors import BertcliError, ModelError, OutputError, out_of_memory
from bertcli.files.lock import locked
from bertcli.files.system_calls import sync_folder
from bertcli.files.typed_json import as_json
from bertcli.plots.drawing import require_matplotlib
from bertcli.training.checkpoints import Checkpoints, State, put_moments, read_moments, read_state
from bertcli.training.log import LOG, PLOT, Log, LogWindow, plot
from bertcli.training.loop import StepResult, Training, moments, remember
from bertcli.training.objective import TrainedTask, evaluating
from bertcli.training.ranks import Ranks
from bertcli.training.result import RunSummary
from bertcli.vectors.journal import refuse_changes


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
        self.plots = ranks.first and self._can_plot()
        self.schedule = options.schedule(len(task.rows))
        self.fingerprint = self._fingerprint()
        self.state = self._state()
        self.best, self.waited = dict(self.state.best), self.state.waited
        self.training = Training(self._model(), task.objective, task.rows, options, ranks)
        self._remember()

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
                done = self._step(number)
                window.add(done, monotonic() - began)
                yield Event("step", done.step, done.values)
                for event in self._after(done.step, window):
                    if log is not None and event.kind != "checkpoint":
                        with self.checkpoints.explained(f"{LOG} cannot be written"):
                            log.write({"step": event.step, **event.values})
                    yield event
                if self._due(done.step, self.options.save_every):
                    yield self._save(done.step, log, window)
            if log is not None:
                self._finish()

    # --- before the first step ---

    def _can_plot(self) -> bool:
        """Return whether the loss curve can be drawn; it is optional."""
        try:
            require_matplotlib(f"drawing {PLOT}")
        except BertcliError as error:
            self.notes.append(f"{error}: {error.hint}; only {LOG} is written")
            return False
        return True

    def _fingerprint(self) -> dict[str, Any]:
        """Return what decides the results."""
        said = {
            **self.task.identity,
            "options": {
                **self.options.numbers(),
                "steps": self.schedule.steps,
                "warmup_steps": self.schedule.warmup_steps,
            },
        }
        return as_json(said)

    def _state(self) -> State:
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

    def _model(self) -> nn.Module:
        torch.manual_seed(self.options.seed)
        step = self.state.step
        model = self.task.model(self.checkpoints.path(step) if step else None)
        return model.to(self.ranks.device)

    def _remember(self) -> None:
        if self.state.step:
            kept = read_moments(self.checkpoints.path(self.state.step))
            training = self.training
            remember(training.model, training.optimizer, kept, self.state.updates)
            if self.state.scaler:
                training.scaler.load_state_dict(dict(self.state.scaler))

    def _take(self, stack: ExitStack) -> Log:
        """Lock the folder, and truncate the log to its size at the checkpoint."""
        output = self.checkpoints.folder
        with self.checkpoints.explained("cannot be written"):
            output.mkdir(exist_ok=True)
            sync_folder(output.parent)
        try:
            stack.enter_context(locked(output / ".lock", output))
        except OutputError:
            with suppress(OSError):  # it holds something
                output.rmdir()
            raise
        with self.checkpoints.explained("cannot be written"):
            self.checkpoints.sweep(self.state.best.get("step"))
            if not self.state.step:
                self.checkpoints.clear()
            self.task.keep(output)
            log = Log(output / LOG, self.state.log_bytes)
        stack.callback(log.close)
        return log

    # --- steps, and what comes after them ---

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
        options, objective, ranks = self.options, self.task.objective, self.ranks
        found = {}
        if len(objective.held) and self._due(step, options.eval_every):
            model = self.training.model
            with evaluating(model, ranks.device, self.training.dtype):
                found = objective.evaluate(model, ranks, options.batch_size)
            self._select(step, found)
        if self._due(step, options.log_every):
            epoch = step * options.batch_size / len(self.task.rows)
            yield Event("log", step, window.close(epoch, objective.losses))
        if found:
            yield Event("evaluation", step, found)

    def _select(self, step: int, found: Mapping[str, Any]) -> None:
        """Keep the weights if they are the best so far."""
        if not self.task.keeps_best:
            return
        if self.best and not found["eval_loss"] < self.best["eval_loss"]:
            self.waited += 1
            return
        self.best, self.waited = {"step": step, **found}, 0
        if self.ranks.first:
            put, model = self.task.put, self.training.model
            self.checkpoints.write_best(lambda to: put(to, model), self.state.best.get("step"))

    def _save(self, step: int, log: Log | None, window: LogWindow) -> Event:
        target = self.checkpoints.path(step)
        if log is not None:
            training = self.training
            with self.checkpoints.explained(f"{LOG} cannot be written"):
                size = log.sync()
            self.state = State(
                step=step,
                updates=training.updates,
                log_bytes=size,
                window=window.sums,
                scaler=training.scaler.state_dict(),
                fingerprint=self.fingerprint,
                made_with=self._made_with(),
                best=self.best,
                waited=self.waited,
            )
            self.checkpoints.write(self.state, self._fill)
        return Event("checkpoint", step, {"path": str(target)})

    def _fill(self, folder: Path) -> None:
        training = self.training
        self.task.put(folder, training.model)
        put_moments(folder, moments(training.model, training.optimizer))

    def _finish(self) -> None:
        """Write the model and the figure of the log to the output folder."""
        model, steps = self.training.model, self.schedule.steps
        if self.best:
            model = self.task.model(self.checkpoints.best)
        summary = RunSummary(steps, self.best)

        def fill(folder: Path) -> None:
            self.task.publish(folder, model, summary)
            if self.plots:
                (folder / PLOT).write_bytes(plot(self.checkpoints.folder / LOG))

        self.checkpoints.publish(fill)
