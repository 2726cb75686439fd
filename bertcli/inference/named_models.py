"""The network of a model by its name, for use from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from bertcli.checkpoints.comparison import LoadReport
from bertcli.checkpoints.load import Device, M
from bertcli.checkpoints.load import load as load_folder
from bertcli.errors import called_from_python
from bertcli.hub import DEFAULT_MODEL, MODEL_FILES, find_model


@called_from_python()
def load(
    name: str | Path = DEFAULT_MODEL,
    cls: type[M] | None = None,
    *,
    pooler: bool | None = None,
    device: Device = "cpu",
    dtype: torch.dtype | None = None,
    fresh: bool = False,
    labels: Sequence[str] = (),
    revision: str | None = None,
    offline: bool = False,
) -> tuple[M, LoadReport]:
    """Load the model of a folder, or of a name as in `find_model`, in eval mode, with a report.

    The class is the one that its config.json names first, or ``cls``. The other arguments and the
    errors are those of `bertcli.checkpoints.load.load`.
    """
    folder = Path(name)
    if isinstance(name, str):
        folder = Path(os.path.expanduser(name))
        if not folder.is_dir():
            folder = find_model(name, files=MODEL_FILES, revision=revision, offline=offline).path
    return load_folder(
        folder, cls, pooler=pooler, device=device, dtype=dtype, fresh=fresh, labels=labels
    )
