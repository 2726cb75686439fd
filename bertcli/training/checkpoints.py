"""Checkpoints of a run: written completely or not at all, the last few kept.

    CKPT/checkpoint-500/model.safetensors, config.json, tokenizer files: a model like any other
    CKPT/checkpoint-500/optimizer.safetensors   the moments of AdamW
    CKPT/checkpoint-500/best.safetensors        the best weights so far, where those are kept
    CKPT/checkpoint-500/training_state.json     everything else, and the sha256 of all files
    CKPT/.begun                                 of a run that has no checkpoint yet

A checkpoint is written under a hidden name, synced and renamed; one to be removed is renamed first.
So every folder with the name of a checkpoint is complete. Nothing in it is a pickle. What has no
such file is not of a run, and never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import UTF8_ONLY
from bertcli.embedding.sentence_config import CONFIG as PROMPTS
from bertcli.errors import OutputError
from bertcli.files.atomic import FULL, move, put_files, put_folder, scratch_folder
from bertcli.files.paths import refuse_inputs, sha256
from bertcli.files.typed_json import is_text, read_bytes
from bertcli.hub import TOKENIZER_FILES
from bertcli.vectors.run_folder import object_in, refuse_changed_file

VERSION = 3  # of training_state.json
LOG, PLOT = "log.jsonl", "loss.svg"
STATE, OPTIMIZER = "training_state.json", "optimizer.safetensors"
BEST = "best.safetensors"
NAME = re.compile(r"checkpoint-(\d+)")
RESULT = (  # files of a result, of whatever method
    *("config.json", "modules.json", "model.safetensors", "manifest.json", PLOT),
    *(*TOKENIZER_FILES, PROMPTS),
)
MODULE = re.compile(r"[1-9]\d?_[A-Z]\w*")  # folders of a result, and not a year of a user
MAKING = ".making-"  # of what is not whole: not yet, or not any more
BEGUN = ".begun"


@dataclass
class State:
    """The state of a run besides weights and moments.

    Data order and dropout follow from the seed and the step alone, so no state of a random
    generator is needed.
    """

    step: int = 0  # steps done
    log_bytes: int = 0  # of the log, at this step
    window: dict[str, float] = field(default_factory=dict)  # sums since the log's last line
    scaler: Mapping[str, float] = field(default_factory=dict)  # of float16's gradients
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # what decides the numbers
    made_with: Mapping[str, Any] = field(default_factory=dict)  # what decides their rounding
    best: Mapping[str, Any] = field(default_factory=dict)  # the evaluation of the best weights
    waited: int = 0  # evaluations since then


@dataclass(frozen=True)
class Checkpoints:
    """The folder of a run, its checkpoints, and what to do with what is there."""

    output: Path
    keep: int = 2
    resume: bool = False
    overwrite: bool = False

    def refuse_inputs(self, *named: str | Path | None) -> None:
        """Raise OutputError when a file or folder to read is in this one, which a run clears."""
        inputs: list[str | Path] = [path for path in named if path]
        inputs += [file for path in inputs if os.path.isdir(path) for file in Path(path).rglob("*")]
        refuse_inputs(inputs, [self.output, *self.output.rglob("*")])

    def refuse_others(self) -> None:
        """Raise OutputError when the folder has files not to be overwritten."""
        folder = self.output
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder}: not a folder", "give a folder with --output")
        if not is_text(str(folder)):
            raise OutputError(f"{folder}: the path is not UTF-8: {UTF8_ONLY}")
        names = [path.name for path in folder.glob("[!.]*")]
        begun = bool(self.steps()) or (folder / BEGUN).exists()
        if names and not (self.resume or self.overwrite):
            go_on = "--resume continues the run, " if begun else ""
            raise OutputError(
                f"{folder}: folder already exists",
                f"{go_on}--overwrite starts over, or give another folder",
            )
        if names and not begun and not self.overwrite:
            raise OutputError(
                f"{folder}: no run to resume in this folder",
                "give the folder of the run, or an empty one",
            )
        for name in names:
            if NAME.fullmatch(name) and not (folder / name / STATE).exists():
                raise OutputError(
                    f"{folder}: holds {name}, which is not of a run",
                    "give another folder with --output",
                )

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, in ascending order."""
        if not self.output.is_dir():
            return []
        named = (NAME.fullmatch(path.parent.name) for path in self.output.glob(f"*/{STATE}"))
        return sorted(int(match[1]) for match in named if match)

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.output / f"checkpoint-{step}"

    def last(self) -> Path | None:
        """Return the last checkpoint, if any."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def sweep(self) -> None:
        """Remove what a killed run left half written or half removed."""
        for path in self.output.glob(f"{MAKING}*"):
            shutil.rmtree(path)
        self._drop()

    def write(self, state: State, fill: Callable[[Path], None]) -> Path:
        """Write the checkpoint of a step, whose files `fill` writes to a folder; remove old ones.

        Raises OutputError, which names the last checkpoint, when the disk is full or fails.
        """
        target = self.path(state.step)
        making = self.output / f"{MAKING}{target.name}"
        with self.explained(f"{target.name} cannot be written"):
            self.output.mkdir(parents=True, exist_ok=True)
            with scratch_folder(making):
                fill(making)
                digests = {path.name: sha256(path) for path in sorted(making.iterdir())}
                record = {"version": VERSION, **asdict(state), "sha256": digests}
                text = json.dumps({**record, "digest": _digest(record)}, indent=2) + "\n"
                (making / STATE).write_text(text, "utf-8")
                put_folder(making, target)
            self._drop()
            (self.output / BEGUN).unlink(missing_ok=True)
        return target

    def clear(self) -> None:
        """Remove what an earlier run left, the model first, as it is no longer complete.

        Of other folders, only those that modules.json names: they would be read with the new model.
        """
        (self.output / BEGUN).touch()
        listed, manifest = (
            read_bytes(self.output / name, OutputError) or b""
            for name in ("modules.json", "manifest.json")
        )
        (self.output / "config.json").unlink(missing_ok=True)
        for path in [*self.output.iterdir()]:
            module = MODULE.fullmatch(path.name) and f'"{path.name}"'.encode() in listed
            if path.is_dir() and (module or NAME.fullmatch(path.name)):
                self._remove(path)
        for name in (*RESULT, *(["README.md"] if b'"bertcli"' in manifest else [])):
            (self.output / name).unlink(missing_ok=True)

    def publish(self, fill: Callable[[Path], None]) -> None:
        """Move what `fill` writes into the folder itself, config.json last."""
        with (
            self.explained("the model cannot be written"),
            scratch_folder(self.output / f"{MAKING}result") as making,
        ):
            fill(making)
            for part in [path for path in making.iterdir() if path.is_dir()]:
                put_folder(part, self.output / part.name)
            put_files(making, self.output, last="config.json")

    def _drop(self) -> None:
        for step in self.steps()[: -self.keep]:
            self._remove(self.path(step))

    def _remove(self, path: Path) -> None:
        going = self.output / f"{MAKING}{path.name}"
        move(path, going)
        shutil.rmtree(going)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn system errors into an OutputError that names the checkpoint to resume from."""
        try:
            yield
        except OSError as failed:
            hint = "fix it, then run the same command with --resume" if self.last() else ""
            if failed.errno in FULL:
                hint = "free disk space, then run the same command with --resume"
            elif isinstance(failed, FileNotFoundError) and not self.output.parent.exists():
                hint = "create its parent folder first"
            reason = failed.strerror or failed
            raise OutputError(f"{self.output}: {what}: {reason}; {self.kept()}", hint) from None

    def kept(self) -> str:
        """Describe what can be resumed from."""
        last = self.last()
        return f"the last checkpoint is {last.name}" if last else "no checkpoint was written"


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def read_state(folder: Path) -> State:
    """Read the state of a checkpoint.

    Raises OutputError for another version, and where a file is not as it was written.
    """
    path = folder / STATE
    hint = (
        f"remove {folder} to resume from the checkpoint before it, or start over with --overwrite"
    )
    record = object_in(read_bytes(path, OutputError, hint))
    if record.get("version") != VERSION:
        raise OutputError(f"{path}: not a checkpoint of this version of bertcli", hint)
    signed = record.pop("digest", None) == _digest(record)
    if not signed or folder.name != f"checkpoint-{record['step']}":
        raise OutputError(f"{path}: was changed after it was written", hint)
    for name, expected in record.pop("sha256").items():
        refuse_changed_file(folder / name, expected, hint=hint)
    del record["version"]
    return State(**record)
