"""Write files and folders atomically and durably.

    with whole_file(Path("out.json")) as file: ...          # replaces out.json when all went well
    with whole_folder(Path("data"), "distil", overwrite=True) as folder: ...

Both are made in a folder with a hidden name beside the target, ``.out.json.bertcli.tmp``, which
contains a lock file (see `lock`). Files left there by a killed process are removed by the next one.
No other module renames over files or syncs them.
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
from bertcli.io.paths import refuse_inputs, unfinished_path
from bertcli.io.system_calls import opener, sync, sync_folder
from bertcli.io.typed_json import read_object, whole_number, write_json

FULL_DISK_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# Hints for a full disk: of an output, of a run that can be resumed, and of a temporary file.
FREE_SPACE = "free disk space, or choose another place"
RESUME_IF_FULL = (
    f"free disk space, then run the command again; a file of -o goes on with {option('resume')}"
)
FREE_TEMP_SPACE = "free disk space there, or set TMPDIR to another folder"
MANIFEST = "manifest.json"  # in a folder: the command, and names and sizes of its files
FILE_SIZE = whole_number(0, 2**63)  # bytes
NEW = "new"  # name, within the hidden folder, of the new file or folder
OLD = ".old"  # suffix of the hidden name of a folder being replaced; as long as ".tmp"


@contextmanager
def whole_file(path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a file to write, which replaces the one at ``path`` if the block succeeds.

    ``mode``, if given, sets the permissions of the file, also while it is written.
    """
    # Processes that cannot see each other's locks may share the folder, but not the file name.
    with (
        work_folder(path) as folder,
        replacing(path, folder / os.urandom(8).hex(), mode) as file,
    ):
        yield file


