"""The log of a run: JSON lines, one for some steps and one for each evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import OutputError
from bertcli.files.atomic import sync
from bertcli.files.typed_json import BadJsonError, JsonObject, kind_of, parse

if TYPE_CHECKING:
    from bertcli.training.loop import Step

MOVE = "move the log away; the run goes on with a new one"
LOG, PLOT = "log.jsonl", "loss.svg"
SUMMED = ("mlm_loss", "nsp_loss", "grad_norm")  # of the steps since the last line


class LogWindow:
    """Sums over the steps since the last line; they go into checkpoints, so as not to be lost."""

    def __init__(self, sums: Mapping[str, float]) -> None:
        self.sums = dict(sums)
        self.lr = 0.0

    def add(self, step: Step, seconds: float) -> None:
        """Count a step in."""
        said = {**step._asdict(), "seconds": seconds, "steps": 1}
        for name in (*SUMMED, "tokens", "seconds", "steps"):
            self.sums[name] = self.sums.get(name, 0) + said[name]
        self.lr = step.lr

    def close(self, epoch: float) -> dict[str, Any]:
        """Return the line of these steps, means and the last learning rate, and begin again."""
        sums, self.sums = self.sums, {}
        means = {name: sums[name] / sums["steps"] for name in SUMMED}
        norm = means.pop("grad_norm")
        return {
            "epoch": round(epoch, 4),
            "loss": means["mlm_loss"] + means["nsp_loss"],
            **means,
            "lr": self.lr,
            "grad_norm": norm,
            "tokens_per_second": round(sums["tokens"] / max(sums["seconds"], 1e-9), 1),
        }


class Log:
    """Appends lines to a file that may be cut back to where a checkpoint was made."""

    def __init__(self, path: Path, size: int = 0) -> None:
        self.file = path.open("ab")
        there = self.file.seek(0, os.SEEK_END)
        self.file.truncate(min(size, there))  # what a killed run wrote after its last checkpoint

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line, for others to read at once."""
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()

    def sync(self) -> int:
        """Put all lines on the disk and return how many bytes they are."""
        sync(self.file)
        return self.file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def read(path: Path) -> Iterator[JsonObject]:
    """Yield the lines of a log that are whole. Raises OutputError for one that is no object."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                continue
            where = f"{path}:{number}"
            try:
                found = parse(line)
            except BadJsonError as bad:
                raise OutputError(f"{where}: not a line of a log: {bad}", MOVE) from None
            if not isinstance(found, dict):
                raise OutputError(f"{where}: not a line of a log, but {kind_of(found)}", MOVE)
            yield JsonObject(found, where, OutputError, MOVE)
