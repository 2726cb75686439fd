"""An output file, the files beside it, and its run folder, which one process at a time writes.

    out.npy                 the output; one rename replaces it when it is complete
    out.npy.manifest.json   how it was made
    out.npy.index.jsonl     which rows belong to which record
    out.npy.run/            the run folder, for its owner alone, until the run is finished:
        bertcli.lock        locked by the process that writes; marks the folder as ours
        journal             how much is committed; without it, nothing is
        vectors, fields     the committed rows
        output, index       the output and the index while they are written
        saving              a journal or manifest while it is written

    files = OutputFiles(Path("out.jsonl"))
    with files.locked(), files.new_output() as file:
        file.write(b"...")
    # published when the block ends, discarded when it raises

A file is ours only if its content says so: a manifest has keys that we write, an index has rows,
a run folder has our lock file or is empty. Everything else beside an output is kept, and a run that
needs its name is refused.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from bertcli.errors import OutputError, option
from bertcli.io.lock import LOCK, locked
from bertcli.io.paths import beside
from bertcli.io.publish import move, replacing, unwritable
from bertcli.io.system_calls import opener, sync, sync_folder
from bertcli.io.typed_json import BadJsonError, parse, read_bytes

MANIFEST, INDEX, RUN = ".manifest.json", ".index.jsonl", ".run"  # suffixes beside an output
JOURNAL, RAW_VECTORS, FIELDS = "journal", "vectors", "fields"
NEW_OUTPUT, NEW_INDEX, SAVING = "output", "index", "saving"
NEW_TEXTS, NEW_ROWS = "texts", "rows"  # of a search index
RUN_FILES = (JOURNAL, RAW_VECTORS, FIELDS, NEW_OUTPUT, NEW_INDEX, SAVING, NEW_TEXTS, NEW_ROWS)

MANIFEST_KEYS = {"fingerprint", "shard"}  # one of them is in every manifest of an output
INDEX_KEYS = {"row", "start"}  # one of them is in every row of an index
LONGEST_INDEX_ROW = 1 << 20  # bytes
CHOOSE_ANOTHER = "move it away, or choose another output"


class OutputFiles:
    """An output, the files beside it, and its run folder. For a link: those of its target."""

    def __init__(self, path: Path) -> None:
        """Name the files of an output."""
        self.path = path
        self.output = Path(os.path.realpath(path))
        self.manifest = beside(self.output, MANIFEST)
        self.index = beside(self.output, INDEX)
        self.folder = beside(self.output, RUN)
        self.lock = self.folder / LOCK

    @property
    def all(self) -> list[Path]:
        """Every file that a run may write or remove, the output first."""
        run_files = [self.folder / name for name in RUN_FILES]
        return [self.output, self.manifest, self.index, self.lock, *run_files]

    @property
    def is_interrupted(self) -> bool:
        """True if an unfinished run has committed rows."""
        return os.path.exists(self.folder / JOURNAL)  # False also for a name that is too long

    # --- whose files these are ---

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest, {} without one. Raises OutputError for a file that is not ours."""
        try:
            raw = read_bytes(self.manifest, OutputError, CHOOSE_ANOTHER)
        except OutputError as unreadable:
            raise OutputError(str(unreadable), CHOOSE_ANOTHER) from None
        if raw is None:
            return {}
        manifest = object_in(raw)
        if not MANIFEST_KEYS & manifest.keys():
            raise not_ours(self.manifest)
        return manifest

    def has_own_index(self) -> bool:
        """Return True if there is an index of rows, False for no file or one that is not ours."""
        try:
            if not stat.S_ISREG(os.lstat(self.index).st_mode):  # a pipe would be waited for
                return False
            with self.index.open("rb") as file:
                first_line = file.readline(LONGEST_INDEX_ROW)
        except OSError:
            return False
        return not first_line or bool(INDEX_KEYS & object_in(first_line).keys())

    def refuse_foreign_files(self, *, manifest: bool, index: bool) -> None:
        """Raise OutputError if a manifest or an index that this run replaces is not ours."""
        if manifest:
            self.read_manifest()
        if index and os.path.lexists(self.index) and not self.has_own_index():
            raise not_ours(self.index)

    def refuse_replacing(self, *, index: bool = False) -> None:
        """Raise OutputError if there is an output, an index, or a run that can be resumed."""
        if self.is_interrupted:
            raise OutputError(
                f"{self.path}: an interrupted run left {self.folder.name}",
                f"{option('resume')} continues it, {option('overwrite')} starts over",
            )
        for existing in (self.path, *([self.index] if index else ())):
            if os.path.exists(existing):
                raise OutputError(
                    f"{existing}: already exists", f"give {option('overwrite')}, or another name"
                )

    def _refuse_foreign_folder(self) -> None:
        """Raise OutputError for something called like the run folder that is not a run folder."""
        try:
            if not stat.S_ISDIR(os.lstat(self.folder).st_mode):
                raise not_ours(self.folder)
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return
        if names and not (LOCK in names and stat.S_ISREG(os.lstat(self.lock).st_mode)):
            raise not_ours(self.folder)

    # --- one process at a time ---

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run folder while the block runs; remove it afterwards unless it has run files.

        Raises OutputError if another process holds it, or something else has its name.
        """
        with ExitStack() as stack:
            try:
                lock = locked(self.lock, self.path, check=self._refuse_foreign_folder)
                stack.enter_context(lock)
            except OSError as failed:
                raise unwritable(self.path, failed) from None
            yield

    def clear(self) -> None:
        """Remove the files of the run: the journal first, without which the others are void."""
        for name in RUN_FILES:
            (self.folder / name).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what a run that was killed after it was finished left in its run folder."""
        if not self.folder.exists() or self.is_interrupted:
            return
        with suppress(OutputError, OSError), self.locked():
            if not self.is_interrupted:
                self.clear()

    # --- writing ---

    @contextmanager
    def new_output(self, manifest: bytes | None = None) -> Iterator[IO[bytes]]:
        """Yield a file that replaces the output when the block ends; a failed one is discarded.

        The manifest and the index of an earlier output describe other bytes, and are removed. To be
        called while the run folder is locked.
        """
        new = self.folder / NEW_OUTPUT
        new.unlink(missing_ok=True)  # of a run that was killed
        try:
            with open(new, "xb", opener=opener(None)) as file:
                yield file
                sync(file)
            self.publish(manifest=manifest)
        finally:
            new.unlink(missing_ok=True)

    def publish(self, *, index: bool = False, manifest: bytes | None = None) -> None:
        """Rename the new files over the old ones: the output last.

        Without ``index`` or ``manifest``, those of an earlier run are removed, after the rename:
        until then they are told from those of the new output by their digests.
        """
        new = self.folder / NEW_OUTPUT
        if self.output.exists():
            shutil.copymode(self.output, new)  # what replaces a private file is private
        mode = stat.S_IMODE(new.stat().st_mode)
        if index:
            move(self.folder / NEW_INDEX, self.index, mode)
        if manifest is not None:
            with replacing(self.manifest, self.folder / SAVING, mode) as file:
                file.write(manifest)
        move(new, self.output)
        if not index and self.has_own_index():
            self.index.unlink(missing_ok=True)
        if manifest is None:
            with suppress(OutputError):
                if self.read_manifest():
                    self.manifest.unlink()
        sync_folder(self.output.parent)


def not_ours(path: Path) -> OutputError:
    """Return the refusal of a file or folder beside an output that something else has made."""
    return OutputError(f"{path}: was not made by bertcli", CHOOSE_ANOTHER)


def object_in(raw: bytes | None) -> dict[str, Any]:
    """Return the object that a text of JSON is; {} for anything else."""
    try:
        value = None if raw is None else parse(raw)
    except BadJsonError:
        value = None
    return value if isinstance(value, dict) else {}
