"""A tensor that lies in a file, and what is checked before a file is read."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from bertcli.errors import ModelError

AGAIN = "download the file again: this copy is incomplete or damaged"
POINTER = b"version https://git-lfs"


class Stored(NamedTuple):
    """A tensor that lies in a file: `read` maps it, the rest is known before."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # torch's name for it, or the file's own when it is none of FLOATS
    read: Callable[[], Tensor]


def check(path: Path) -> None:
    """Refuse what cannot be a file of weights, before anything tries to read it."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ModelError(f"{path}: not a file")
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}", AGAIN) from error
    if not start:
        raise ModelError(f"{path}: the file is empty", AGAIN)
    if start == POINTER:
        raise ModelError(f"{path}: only git-lfs's pointer to the file", "run: git lfs pull")
