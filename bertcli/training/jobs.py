"""What is trained on what, and where it goes. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingJob:
    """The folders of a run, and what becomes of one that was there before."""

    data: Path
    output: Path
    config: str | None = None  # a file, or a name of configuration.SIZES
    init: Path | None = None  # a folder of weights to begin with, in place of a config
    eval_dir: Path | None = None  # in place of the options' eval_fraction
    resume: bool = False
    overwrite: bool = False
