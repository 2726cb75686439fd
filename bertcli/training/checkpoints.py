"""Checkpoints of a run: written completely or not at all, the last few kept.

    CKPT/checkpoint-500/model.safetensors, config.json, tokenizer files: a model like any other
    CKPT/checkpoint-500/optimizer.safetensors   the moments of AdamW
    CKPT/checkpoint-500/training_state.json     everything else

A checkpoint is written under a hidden name, synced and renamed; one to be removed is renamed first.
So every folder with the name of a checkpoint is complete. Nothing in it is a pickle.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertcli.checkpoints.load import Model, save
from bertcli.checkpoints.scan import UTF8_ONLY
from bertcli.embedding.sentence_config import CONFIG as PROMPTS
from bertcli.errors import OutputError
from bertcli.files.atomic import FULL, move, put_files, put_folder, restore, scratch_folder
from bertcli.files.typed_json import (
    BadJsonError,
    JsonObject,
    is_regular,
    is_text,
    parse,
    read_bytes,
)
from bertcli.hub import TOKENIZER_FILES
from bertcli.models.config import BertConfig
from bertcli.training.log import LOG, PLOT
from bertcli.training.options import RunFolder

VERSION = 1  # of training_state.json
MOST_BYTES = 1 << 62
STATE, OPTIMIZER = "training_state.json", "optimizer.safetensors"
NAME = re.compile(r"checkpoint-(\d+)")
BEST = "best"  # the weights that are best so far
RESULT = (  # files of a result, of whatever method
    *("config.json", "modules.json", "model.safetensors", "manifest.json", PLOT),
    *(*TOKENIZER_FILES, PROMPTS),
)
MODULE = re.compile(r"[1-9]\d?_[A-Z]\w*")  # folders of a result, and not a year of a user
MAKING, GOING = ".making-", ".going-"
BEFORE = ".best-"  # and a step: the best weights that the last checkpoint speaks of


@dataclass(frozen=True)
class State:
    """The state of a run besides weights and moments.

    Data order and dropout follow from the seed and the step alone, so no state of a random
    generator is needed.
    """

    step: int = 0  # steps done
    updates: int = 0  # of these, those in which the optimizer moved the weights
    log_bytes: int = 0  # of the log, at this step
    window: Mapping[str, float] = field(default_factory=dict)  # sums since the log's last line
    scaler: Mapping[str, float] = field(default_factory=dict)  # of float16's gradients
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # what decides the numbers
    made_with: Mapping[str, Any] = field(default_factory=dict)  # what decides their rounding
    best: Mapping[str, Any] = field(default_factory=dict)  # the evaluation of the best weights
    waited: int = 0  # evaluations since then


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a folder."""

    folder: Path
    keep: int = 2
    resume: bool = False

    @classmethod
    def of(cls, place: RunFolder, keep: int) -> Checkpoints:
        """Return those of a run; OutputError when the folder has files not to be overwritten."""
        found = cls(place.output, keep, place.resume)
        found._check(overwrite=place.overwrite)
        return found

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, in ascending order."""
        if not self.folder.is_dir():
            return []
        named = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in named if match)

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.folder / f"checkpoint-{step}"

    def last(self) -> Path | None:
        """Return the last checkpoint, if any."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def _check(self, *, overwrite: bool) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f"{self.folder}: not a folder", "give a folder with --output")
        if not is_text(str(self.folder)):
            raise OutputError(f"{self.folder}: the path is not UTF-8: {UTF8_ONLY}")
        there = [path.name for path in self.folder.glob("[!.]*")]
        ours = self._of_a_run()
        if there and not (self.resume or overwrite):
            go_on = "--resume continues the run, " if ours else ""
            raise OutputError(
                f"{self.folder}: folder already exists",
                f"{go_on}--overwrite starts over, or give another folder",
            )
        if there and not ours and not overwrite:
            raise OutputError(
                f"{self.folder}: no run to resume in this folder",
                "give the folder of the run, or an empty one",
            )

    def _of_a_run(self) -> bool:
        return (self.folder / LOG).exists() or bool(self.steps())

    def sweep(self, best: int | None) -> None:
        """Remove what a killed run left half written or half removed.

        ``best`` is the step of the best weights when the run was saved, which come back.
        """
        restore(self.folder / f"{MAKING}{BEST}", self.best)
        before = self.folder / f"{BEFORE}{best}"
        if before.exists():
            if self.best.exists():
                self._remove(self.best)
            move(before, self.best)
        for path in self.folder.glob(".*"):
            if path.name.startswith((MAKING, GOING, ".saving-")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._drop()

    def write(self, state: State, fill: Callable[[Path], None]) -> Path:
        """Write the checkpoint of a step, whose files `fill` writes to a folder; remove old ones.

        Raises OutputError, which names the last checkpoint, when the disk is full or fails.
        """
        target = self.path(state.step)
        making = self.folder / f"{MAKING}{target.name}"
        with self.explained(f"{target.name} cannot be written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with scratch_folder(making):
                fill(making)
                said = {"version": VERSION, **asdict(state)}
                (making / STATE).write_text(json.dumps(said, indent=2) + "\n", "utf-8")
                put_folder(making, target)
            self._drop()
        return target

    @property
    def best(self) -> Path:
        """The folder of the weights that are best so far."""
        return self.folder / BEST

    def write_best(self, fill: Callable[[Path], None], last: int | None) -> None:
        """Replace the best weights by those that `fill` writes to a folder.

        Those of the step ``last``, which the last checkpoint speaks of, are kept until the next.
        """
        making, before = self.folder / f"{MAKING}{BEST}", self.folder / f"{BEFORE}{last}"
        with self.explained(f"{BEST} cannot be written"), scratch_folder(making):
            fill(making)
            if last is not None and self.best.exists() and not before.exists():
                move(self.best, before)
            put_folder(making, self.best)

    def clear(self) -> None:
        """Remove what an earlier run left, the model first, as it is no longer complete.

        A folder that no run has written to loses what would be read as a part of the new model.
        """
        for name in (*RESULT, *(["README.md"] if self._of_a_run() else [])):
            (self.folder / name).unlink(missing_ok=True)
        for step in self.steps():
            self._remove(self.path(step))
        for path in [*self.folder.iterdir()] if self._of_a_run() else ():
            if path.is_dir() and (path == self.best or MODULE.fullmatch(path.name)):
                self._remove(path)

    def publish(self, fill: Callable[[Path], None]) -> None:
        """Move what `fill` writes into the folder itself, config.json last."""
        with (
            self.explained("the model cannot be written"),
            scratch_folder(self.folder / f"{MAKING}result") as making,
        ):
            fill(making)
            for part in [path for path in making.iterdir() if path.is_dir()]:
                put_folder(part, self.folder / part.name)
            put_files(making, self.folder, last="config.json")

    def _drop(self) -> None:
        for path in self.folder.glob(f"{BEFORE}*"):
            self._remove(path)
        for step in self.steps()[: -self.keep]:
            self._remove(self.path(step))

    def _remove(self, path: Path) -> None:
        going = self.folder / f"{GOING}{path.name}"
        shutil.rmtree(going, ignore_errors=True)
        move(path, going)
        shutil.rmtree(going)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn system errors into an OutputError that names the checkpoint to resume from."""
        try:
            yield
        except (OSError, SafetensorError, OutputError) as failed:
            reason = getattr(failed, "strerror", None) or failed
            cause = str(failed.__cause__ or failed)  # safetensors gives no number
            if any(os.strerror(number) in cause for number in FULL):
                hint = "free disk space, then run the same command with --resume"
            elif isinstance(failed, FileNotFoundError) and not self.folder.parent.exists():
                hint = "create its parent folder first"
            else:
                hint = "fix it, then run the same command with --resume" if self.last() else ""
            raise OutputError(f"{self.folder}: {what}: {reason}; {self.kept()}", hint) from None

    def kept(self) -> str:
        """Describe what can be resumed from."""
        last = self.last()
        return f"the last checkpoint is {last.name}" if last else "no checkpoint was written"


def put_model(folder: Path, model: Model, config: BertConfig, tokenizer: Path) -> None:
    """Write a model with its tokenizer, for bertcli and transformers."""
    for name in TOKENIZER_FILES:
        if name != "config.json" and (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    save(model, config, folder)


def put_moments(folder: Path, kept: Mapping[str, Tensor]) -> None:
    """Write the moments of the optimizer."""
    target = folder / OPTIMIZER
    save_file({name: one.contiguous() for name, one in kept.items()}, target)
    # safetensors makes files that only their owner may read.
    target.chmod(folder.stat().st_mode & 0o666)


def read_moments(folder: Path) -> dict[str, Tensor]:
    """Read what `put_moments` wrote."""
    path = folder / OPTIMIZER
    is_regular(path, OutputError, damaged(path, "").hint, inf)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as broken:
        raise damaged(path, broken) from None


def read_state(folder: Path) -> State:
    """Read the state of a checkpoint; OutputError when it has another version."""
    path = folder / STATE
    try:
        raw = parse(read_bytes(path, OutputError) or b"")
    except BadJsonError as bad:
        raise damaged(path, bad) from None
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise damaged(path, "written by another version of bertcli")
    found = JsonObject(raw, f"{path}: cannot be read", OutputError, damaged(path, "").hint)
    step = NAME.fullmatch(folder.name)
    state = State(
        step=found.whole("step") or 0,
        updates=found.whole("updates") or 0,
        log_bytes=found.whole("log_bytes", most=MOST_BYTES) or 0,
        window=_numbers(found.object("window")),
        scaler=_numbers(found.object("scaler")),
        fingerprint=dict(found.object("fingerprint")),
        made_with=dict(found.object("made_with")),
        best=dict(found.object("best")),
        waited=found.whole("waited") or 0,
    )
    if step and int(step[1]) != state.step:
        raise found.bad("step", f"{step[1]}, as in the folder's name")
    return state


def _numbers(found: JsonObject) -> dict[str, float]:
    return {name: found.number(name) or 0 for name in found}


def damaged(path: Path, why: object) -> OutputError:
    """Return the error of a checkpoint that cannot be resumed from."""
    return OutputError(
        f"{path}: cannot be read: {why}",
        f"remove {path.parent} to resume from the checkpoint before it, or start over with "
        "--overwrite",
    )
