"""A training run: start or resume, train, evaluate, write checkpoints and the model.

    CKPT/config.json, model.safetensors, tokenizer files    the result, written when complete
    CKPT/log.jsonl, loss.svg                                the log
    CKPT/checkpoint-STEP/                                   for --resume

With several processes all of them read, and only the first writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import torch

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder, read_config, require_weights
from bertcli.errors import BertcliError, InputError, ModelError, OutputError, out_of_memory
from bertcli.files.lock import locked
from bertcli.files.typed_json import as_json
from bertcli.hub import sha256
from bertcli.models.config import BertConfig
from bertcli.models.heads import BertForPreTraining
from bertcli.models.surgery import initialise
from bertcli.plots.drawing import require_matplotlib
from bertcli.training import configuration
from bertcli.training.batches import held_out
from bertcli.training.checkpoints import (
    Checkpoints,
    State,
    put_model,
    put_moments,
    read_moments,
    read_state,
)
from bertcli.training.log import LOG, PLOT, Log, LogWindow, plot
from bertcli.training.loop import Training, moments, remember
from bertcli.training.objective import HeldOut, commonest_word
from bertcli.training.options import TrainingJob, TrainingOptions
from bertcli.training.ranks import Ranks
from bertcli.training.shards import INDEX, Instances
from bertcli.vectors.journal import refuse_changes


class Event(NamedTuple):
    """An event to show: a `step`, a line of the `log`, an `evaluation` or a `checkpoint`."""

    kind: str
    step: int
    values: Mapping[str, Any]


class TrainingRun:
    """A run that is ready to start or resume; `events` trains."""

    def __init__(self, job: TrainingJob, options: TrainingOptions, ranks: Ranks) -> None:
        self.job, self.options, self.ranks = job, options, ranks
        self.notes: list[str] = []
        self.checkpoints = Checkpoints(job.output, options.keep)
        self.checkpoints.check(resume=job.resume, overwrite=job.overwrite)
        self.data = _open(job.data, ranks)
        if any(shard["file"].endswith(".parquet") for shard in self.data.index["shards"]):
            self.notes.append(
                "random access to instances in Parquet is slow; safetensors is fast (prepare -f)"
            )
        self.plots = ranks.first and self._can_plot()
        self.rows, self.held = self._parted()
        self.config = self._config()
        self.schedule = options.schedule(len(self.rows))
        self.fingerprint = self._fingerprint()
        self.state = self._state()
        self.training = Training(self._model(), self.data, self.rows, options, ranks)
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
                began = monotonic()
                done = self._step(number)
                window.add(done, monotonic() - began)
                yield Event("step", done.step, done._asdict())
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

    def _parted(self) -> tuple[Any, HeldOut | None]:
        """Return the rows to train on, and the held-out rows."""
        if self.job.eval_dir is not None:
            other, rows = _open(self.job.eval_dir, self.ranks), np.arange(len(self.data))
            configuration.refuse_other(self.data, other)
            return rows, HeldOut(other, np.arange(len(other)), commonest_word(self.data, rows))
        rows, last = held_out(len(self.data), self.options.eval_fraction)
        if not len(last):
            return rows, None
        if (self.data.index["options"].get("dupe_factor") or 1) > 1:
            self.notes.append(
                "held-out instances share texts with the training instances (dupe_factor); "
                "use --eval-dir to evaluate on other texts"
            )
        return rows, HeldOut(self.data, last, commonest_word(self.data, rows))

    def _config(self) -> BertConfig:
        job, numbers = (
            self.job,
            configuration.WEIGHT_TO_ADAM if self.ranks.device.type == "cpu" else 1,
        )
        if job.init is None:
            config = configuration.read(job.config or "", self.data)
        else:
            config = read_config(job.init)
            configuration.check(config, self.data, str(job.init), given=False)
        configuration.refuse_too_large(config, str(job.init or job.config), numbers)
        return config

    def _fingerprint(self) -> dict[str, Any]:
        """Return what decides the results; files by their sha256."""
        init = self.job.init
        said = {
            "config": self.config.to_dict(),
            "instances_sha256": sha256(self.data.folder / INDEX),
            "init_sha256": init and _weights_sha256(init),
            "options": {
                **self.options.numbers(),
                "steps": self.schedule.steps,
                "warmup_steps": self.schedule.warmup_steps,
            },
        }
        return as_json(said)

    def _state(self) -> State:
        last = self.checkpoints.last() if self.job.resume else None
        if last is None:
            return State()
        state = read_state(last)
        refuse_changes(str(last), state.fingerprint, self.fingerprint)
        if state.step == self.schedule.steps:
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

    def _model(self) -> BertForPreTraining:
        """Build the model: fresh, from `--init`, or from the last checkpoint.

        Weights are copied, not mapped, as the address of a tensor can change the last bits.
        """
        torch.manual_seed(self.options.seed)
        model = BertForPreTraining(self.config)
        source = self.checkpoints.path(self.state.step) if self.state.step else self.job.init
        if source is None:
            initialise(model, self.config.initializer_range)
        else:
            found, _ = load(source, BertForPreTraining, dtype=torch.float32)
            model.load_state_dict(found.state_dict())
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
        output = self.job.output
        with self.checkpoints.explained("cannot be written"):
            output.mkdir(exist_ok=True)
        try:
            stack.enter_context(locked(output / ".lock", output))
        except OutputError:
            with suppress(OSError):  # it holds something
                output.rmdir()
            raise
        with self.checkpoints.explained("cannot be written"):
            self.checkpoints.sweep()
            if not self.state.step:
                self.checkpoints.clear()
            log = Log(output / LOG, self.state.log_bytes)
        stack.callback(log.close)
        return log

    # --- steps, and what comes after them ---

    def _step(self, number: int) -> Any:
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

    def _due(self, step: int, every: int | None) -> bool:
        """Return whether something is due after this step; after the last step, everything is."""
        return step == self.schedule.steps or bool(every and step % every == 0)

    def _after(self, step: int, window: LogWindow) -> Iterator[Event]:
        options = self.options
        if self._due(step, options.log_every):
            epoch = step * options.batch_size / len(self.rows)
            yield Event("log", step, window.close(epoch))
        if self.held is not None and self._due(step, options.eval_every):
            dtype = self.training.dtype
            found = self.held.evaluate(self.training.model, self.ranks, options.batch_size, dtype)
            yield Event("evaluation", step, found)

    def _save(self, step: int, log: Log | None, window: LogWindow) -> Event:
        target = self.checkpoints.path(step)
        if log is not None:
            training = self.training
            with self.checkpoints.explained(f"{LOG} cannot be written"):
                size = log.sync()
            state = State(
                step=step,
                updates=training.updates,
                log_bytes=size,
                window=window.sums,
                scaler=training.scaler.state_dict(),
                fingerprint=self.fingerprint,
                made_with=self._made_with(),
            )
            self.checkpoints.write(state, self._fill)
        return Event("checkpoint", step, {"path": str(target)})

    def _fill(self, folder: Path) -> None:
        training = self.training
        put_model(folder, training.model, self.config, self.data.folder)
        put_moments(folder, moments(training.model, training.optimizer))

    def _finish(self) -> None:
        """Write the model and the figure of the log to the output folder."""

        def fill(folder: Path) -> None:
            put_model(folder, self.training.model, self.config, self.data.folder)
            if self.plots:
                (folder / PLOT).write_bytes(plot(self.job.output / LOG))

        self.checkpoints.publish(fill)


def _open(folder: Path, ranks: Ranks) -> Instances:
    """Open prepared instances; InputError when there are none, or their files were changed."""
    data = Instances.open(folder)
    if ranks.first:
        data.verify()
    if not len(data):
        raise InputError(f"{folder}: no instances found")
    return data


def _weights_sha256(folder: Path) -> str:
    """Return one sha256 for the files of weights in a folder."""
    return " ".join(sha256(path) for path in require_weights(bert_folder(folder)).all)
