"""Files and folders that appear whole or not at all, and are on the disk when they do.

    with whole_file(Path("out.json")) as file: ...          # replaces out.json when all went well
    with whole_folder(Path("data"), ["*.json"]) as folder: ...

Both are made under a hidden name beside their own. Nothing else renames over a file, or syncs one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from bertcli.errors import OutputError
from bertcli.files.same_file import refuse_inputs
from bertcli.files.side_files import making
from bertcli.files.system_calls import opener, sync, sync_folder

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextmanager
def whole_file(
    path: Path, mode: int | None = None, beside: Path | None = None
) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the one at ``path`` when all went well.

    ``mode``, if given, says who may read and write it, also while it is made. ``beside`` is its
    name until then: a hidden one of this process alone, or one that the next run knows.
    """
    place = beside or making(path)
    try:
        with open(place, "wb" if beside else "xb", opener=opener(mode)) as file:
            yield file
            sync(file)
        move(place, path, mode)
        sync_folder(path.parent)
    finally:
        place.unlink(missing_ok=True)


def move(made: Path, target: Path, mode: int | None = None) -> None:
    """Give what is whole its name; ``mode``, if given, says who may read and write it."""
    if mode is not None:
        os.chmod(made, mode)
    os.replace(made, target)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system refuses into an OutputError about this output of a resumable run."""
    try:
        yield
    except OSError as failed:
        full = failed.errno in FULL
        raise OutputError(
            f"{path}: cannot be written: {failed.strerror or failed}",
            "free disk space, then run the same command with --resume" if full else "",
        ) from None


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder, which is removed when it has not been moved."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def put_files(made: Path, folder: Path, last: str) -> None:
    """Move files that are whole into a folder, ``last`` as the last: without it they are none."""
    sync_files(made)
    (folder / last).unlink(missing_ok=True)
    for path in sorted(made.iterdir(), key=lambda one: one.name == last):
        move(path, folder / path.name)
    sync_folder(folder)


def put_folder(made: Path, target: Path) -> None:
    """Give a folder that is whole its name, in place of one that has it."""
    sync_files(made)
    old = made.with_suffix(".old")
    if target.exists():
        move(target, old)
    try:
        move(made, target)
    except OSError:
        if old.exists():
            move(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(target.parent)


def sync_files(folder: Path) -> None:
    """Put the files of a folder, and their names, on the disk."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            sync(file)
    sync_folder(folder)


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
    try:
        with scratch_folder(making(target)) as made:
            yield made
            _refuse(path, target, ours, overwrite=overwrite)  # again: this may have taken hours
            put_folder(made, target)
    except OSError as failed:
        hint = "create the folder above it first" if isinstance(failed, FileNotFoundError) else ""
        raise OutputError(
            f"{path}: cannot be written: {failed.strerror or failed}",
            "free disk space, or choose another place" if failed.errno in FULL else hint,
        ) from None


def _refuse(path: Path, target: Path, ours: Sequence[str], *, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise OutputError(f"{path}: already exists, and is not a folder", "give another name")
    names = sorted(os.listdir(target))
    other = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in ours)]
    if other:
        raise OutputError(
            f"{path}: holds {other[0]}, which this command does not write", "give another name"
        )
    if names and not overwrite:
        raise OutputError(f"{path}: already exists", "give --overwrite, or another name")
