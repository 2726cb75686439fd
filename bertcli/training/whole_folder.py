"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from bertcli.errors import OutputError
from bertcli.files.same_file import refuse_inputs
from bertcli.files.side_files import making
from bertcli.vectors.journal import FULL, sync_folder


@contextmanager
def whole_folder(
    path: Path,
    ours: Sequence[str],
    *,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, which takes its name when all went well.

    ``ours`` are patterns of the names that may be in a folder that is overwritten: whatever else
    lies there is not ours to remove. Raises OutputError when there is such a thing, when one of
    the ``inputs`` lies there, when the folder exists and is not to be overwritten, or when the disk
    is full; then nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    refuse_inputs(inputs, [path, *(target.glob("*") if target.is_dir() else ())])
    _refuse(path, target, ours, overwrite=overwrite)
    beside = making(target)
    try:
        beside.mkdir()
        yield beside
        _sync(beside)
        _refuse(path, target, ours, overwrite=overwrite)  # once more: this may have taken hours
        _move(beside, target)
    except OSError as failed:
        hint = "make the folder above it first" if isinstance(failed, FileNotFoundError) else ""
        raise OutputError(
            f"{path}: cannot be written: {failed.strerror or failed}",
            "make room, or choose another place" if failed.errno in FULL else hint,
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _refuse(path: Path, target: Path, ours: Sequence[str], *, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise OutputError(f"{path}: exists already, and is not a folder", "give another name")
    names = sorted(os.listdir(target))
    other = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in ours)]
    if other:
        raise OutputError(
            f"{path}: holds {other[0]}, which this command does not write", "give another name"
        )
    if names and not overwrite:
        raise OutputError(f"{path}: exists already", "give --overwrite, or another name")


def _sync(folder: Path) -> None:
    """Put all files on the disk before the folder has its name."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def _move(beside: Path, target: Path) -> None:
    old = beside.with_suffix(".old")
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(beside, target)
    except OSError:
        if old.exists():
            os.replace(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(target.parent)
