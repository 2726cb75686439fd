"""A training run: start or resume, train, evaluate, write checkpoints, the log and the model.

    OUT/config.json, model.safetensors, tokenizer files    the result, written at the end
    OUT/log.jsonl, loss.svg                                the log and a figure of its losses
    OUT/checkpoint-500/                                    for --resume:
        model.safetensors, config.json, tokenizer files    a model folder like any other
        optimizer.safetensors                              the moments of AdamW
        best.safetensors                                   the best weights so far, if kept
        training_state.json                                all other state, sha256 of all files

The task defines what is trained and which files the result has. With several processes, all of them
read, and only the first writes.

A checkpoint is written under a hidden name, synced and renamed; to remove one, it is renamed first.
So every folder with the name of a checkpoint is complete. It contains no pickles. A folder without
training_state.json is not a checkpoint and is never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import IO, Any, NamedTuple, Protocol

import torch

from bertcli.embedding.options import SENTENCE_CONFIG as PROMPTS_FILE
from bertcli.engines.torch_engine import dtype_of, slow_dtype_warning, use_threads
from bertcli.errors import (
    BertcliError,
    ModelError,
    OutputError,
    option,
    out_of_memory,
)
from bertcli.inspection.attention import encode_figure, figure_settings, require_matplotlib
from bertcli.io.lock import locked
from bertcli.io.output_files import object_or_empty
from bertcli.io.paths import refuse_inputs, sha256, unfinished_path
from bertcli.io.progress import Display, PrintedDisplay
from bertcli.io.publish import converting_os_errors, move, put_folder, replacing_files, work_folder
from bertcli.io.system_calls import sync, sync_folder
from bertcli.io.typed_json import (
    as_json,
    is_text,
    read_bytes,
    strict,
    write_json,
)
from bertcli.model_folder.files import TOKENIZER_FILES, UTF8_ONLY
from bertcli.model_folder.load import load_tensors, save_tensors
from bertcli.runs.identity import refuse_changed_file, refuse_changes
from bertcli.training.loop import (
    Ranks,
    TrainedTask,
    Training,
    joined_processes,
    moments,
    restore_moments,
)
from bertcli.training.options import TrainingDevice

# --- checkpoints ---

VERSION = 5  # version of training_state.json
LOG_FILE = "log.jsonl"
PLOT_FILE = "loss.svg"
LOCK_FILE = ".lock"  # in the output folder, held during a run
STATE_FILE = "training_state.json"
OPTIMIZER_FILE = "optimizer.safetensors"
BEST_FILE = "best.safetensors"
CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
RESULT_FILES = (  # files of a result, of any training method
    "config.json",
    "modules.json",
    "model.safetensors",
    "manifest.json",
    PLOT_FILE,
    PROMPTS_FILE,
    *TOKENIZER_FILES,
)
MODULE_FOLDER = re.compile(r"\d+_(Pooling|Normalize|LayerNorm|Dense)")  # module folders of a result
MODULE_FILES = ("config.json", "model.safetensors")  # files in a module folder


@dataclass
class State:
    """The state of a run besides weights and optimizer moments.

    Data order and dropout depend only on the seed and the step, so no random generator state is
    stored.
    """

    step: int = 0  # completed steps
    log_bytes: int = 0  # size of the log at this step
    window: Counter[str] = field(default_factory=Counter)  # sums since the log's last line
    scaler: Mapping[str, float] = field(default_factory=dict)  # gradient scaler, for float16
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # what determines the results
    best: Mapping[str, Any] = field(default_factory=dict)  # the evaluation of the best weights
    waited: int = 0  # evaluations since the best one


@dataclass(frozen=True)
class Checkpoints:
    """The output folder of a run, its checkpoints, and how to handle existing files."""

    output: Path
    keep: int = 2
    resume: bool = False
    overwrite: bool = False

    def refuse_inputs(self, *inputs: str | Path | None) -> None:
        """Raise OutputError if an input is in the output folder, which a run clears."""
        refuse_inputs(filter(None, inputs), [self.output, *self.output.rglob("*")])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder during the block. It is created if needed, and not left empty.

        Raises OutputError if another process writes it.
        """
        folder = self.output
        existed = folder.exists()
        try:
            with ExitStack() as stack:
                with converting_os_errors(folder):
                    folder.mkdir(exist_ok=True)
                    stack.enter_context(locked(folder / LOCK_FILE, folder, keep_folder=True))
                yield
        finally:
            if not existed:
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def refuse_other_files(self) -> None:
        """Raise OutputError if the folder has files that must not be overwritten."""
        folder = self.output
        if not is_text(str(folder)):
            raise OutputError(f"{folder}: the path is not UTF-8: {UTF8_ONLY}")
        names = sorted(path.name for path in folder.glob("[!.]*"))
        has_checkpoints = bool(self.steps())
        can_resume = self.resume and (has_checkpoints or names == [LOG_FILE])
        if names and not (self.overwrite or can_resume):
            problem = "no run to resume in this folder" if self.resume else "folder already exists"
            raise OutputError(
                f"{folder}: {problem}",
                f"{option('resume')} continues a run, {option('overwrite')} starts over; or "
                "give another folder",
            )
        if names and not (has_checkpoints or LOG_FILE in names):
            raise OutputError(
                f"{folder}: holds {names[0]}, which is not of a run",
                f"give another folder: {option('overwrite')} replaces only a run",
            )
        for name in names:
            if CHECKPOINT_NAME.fullmatch(name) and not (folder / name / STATE_FILE).exists():
                raise OutputError(
                    f"{folder}: holds {name}, which is not of a run",
                    f"give another folder with {option('output')}",
                )

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, ascending."""
        state_files = self.output.glob(f"*/{STATE_FILE}")
        matches = [CHECKPOINT_NAME.fullmatch(path.parent.name) for path in state_files]
        return sorted(int(match[1]) for match in matches if match)

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.output / f"checkpoint-{step}"

    def last(self) -> Path | None:
        """Return the last checkpoint, or None."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def remove_old(self) -> None:
        """Remove all but the last ``keep`` checkpoints."""
        for step in self.steps()[: -self.keep]:
            self._remove(self.path(step))

    def clear(self) -> None:
        """Remove the files of an earlier run, config.json first: the model is incomplete then."""
        (self.output / "config.json").unlink(missing_ok=True)
        for path in list(self.output.iterdir()):
            if CHECKPOINT_NAME.fullmatch(path.name):
                self._remove(path)
            elif MODULE_FOLDER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                for name in MODULE_FILES:
                    (path / name).unlink(missing_ok=True)
                with suppress(OSError):  # a folder with other files stays
                    path.rmdir()
            elif path.name in RESULT_FILES:
                path.unlink()

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint. It is renamed first, so that no incomplete one is left."""
        with work_folder(path) as hidden_folder:
            move(path, hidden_folder / path.name)

    def last_checkpoint_note(self) -> str:
        """Return a message on the last checkpoint."""
        last = self.last()
        return f"the last checkpoint is {last.name}" if last else "no checkpoint was written"

    def resume_note(self) -> str:
        """Return a message on the last checkpoint and how to resume from it."""
        resume = option("resume")
        overwrite = option("overwrite")
        if self.last():
            advice = f"continue with {resume}"
            if self.overwrite:  # the same command, which cannot have both options
                advice += f" instead of {overwrite}"
        else:
            advice = f"{overwrite if self.overwrite else resume} starts over"
        return f"{self.last_checkpoint_note()}; {advice}"


def _digest(record: Mapping[str, Any]) -> str:
    """Return the sha256 of a JSON object."""
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def read_state(folder: Path) -> State:
    """Read the state of a checkpoint.

    Raises OutputError for another version, and if a file differs from what was written.
    """
    path = folder / STATE_FILE
    hint = (
        f"remove {folder} to resume from the checkpoint before it, or start over with "
        f"{option('overwrite')}"
    )
    record = object_or_empty(read_bytes(path, OutputError, hint))
    is_valid = record.pop("digest", None) == _digest(record) and record["version"] == VERSION
    if not is_valid or folder.name != f"checkpoint-{record['step']}":
        raise OutputError(f"{path}: was changed, or written by another version of bertcli", hint)
    for name, expected in record.pop("sha256").items():
        refuse_changed_file(folder / name, expected, hint=hint)
    del record["version"]
    return State(**{**record, "window": Counter(record["window"])})


# --- the run ---


class TrainingDisplay(Display, Protocol):
    """A display that also shows training runs."""

    quiet: bool

    def follow_training(self, run: TrainingRun) -> None:
        """Train to the end and show the events."""


class PrintedTraining(PrintedDisplay):
    """The display of a training run started from Python code."""

    def follow_training(self, run: TrainingRun) -> None:
        """Train to the end; print the first evaluation after each tenth of the run."""
        steps = run.options.steps or 0
        tenths = run.state.step * 10 // steps if steps else 0

        def show(event: Event) -> None:
            nonlocal tenths
            if event.name == "evaluation" and event.step * 10 // steps > tenths:
                tenths = event.step * 10 // steps
                self.note(f"step {event.step:,}/{steps:,}  {evaluation_line(event.values)}")

        run.execute(show)


def evaluation_line(values: Mapping[str, Any]) -> str:
    """Return a line with the results of an evaluation on held-out instances or examples."""
    metrics = [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in values.items()
        if isinstance(value, float) and name != "eval_loss"
    ]
    return f"held out: loss {values['eval_loss']:.4f}  {'  '.join(metrics)}"


def train_task(
    open_task: Callable[[Ranks], TrainedTask],
    checkpoints: Checkpoints,
    device: TrainingDevice,
    display: TrainingDisplay,
) -> None:
    """Open a task on every process that torchrun started, and train it in the locked folder."""
    use_threads(device.threads)
    with joined_processes(device.device) as ranks:
        display.quiet = display.quiet or not ranks.is_first
        display.warn(slow_dtype_warning(dtype_of(device.dtype), ranks.device))
        with checkpoints.locked() if ranks.is_first else nullcontext():
            checkpoints.refuse_other_files()
            run = TrainingRun(open_task(ranks), checkpoints, ranks)
            for note in run.notes:
                display.note(note)
            try:
                display.follow_training(run)
            except KeyboardInterrupt:
                display.note(f"interrupted; {checkpoints.resume_note()}")
                raise


class Event(NamedTuple):
    """An event to show: a `step`, a line of the `log`, an `evaluation` or a `checkpoint`."""

    name: str
    step: int
    values: Mapping[str, Any]


class TrainingRun:
    """A training run that is ready to start or resume."""

    def __init__(self, task: TrainedTask, checkpoints: Checkpoints, ranks: Ranks) -> None:
        self.task = task
        self.checkpoints = checkpoints
        self.ranks = ranks
        self.options = task.options
        self.notes = list(task.notes)
        # Fails now, not after training, if the identity is nested too deeply to be written.
        identity = strict({**task.identity, "options": self.options.fixed_options()})
        self.state = State(fingerprint=as_json(identity))
        last = checkpoints.last() if checkpoints.resume else None
        if last:
            state = read_state(last)
            refuse_changes(str(last), state.fingerprint, self.state.fingerprint)
            self.state = state
            if self._is_last(self.state.step):
                self.notes.append(f"the run is complete: {last.name} is its last step")
        torch.manual_seed(self.options.seed)
        model = task.build(last).to(ranks.device)
        self.training = Training(model, task.objective, task.rows, self.options, ranks)
        self.best_weights: Mapping[str, torch.Tensor] = {}
        if last:
            restore_moments(self.training.optimizer, load_tensors(last / OPTIMIZER_FILE))
            self.training.scaler.load_state_dict(dict(self.state.scaler))
            if self.state.best:
                self.best_weights = load_tensors(last / BEST_FILE)

    def execute(self, show: Callable[[Event], None]) -> None:
        """Train, show the events, and write the result.

        Raises ModelError, with the last good checkpoint, if the loss is not finite or memory runs
        out; OutputError if files cannot be written.
        """
        options = self.options
        output = self.checkpoints.output
        self.ranks.wait()  # all processes check the folder before anything is written
        with converting_os_errors(output), ExitStack() as stack:
            log: IO[bytes] | None = None
            if self.ranks.is_first:
                sync_folder(output.parent)
                for path in output.glob(
                    unfinished_path(Path("*"), "*").name
                ):  # left by a killed run
                    shutil.rmtree(path)
                self.checkpoints.remove_old()
                if not self.state.step:
                    self.checkpoints.clear()
                log = stack.enter_context((output / LOG_FILE).open("ab"))
                log.truncate(min(self.state.log_bytes, log.seek(0, os.SEEK_END)))
            for number in range(self.state.step, options.steps or 0):
                if self._is_last(number):
                    break
                start = monotonic()
                values = self._step(number)
                step = number + 1
                self.state.window.update({**values, "seconds": monotonic() - start, "steps": 1})
                show(Event("step", step, values))
                for event in self._log_and_evaluate(step, values["lr"]):
                    if log is not None:
                        line = {"step": event.step, **event.values}
                        log.write(json.dumps(strict(line)).encode() + b"\n")
                        log.flush()
                    show(event)
                if self._is_due(step, options.save_every):
                    if log is not None:
                        self._save(step, log)
                    show(Event("checkpoint", step, {"path": str(self.checkpoints.path(step))}))
            if log is not None:
                self._finish()

    def _step(self, number: int) -> dict[str, float]:
        """Run a step. Raises ModelError if the loss is not finite or memory runs out."""
        try:
            return self.training.step(number)
        except FloatingPointError as error:
            raise ModelError(
                f"step {number + 1}: {error}; {self.checkpoints.last_checkpoint_note()}",
                f"try a lower {option('learning_rate')} or a longer {option('warmup_steps')}",
            ) from None
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise ModelError(
                f"step {number + 1}: out of memory on {self.ranks.device}: "
                f"{str(error).split('. ')[0]}; {self.checkpoints.last_checkpoint_note()}",
                f"use {option('gradient_accumulation_steps', 2)} or "
                f"{option('gradient_checkpointing')}",
            ) from None

    def _is_last(self, step: int) -> bool:
        """Return True if this step is the last one, or the ``patience`` is exhausted."""
        return step == self.options.steps or self.state.waited >= (self.options.patience or inf)

    def _is_due(self, step: int, every: int | None) -> bool:
        """Return True if an action is due after this step, as every action is after the last."""
        return self._is_last(step) or bool(every and step % every == 0)

    def _log_and_evaluate(self, step: int, learning_rate: float) -> Iterator[Event]:
        """Evaluate, and write a line of the log, if due after a step; yield the events.

        Evaluation comes first, as it may end the run.
        """
        options = self.options
        objective = self.task.objective
        training = self.training
        metrics: Mapping[str, Any] = {}
        if len(objective.held_out) and self._is_due(step, options.eval_every):
            metrics = objective.evaluate(training.model, options.batch_size, training.dtype)
            self._keep_if_best(step, metrics)
        if self._is_due(step, options.log_every):
            sums = self.state.window
            self.state.window = Counter()
            means = {name: sums[name] / sums["steps"] for name in objective.losses}
            line = {
                "epoch": round(step * options.batch_size / len(self.task.rows), 4),
                "loss": sum(means.values()),
                **means,
                "lr": learning_rate,
                "grad_norm": sums["grad_norm"] / sums["steps"],
                "tokens_per_second": round(sums["tokens"] / max(sums["seconds"], 1e-9), 1),
            }
            yield Event("log", step, line)
        if metrics:
            yield Event("evaluation", step, metrics)

    def _keep_if_best(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keep the weights if they are the best so far."""
        best = self.state.best
        if not self.task.keeps_best:
            return
        if best and not metrics["eval_loss"] < best["eval_loss"]:
            self.state.waited += 1
            return
        self.state.best = {"step": step, **metrics}
        self.state.waited = 0
        if self.ranks.is_first:
            weights = self.training.model.state_dict()
            self.best_weights = {name: weights[name].to("cpu", copy=True) for name in weights}

    def _save(self, step: int, log: IO[bytes]) -> None:
        """Write a checkpoint and remove old ones."""
        training = self.training
        state = self.state
        sync(log)
        state.step = step
        state.log_bytes = log.seek(0, os.SEEK_END)
        state.scaler = training.scaler.state_dict()
        target = self.checkpoints.path(step)
        with work_folder(target) as folder:
            self.task.write_checkpoint(folder, training.model)
            save_tensors(folder / OPTIMIZER_FILE, moments(training.optimizer))
            if state.best:
                save_tensors(folder / BEST_FILE, self.best_weights)
            digests = {path.name: sha256(path) for path in sorted(folder.iterdir())}
            record = {"version": VERSION, **vars(state), "sha256": digests}
            write_json(folder / STATE_FILE, {**record, "digest": _digest(record)})
            put_folder(folder, target)
        self.checkpoints.remove_old()

    def _finish(self) -> None:
        """Write the model and the figure of the log to the output folder."""
        model = self.training.model
        if self.state.best:
            model.load_state_dict(self.best_weights)
        with replacing_files(self.checkpoints.output, last="config.json") as folder:
            self.task.publish(folder, model)
            if self.task.manifest:
                manifest = strict({**self.task.manifest, "metrics": self.state.best})
                write_json(folder / "manifest.json", manifest)
            with suppress(BertcliError):  # no figure without matplotlib
                require_matplotlib(f"drawing {PLOT_FILE}")
                (folder / PLOT_FILE).write_bytes(plot_losses(self.checkpoints.output / LOG_FILE))


# --- the figure of the log ---

CURVES = {"loss": "loss", "mlm_loss": "masked words", "eval_loss": "held out"}


def plot_losses(log: Path) -> bytes:
    """Return an SVG figure of the losses in a log over its steps; invalid lines are skipped."""
    lines = [object_or_empty(line) for line in log.read_bytes().splitlines()]
    with figure_settings():
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        axes = figure.add_subplot(xlabel="step")
        for key, label in CURVES.items():
            points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", label=label)
                axes.legend()  # once per curve: without any curve, it would warn
        return encode_figure(figure, "svg", "Loss by step")
