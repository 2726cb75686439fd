"""Files and folders that appear whole or not at all, and are on the disk when they do.

    with whole_file(Path("out.json")) as file: ...          # replaces out.json when all went well
    with whole_folder(Path("data"), ["*.json"]) as folder: ...

Both are made in a folder with a hidden name beside their own, ``.out.json.bertcli.tmp``, which is
held meanwhile: what nobody holds was left by a process that was killed, and the next one removes
it. Nothing else renames over a file, or syncs one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from bertcli.errors import OutputError
from bertcli.files.paths import making, refuse_inputs
from bertcli.files.system_calls import (
    MOVES_OPEN_FILES,
    hold,
    is_at,
    open_folder,
    opener,
    sync,
    sync_folder,
)

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
OTHER_FOLDER = "free disk space there, or set TMPDIR to another folder"
OLD = ".old"  # end of the hidden name of a folder that is replaced: as long as ".tmp"


@contextmanager
def whole_file(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the one at ``path`` when all went well.

    ``mode``, if given, says who may read and write it, also while it is made.
    """
    # A computer that sees no locks of others may take the folder: not the name in it.
    with (
        own_folder(path) as folder,
        replacing(path, folder / os.urandom(8).hex(), mode) as file,
    ):
        yield file


@contextmanager
def replacing(path: Path, place: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Do the same as `whole_file`, under a name until then that no other process writes."""
    place.unlink(missing_ok=True)
    try:
        with open(place, "xb", opener=opener(mode)) as file:
            yield file
            sync(file)
        move(place, path, mode)
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder with a hidden name beside a path, for what is to be there.

    It is removed when it has not been moved, and so is what a killed process left under that name.
    Where a living one holds it, or nobody can tell, the name is one of this process alone.
    """
    place = making(path)
    try:
        held = _claimed(place)
    except OSError:  # a living process has it, or was quicker, or nobody can tell
        place = making(path, os.urandom(4).hex())
        held = _claimed(place)
    try:
        yield place
    finally:
        if is_at(place, held):
            shutil.rmtree(place, ignore_errors=True)
        os.close(held)


def _claimed(place: Path) -> int:
    """Create a folder and hold it, in place of what nobody holds.

    Raises OSError where another process holds it, or was quicker.
    """
    with suppress(FileNotFoundError):
        left = open_folder(place)
        try:
            if not (hold(left) and is_at(place, left)):
                raise FileExistsError(place)
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        finally:
            os.close(left)
    try:
        place.mkdir()
        held = open_folder(place)
        hold(held)
    except KeyboardInterrupt:
        with suppress(OSError):
            place.rmdir()
        raise
    if not is_at(place, held):  # another took it for left before it was held
        os.close(held)
        raise FileExistsError(place)
    return held


def move(source: Path, target: Path, mode: int | None = None) -> None:
    """Give what is whole its name; ``mode``, if given, says who may read and write it."""
    if mode is not None:
        os.chmod(source, mode)
    os.replace(source, target)


def unwritable(
    name: str | Path, failed: OSError, if_full: str = "free disk space, or choose another place"
) -> OutputError:
    """Return the error for an output that the system refuses to write."""
    hint = if_full if failed.errno in FULL else ""
    if isinstance(failed, FileNotFoundError):
        hint = "create the folder first"
    return OutputError(f"{name}: cannot be written: {failed.strerror or failed}", hint)


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turn what the system refuses into an OutputError about this output of a resumable run."""
    try:
        yield
    except OSError as failed:
        resume = "free disk space, then run the command again; a file of -o goes on with --resume"
        raise unwritable(path, failed, resume) from None


@contextmanager
def filling(folder: Path, last: str) -> Iterator[Path]:
    """Yield an empty folder, and move what is whole there to ``folder``, ``last`` as the last.

    Without that file the others are none.
    """
    with own_folder(folder / "saving") as scratch:
        yield scratch
        sync_files(scratch)
        (folder / last).unlink(missing_ok=True)
        for path in [*scratch.iterdir()]:
            if path.is_dir():
                put_folder(path, folder / path.name)
            elif path.name != last:
                move(path, folder / path.name)
        sync_folder(folder)
        move(scratch / last, folder / last)
        sync_folder(folder)


@contextmanager
def saving(folder: Path, last: str) -> Iterator[Path]:
    """Do the same as `filling`. Raises OutputError when the files cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filling(folder, last) as scratch:
            yield scratch
    except OSError as failed:
        raise unwritable(folder, failed) from failed


def put_folder(source: Path, target: Path) -> None:
    """Give a folder that is whole its name, in place of one that has it."""
    sync_files(source)
    try:
        if target.exists():
            move(target, source.with_suffix(OLD))
        move(source, target)
    finally:
        restore(source, target)
    sync_folder(target.parent)


def restore(source: Path, target: Path) -> None:
    """Undo what `put_folder` was killed in, or end it: what it moved away comes back, or goes."""
    old = source.with_suffix(OLD)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        move(old, target)


def sync_files(folder: Path) -> None:
    """Put the files of a folder, and their names, on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
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
    try:
        with own_folder(target) as folder:
            restore(folder, target)
            _refuse(path, target, ours, overwrite=overwrite)
            yield folder
            _refuse(path, target, ours, overwrite=overwrite)  # again: this may have taken hours
            put_folder(folder, target)
    except OSError as failed:
        raise unwritable(path, failed) from None


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


# --- one writer at a time ---


@contextmanager
def locked(path: Path, output: Path) -> Iterator[None]:
    """Hold the lock file at ``path`` while the block runs, and remove it afterwards.

    Raises OutputError, about ``output``, when a living process holds it. The file that a dead one
    left is no obstacle.
    """
    with explained(output):
        lock = path.open("a")
    with lock:
        if hold(lock.fileno()) is False or not is_at(path, lock.fileno()):
            raise OutputError(
                f"{output}: another bertcli is writing it",
                "wait for it to end, or choose another name",
            )
        try:
            yield
        finally:
            if MOVES_OPEN_FILES:
                path.unlink(missing_ok=True)  # before it is given back, or it may be another's
    if not MOVES_OPEN_FILES:
        with suppress(OSError):
            path.unlink()
