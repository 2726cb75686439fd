"""An output file, the files beside it, and its run folder, written by one process at a time.

    out.npy                 the output, replaced by one rename when it is complete
    out.npy.manifest.json   how it was made
    out.npy.index.jsonl     maps records to rows
    out.npy.run/            the run folder, readable by its owner only, until the run is complete:
        bertcli.lock        locked by the writing process; marks the folder as ours
        journal             number of committed bytes; without it, nothing is committed
        vectors, fields     the committed rows
        output, index       the new output and index while they are written
        saving              a journal or manifest while it is written

    files = OutputFiles(Path("out.jsonl"))
    with files.locked(), files.new_output() as file:
        file.write(b"...")
    # published when the block ends, discarded when it raises

Files are ours only if their content shows it: a manifest has keys that we write, an index has rows,
a run folder has our lock file or is empty. Other files beside an output are kept, and a run that
needs their names is refused.
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

# Suffixes of the output's name.
MANIFEST = ".manifest.json"
INDEX = ".index.jsonl"
RUN = ".run"

# Files of the run folder.
JOURNAL = "journal"
RAW_VECTORS = "vectors"
FIELDS = "fields"
NEW_OUTPUT = "output"
NEW_INDEX = "index"
SAVING = "saving"
NEW_TEXTS = "texts"  # of a search index
NEW_ROWS = "rows"  # of a search index
RUN_FILES = (JOURNAL, RAW_VECTORS, FIELDS, NEW_OUTPUT, NEW_INDEX, SAVING, NEW_TEXTS, NEW_ROWS)

MANIFEST_KEYS = {"fingerprint", "shard"}  # every manifest of an output has one of them
INDEX_KEYS = {"row", "start"}  # every row of an index has one of them
MAX_INDEX_ROW_BYTES = 1 << 20
OTHER_OUTPUT_HINT = "move it away, or choose another output"


class OutputFiles:
    """The paths of an output, the files beside it, and its run folder; links are followed."""

    def __init__(self, path: Path) -> None:
        """Set the paths for an output."""
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

    def committed_records(self) -> int:
        """Return how many records an unfinished run has committed; 0 without a valid journal."""
        journal: dict[str, Any] = {}
        with suppress(OSError):
            journal = object_or_empty((self.folder / JOURNAL).read_bytes())
        state = journal.get("state")
        records = state.get("records") if isinstance(state, dict) else None
        return records if isinstance(records, int) else 0

    # --- ownership of files ---

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest, or {} if there is none. Raises OutputError if it is not ours."""
        raw = read_bytes(self.manifest, OutputError, OTHER_OUTPUT_HINT)
        if raw is None:
            return {}
        manifest = object_or_empty(raw)
        if not MANIFEST_KEYS & manifest.keys():
            raise not_ours(self.manifest)
        return manifest

    def has_own_index(self) -> bool:
        """Return True if there is an index that a run wrote; False for no file or another one."""
        try:
            if not stat.S_ISREG(os.lstat(self.index).st_mode):  # opening a pipe would block
                return False
            with self.index.open("rb") as file:
                first_line = file.readline(MAX_INDEX_ROW_BYTES)
        except OSError:
            return False
        return not first_line or bool(INDEX_KEYS & object_or_empty(first_line).keys())

    def refuse_foreign_files(self, *, manifest: bool, index: bool) -> None:
        """Raise OutputError if a manifest or an index to be replaced is not ours."""
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
        """Raise OutputError if the name of the run folder is taken by something else."""
        try:
            if not stat.S_ISDIR(os.lstat(self.folder).st_mode):
                raise not_ours(self.folder)
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return
        if names and not (LOCK in names and stat.S_ISREG(os.lstat(self.lock).st_mode)):
            raise not_ours(self.folder)

    # --- locking ---

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run folder during the block. It is removed afterwards unless it has run files.

        Raises OutputError if another process has locked it, or something else has its name.
        """
        with ExitStack() as stack:
            try:
                lock = locked(self.lock, self.path, check=self._refuse_foreign_folder)
                stack.enter_context(lock)
            except OSError as failed:
                raise unwritable(self.path, failed) from None
            yield

    def clear(self) -> None:
        """Remove the files of the run, the journal first, as the others are invalid without it."""
        for name in RUN_FILES:
            (self.folder / name).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove files left in the run folder by a run that was killed after publishing."""
        if not self.folder.exists() or self.is_interrupted:
            return
        with suppress(OutputError, OSError), self.locked():
            if not self.is_interrupted:
                self.clear()

    # --- writing ---

    @contextmanager
    def new_output(self, manifest: bytes | None = None) -> Iterator[IO[bytes]]:
        """Yield a file that replaces the output if the block succeeds, or else is discarded.

        The manifest and the index of an earlier output are removed, as they describe other bytes.
        Call this while the run folder is locked.
        """
        new = self.folder / NEW_OUTPUT
        new.unlink(missing_ok=True)  # left by a killed run
        try:
            with open(new, "xb", opener=opener(None)) as file:
                yield file
                sync(file)
            self.publish(manifest=manifest)
        finally:
            new.unlink(missing_ok=True)

    def publish(self, *, index: bool = False, manifest: bytes | None = None) -> None:
        """Rename the new files over the old ones, the output last.

        Without ``index`` or ``manifest``, those of an earlier run are removed after the rename.
        Until then, their digests show that they do not belong to the new output.
        """
        new = self.folder / NEW_OUTPUT
        if self.output.exists():
            shutil.copymode(self.output, new)  # the replacement of a private file is private too
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
    """Return the error for a file or folder beside an output that is not ours."""
    return OutputError(f"{path}: was not made by bertcli", OTHER_OUTPUT_HINT)


def object_or_empty(raw: bytes | None) -> dict[str, Any]:
    """Return the object in a JSON text; {} for any other content."""
    try:
        value = None if raw is None else parse(raw)
    except BadJsonError:
        value = None
    return value if isinstance(value, dict) else {}