@contextmanager
def replacing(path: Path, new_path: Path, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a new file at ``new_path``, which replaces the one at ``path`` if the block succeeds.

    The new path must be in use by this process only.
    """
    new_path.unlink(missing_ok=True)
    try:
        with open(new_path, "xb", opener=opener(mode)) as file:
            yield file
            sync(file)
        move(new_path, path, mode)
    except BaseException:
        new_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def work_folder(path: Path, output: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder, inside a hidden folder beside ``path``, to be moved there.

    Files left in it at the end, or by a killed process, are removed. Another process may do the
    same at the same time, in its own hidden folder, unless ``output`` is given, which is the name
    of the path in messages.

    Raises BusyOutputError if another process writes the ``output``.
    """
    with ExitStack() as stack:
        try:
            hidden = stack.enter_context(_own_hidden_folder(unfinished_path(path), output or path))
        except (BusyOutputError, FileExistsError) as taken:
            if output and isinstance(taken, BusyOutputError):
                raise
            hidden = unfinished_path(path, os.urandom(4).hex())
            stack.enter_context(_own_hidden_folder(hidden, path))
        folder = hidden / NEW
        folder.mkdir()
        yield folder


@contextmanager
def _own_hidden_folder(hidden: Path, output: Path) -> Iterator[Path]:
    """Lock a hidden folder and yield it; other files in it are removed before and afterwards.

    Raises BusyOutputError if another process has locked it; FileExistsError if this cannot be
    determined, or if it is a link or a file.
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
    """Remove all files in a hidden folder except the lock."""
    for path in hidden.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)


def remove_abandoned(path: Path) -> None:
    """Remove the files that a killed process left while writing the file at ``path``."""
    hidden = unfinished_path(path)
    if os.path.lexists(hidden):
        # Ignore a folder that a running process has locked, or may have locked.
        with suppress(OSError, BusyOutputError), _own_hidden_folder(hidden, path):
            pass


def move(source: Path, target: Path, mode: int | None = None) -> None:
    """Move a complete file or folder to its final name; ``mode`` sets its permissions."""
    if mode is not None:
        os.chmod(source, mode)
    os.replace(source, target)


def unwritable(name: str | Path, failed: OSError, if_full: str = FREE_SPACE) -> OutputError:
    """Return the error for an output that cannot be written; ``if_full`` is for a full disk."""
    hint = if_full if failed.errno in FULL_DISK_ERRORS else ""
    if isinstance(failed, FileNotFoundError):
        hint = "create the folder first"
    return OutputError(f"{name}: cannot be written: {failed.strerror or failed}", hint)


@contextmanager
def converting_os_errors(path: str | Path, if_full: str = RESUME_IF_FULL) -> Iterator[None]:
    """Convert an OSError of the block to an OutputError about this output.

    ``if_full`` is the hint for a full disk. The default is for runs that can be resumed.
    """
    try:
        yield
    except OSError as failed:
        raise unwritable(path, failed, if_full) from None


@contextmanager
def replacing_files(folder: Path, last: str) -> Iterator[Path]:
    """Yield an empty folder, whose files replace those of the same names in ``folder``.

    The file ``last`` is moved last: without it, the other files are no valid result. Other files in
    ``folder`` and its subfolders stay.
    """
    with work_folder(folder / "saving") as scratch:
        yield scratch
        sync_tree(scratch)
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
def saving_files(folder: Path, last: str) -> Iterator[Path]:
    """Do the same as `replacing_files`, for a folder that is created if it does not exist.

    Raises OutputError if the files cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing_files(folder, last) as scratch:
            yield scratch
    except OSError as failed:
        raise unwritable(folder, failed) from failed


def put_folder(
    source: Path, target: Path, check: Callable[[Path], object] = lambda folder: None
) -> None:
    """Rename a complete folder to ``target``, replacing a folder of this name.

    ``check`` raises OutputError if the old folder must stay. It is called after the old folder has
    been moved away, when nothing can be added to it by its path any more.
    """
    sync_tree(source)
    old = replaced_folder(target)
    try:
        if target.exists():
            move(target, old)
            check(old)
        move(source, target)
    finally:
        finish_replacing(target)
    sync_folder(target.parent)


def replaced_folder(target: Path) -> Path:
    """Return the hidden path of the folder at ``target`` while it is being replaced."""
    return unfinished_path(target).with_suffix(OLD)


def finish_replacing(target: Path) -> None:
    """Complete or undo an interrupted `put_folder`.

    The old folder is moved back, or its listed files are removed if ``target`` exists. Raises
    OutputError if it has other files, which stay.
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


def sync_tree(folder: Path) -> None:
    """Sync the files of a folder, and their names, to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                sync(file)
    sync_folder(folder)


# --- folders that a command writes atomically, and may replace ---


@contextmanager
def whole_folder(
    path: Path,
    command: str = "",
    *,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, which is renamed to it if the block succeeds.

    If the block writes a manifest.json, the name of the ``command`` and the sizes of all files are
    added to it. Only a folder with such a manifest is overwritten, and only if it has no other
    files and none of other sizes. Without a command there is no manifest, and nothing is
    overwritten.

    Raises OutputError if the folder exists and is not overwritten, if one of the ``inputs`` is in
    it or its subfolders, or if it cannot be written; then no files are left.
    """
    target = Path(os.path.realpath(path))

    def check(existing: Path) -> None:
        _refuse_replacing(path, existing, command, overwrite=overwrite)

    try:
        with work_folder(target, output=path) as folder:
            finish_replacing(target)
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
    """Return the files that the manifest of a folder lists, with their sizes in bytes.

    Returns None without a manifest.json with such a list, or if another command wrote it.
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
    """Return the files and empty subfolders below a folder, as relative paths with slashes.

    Symbolic links count as files.
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


def _refuse_replacing(path: Path, existing: Path, command: str, *, overwrite: bool) -> None:
    """Raise OutputError if a folder must not be replaced; ``path`` is its name in messages."""
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
    """Remove the files listed in the manifest of a folder, and all empty subfolders.

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
