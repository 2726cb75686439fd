"""Files and folders that appear whole or not at all, and are on the disk when they do.

    with whole_file(Path("out.json")) as file: ...          # replaces out.json when all went well
    with whole_folder(Path("data"), ["*.json"]) as folder: ...

Both are made under a hidden name beside their own, ``.out.json.bertcli.tmp``, and held meanwhile:
what nobody holds was left by a process that was killed, and the next one removes it. Nothing else
renames over a file, or syncs one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TypeVar

from bertcli.errors import OutputError
from bertcli.files.paths import making, making_alone, refuse_inputs
from bertcli.files.system_calls import (
    MOVES_OPEN_FILES,
    OpenFolder,
    hold,
    is_at,
    opener,
    sync,
    sync_folder,
)

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# Ends of hidden names, of a folder that is replaced, and removed: as long as that of one that is
# made, or a long name would have no room for them.
OLD, GOING = ".old", ".end"
Held = TypeVar("Held", IO[bytes], OpenFolder)


@contextmanager
def whole_file(
    path: Path, mode: int | None = None, beside: Path | None = None
) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the one at ``path`` when all went well.

    ``mode``, if given, says who may read and write it, also while it is made. ``beside`` is its
    name until then, of which the caller knows that no other process writes it.
    """

    def create(place: Path) -> IO[bytes]:
        return open(place, "xb", opener=opener(mode))

    if beside:
        beside.unlink(missing_ok=True)
    place, file = (beside, create(beside)) if beside else _claimed(path, create)
    try:
        yield file
        sync(file)
        if not is_at(place, file):  # taken for left, by a computer that sees no locks of others
            raise FileNotFoundError(errno.ENOENT, "another process has removed it", str(place))
        if not MOVES_OPEN_FILES:
            file.close()
        move(place, path, mode)  # held until it has its name, so that nobody takes it for left
    except BaseException:
        _drop(place, file)
        raise
    finally:
        file.close()
    sync_folder(path.parent)


def _claimed(path: Path, create: Callable[[Path], Held]) -> tuple[Path, Held]:
    """Create what is to become this file or folder, and hold it; return its name meanwhile.

    What a killed process left under that name is removed. Where a living one holds it, or nobody
    can tell, the name is one of this process alone.
    """
    place = making(path)
    if not _freed(place):
        place = making_alone(path)
    while True:
        with suppress(FileExistsError):  # another process was quicker
            created = create(place)
            hold(created, wait=True)
            if is_at(place, created):  # else another took it for left before it was held
                return place, created
            created.close()
        place = making_alone(path)


def _freed(place: Path) -> bool:
    """Remove what nobody holds; return whether the name is free."""
    try:
        if not os.path.lexists(place):
            return True
        if not MOVES_OPEN_FILES:
            place.unlink()  # fails for an open file, and for a folder
            return True
        with closing(OpenFolder(place)) as left:
            if not (hold(left) and is_at(place, left)):
                return False
            shutil.rmtree(place) if place.is_dir() else place.unlink()
    except OSError:
        return False
    return True


def _drop(place: Path, file: IO[bytes]) -> None:
    """Remove a file, if this name is still its own."""
    if not MOVES_OPEN_FILES:
        with suppress(OSError):  # of a full disk, which was told already
            file.close()
    if is_at(place, file):
        place.unlink()


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
def explained(path: Path) -> Iterator[None]:
    """Turn what the system refuses into an OutputError about this output of a resumable run."""
    try:
        yield
    except OSError as failed:
        resume = "free disk space, then run the same command with --resume"
        raise unwritable(path, failed, resume) from None


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder, which is removed when it has not been moved."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder with a hidden name beside a path, for what is to be there.

    It is removed when it has not been moved, and so is what a killed process left.
    """

    def create(place: Path) -> OpenFolder:
        place.mkdir()
        return OpenFolder(place)

    folder, held = _claimed(path, create)
    try:
        restore(folder, path)
        yield folder
    finally:
        if is_at(folder, held):
            shutil.rmtree(folder, ignore_errors=True)
        restore(folder, path)
        held.close()


def put_files(source: Path, folder: Path, last: str) -> None:
    """Move files that are whole into a folder, ``last`` as the last: without it they are none."""
    sync_files(source)
    (folder / last).unlink(missing_ok=True)
    for path in source.iterdir():
        if path.name != last:
            move(path, folder / path.name)
    sync_folder(folder)
    move(source / last, folder / last)
    sync_folder(folder)


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
    old, going = source.with_suffix(OLD), source.with_suffix(GOING)
    shutil.rmtree(going, ignore_errors=True)
    if old.exists() and not target.exists():
        move(old, target)
    elif old.exists():
        with suppress(OSError):
            move(old, going)  # what is half removed is never taken for what was there
        shutil.rmtree(going, ignore_errors=True)


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
    _refuse(path, target, ours, overwrite=overwrite)
    try:
        with own_folder(target) as folder:
            _refuse(path, target, ours, overwrite=overwrite)  # again: it may have come back
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
