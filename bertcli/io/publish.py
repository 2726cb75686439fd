"""Files and folders that appear whole or not at all, and are on the disk when they do.

    with whole_file(Path("out.json")) as file: ...          # replaces out.json when all went well
    with whole_folder(Path("data"), "distil", overwrite=True) as folder: ...

Both are made in a folder with a hidden name beside their own, ``.out.json.bertcli.tmp``, which has
a lock file (see `lock`): what a killed process left there is removed by the next one. No other
module renames over a file, or syncs one.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from bertcli.errors import ModelError, OutputError, option
from bertcli.io.lock import LOCK, BusyOutputError, locked
from bertcli.io.paths import making, refuse_inputs
from bertcli.io.system_calls import opener, sync, sync_folder
from bertcli.io.typed_json import read_object, whole_number, write_json

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
OTHER_FOLDER = "free disk space there, or set TMPDIR to another folder"
MANIFEST = "manifest.json"  # of a folder: who wrote it, and the names and sizes of its files
FILE_SIZE = whole_number(0, 2**63)  # bytes
NEW = "new"  # name, in the hidden folder beside an output folder, of what replaces it
OLD = ".old"  # end of the hidden name of a folder that is replaced: as long as ".tmp"


@contextmanager
def whole_file(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the one at ``path`` when all went well.

    ``mode``, if given, says who may read and write it, also while it is made.
    """
    # A computer that sees no locks of others may take the folder: not the name in it.
    with (
        work_folder(path) as folder,
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
def work_folder(path: Path, output: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder in a hidden folder beside ``path``, whose content is moved there.

    What is left in it at the end is removed, and so is what a killed process left. Another process
    may do the same at the same time, in a hidden folder of its own. With ``output``, the name of
    the path in messages, it may not.

    Raises BusyOutputError if another process writes the ``output``.
    """
    with ExitStack() as stack:
        try:
            hidden = stack.enter_context(_own_hidden_folder(making(path), output or path))
        except (BusyOutputError, FileExistsError) as taken:
            if output and isinstance(taken, BusyOutputError):
                raise
            hidden = making(path, os.urandom(4).hex())
            stack.enter_context(_own_hidden_folder(hidden, path))
        folder = hidden / NEW
        folder.mkdir()
        yield folder


@contextmanager
def _own_hidden_folder(hidden: Path, output: Path) -> Iterator[Path]:
    """Hold a hidden folder, and yield it; what else is in it is removed before and afterwards.

    Raises BusyOutputError if another process holds it, FileExistsError if that cannot be known, or
    if it is a link or a file.
    """
    if os.path.lexists(hidden) and (hidden.is_symlink() or not hidden.is_dir()):
        raise FileExistsError(hidden)
    with locked(hidden / LOCK, output) as has_locks:
        if not has_locks and os.listdir(hidden) != [LOCK]:
            raise FileExistsError(hidden)
        try:
            _empty(hidden)
            yield hidden
        finally:
            _empty(hidden)


def _empty(hidden: Path) -> None:
    """Remove all files in a hidden folder but its lock."""
    for path in hidden.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)


def remove_abandoned(path: Path) -> None:
    """Remove what a killed process left of making the file at ``path``."""
    hidden = making(path)
    if os.path.lexists(hidden):
        # A living process holds it, or that cannot be known.
        with suppress(OSError, BusyOutputError), _own_hidden_folder(hidden, path):
            pass


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
        resume = (
            "free disk space, then run the command again; a file of -o goes on with "
            f"{option('resume')}"
        )
        raise unwritable(path, failed, resume) from None


@contextmanager
def filling(folder: Path, last: str) -> Iterator[Path]:
    """Yield an empty folder, whose files replace those of the same names in ``folder``.

    The file ``last`` is moved last: without it the others are no result. Other files in ``folder``
    and in its subfolders stay.
    """
    with work_folder(folder / "saving") as scratch:
        yield scratch
        sync_files(scratch)
        (folder / last).unlink(missing_ok=True)
        names = [path.relative_to(scratch) for path in scratch.rglob("*") if path.is_file()]
        for name in names:
            if name != Path(last):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                move(scratch / name, folder / name)
        for parent in {(folder / name).parent for name in names} | {folder}:
            sync_folder(parent)
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


def put_folder(
    source: Path, target: Path, check: Callable[[Path], object] = lambda replaced: None
) -> None:
    """Rename a complete folder to ``target``, in place of a folder that has this name.

    ``check`` raises OutputError if the folder that is replaced must stay. It is called when that
    folder has been moved away: nothing can be added to it by its path any more.
    """
    sync_files(source)
    old = replaced_folder(target)
    try:
        if target.exists():
            move(target, old)
            check(old)
        move(source, target)
    finally:
        restore(target)
    sync_folder(target.parent)


def replaced_folder(target: Path) -> Path:
    """Return the hidden name of the folder that was at ``target`` while another takes its place."""
    return making(target).with_suffix(OLD)


def restore(target: Path) -> None:
    """Complete or undo an interrupted `put_folder`.

    The folder that was moved away is moved back, or its listed files are removed if ``target``
    exists. Raises OutputError if it has other files, which stay.
    """
    old = replaced_folder(target)
    if not old.exists():
        return
    if not target.exists():
        move(old, target)
        return
    _remove_listed(old)
    if old.exists():
        raise OutputError(
            f"{old}: holds {min(os.listdir(old))}, which bertcli did not write",
            "move it to another folder",
        )


def sync_files(folder: Path) -> None:
    """Put the files of a folder, and their names, on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                sync(file)
    sync_folder(folder)


# --- folders that a command writes as a whole, and may replace ---


@contextmanager
def whole_folder(
    path: Path,
    command: str = "",
    *,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, which is renamed to it if the block succeeds.

    The manifest.json that the block may write gets the name of the ``command`` and the sizes of all
    files. Only a folder with such a manifest is overwritten, and only if it has no other files and
    none of other sizes. Without a command there is no manifest, and nothing is overwritten.

    Raises OutputError if the folder exists and is not overwritten, if one of the ``inputs`` is in
    it or in its subfolders, or if it cannot be written; then nothing is left behind.
    """
    target = Path(os.path.realpath(path))

    def check(existing: Path) -> None:
        _refuse(path, existing, command, overwrite=overwrite)

    try:
        with work_folder(target, output=path) as folder:
            restore(target)
            check(target)
            refuse_inputs(inputs, [path, *target.rglob("*")])
            yield folder
            if command:
                _write_file_list(folder, command)
            check(target)  # again: the block may have taken hours
            put_folder(folder, target, check)
    except OSError as failed:
        raise unwritable(path, failed) from None


def _write_file_list(folder: Path, command: str) -> None:
    """Add the command and the files, with their sizes in bytes, to the manifest of a folder."""
    manifest = folder / MANIFEST
    values = read_object(manifest, OutputError)
    sizes = {name: (folder / name).stat().st_size for name in sorted(_entries(folder) - {MANIFEST})}
    write_json(manifest, {**values, "command": command, "files": sizes})


def _listed_files(folder: Path, command: str = "") -> Mapping[str, int] | None:
    """Return the names of the files in a folder that a command wrote, with their sizes in bytes.

    None if the folder has no manifest.json with such a list, or another command wrote it.
    """
    try:
        manifest = read_object(folder / MANIFEST, ModelError)
        files = manifest.object("files")
        if not manifest.text("command") or (command and manifest["command"] != command):
            return None
        return {name: files.needed(name, FILE_SIZE) for name in files} if files else None
    except ModelError:
        return None


def _entries(folder: Path) -> set[str]:
    """Return the files below a folder and its empty subfolders, by their paths with slashes.

    A symbolic link is a file, wherever it points to.
    """
    entries = set()
    for parent, subfolders, files in os.walk(folder):
        links = [name for name in subfolders if os.path.islink(os.path.join(parent, name))]
        names = [*files, *links]
        if not subfolders and not files:
            names = [""]
        for name in names:
            entries.add(Path(parent, name).relative_to(folder).as_posix())
    return entries - {"."}


def _refuse(path: Path, existing: Path, command: str, *, overwrite: bool) -> None:
    """Raise OutputError if a folder, which messages call ``path``, is not to be replaced."""
    if not os.path.lexists(existing):
        return
    if not existing.is_dir():
        raise OutputError(f"{path}: already exists, and is not a folder", "give another name")
    if not os.listdir(existing):
        return
    listed = _listed_files(existing, command) if command else None
    if listed is None:
        names = sorted(os.listdir(existing)) if command else []
        changed = []
    else:
        entries = _entries(existing)
        names = sorted(entries - {MANIFEST} - listed.keys())
        changed = [
            name
            for name in sorted(entries & listed.keys())
            if os.lstat(existing / name).st_size != listed[name]
        ]
    if names:
        raise OutputError(
            f"{path}: holds {names[0]}, which this command did not write",
            f"give another name: only folders that bertcli {command} wrote are replaced",
        )
    if changed:
        raise OutputError(
            f"{path}: {changed[0]} was changed after this command wrote it",
            "give another name, or move that file away",
        )
    if not overwrite:
        hint = f"give {option('overwrite')}, or another name" if command else "give another name"
        raise OutputError(f"{path}: already exists", hint)


def _remove_listed(folder: Path) -> None:
    """Remove the files that the manifest of a folder lists, and all subfolders that are empty.

    The manifest is removed last, so that an interrupted removal can be continued.
    """
    listed = _listed_files(folder) or {}
    for name in _entries(folder) & listed.keys():
        (folder / name).unlink()
    if listed:
        (folder / MANIFEST).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(parent)
