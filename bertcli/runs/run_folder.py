"""The run folder of an output: stores committed rows, and decides where a run starts.

    with target.opened(fingerprint, inputs) as writer:
        match writer.output_state:
            case OutputState.COMPLETE: ...      # nothing to do
            case OutputState.INTERRUPTED: ...   # continue after writer.state
            case _: ...                         # start
        writer.write(rows)
        writer.commit({"records": 10})
        writer.finish({"counts": {"records": 10}})

Rows of every format are appended to files of the run folder (see `io.output_files`), and the
output is made from them at the end. So its bytes depend on the rows alone, and int8 needs no
special case, although it requires the range of every dimension over all rows.

The journal is replaced atomically after the data is synced. Bytes past the committed offset are
truncated on resume. The journal is deleted only once the output is published: if a run is killed
before, resuming it makes the output again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, TypeVar
from zlib import crc32

from bertcli.errors import OutputError, PrecisionError, option
from bertcli.formats.writers import json_array_file
from bertcli.io.output_files import (
    JOURNAL,
    NEW_INDEX,
    NEW_OUTPUT,
    SAVING,
    OutputFiles,
    object_or_empty,
)
from bertcli.io.paths import WatchedFiles, refuse_inputs, sha256
from bertcli.io.publish import RESUME_IF_FULL, converting_os_errors, replacing, whole_file
from bertcli.io.streams import compressing
from bertcli.io.system_calls import opener, sync, write_all
from bertcli.io.typed_json import as_json, read_bytes
from bertcli.runs.identity import (
    Inputs,
    identity_of,
    not_resumable,
    refuse_changed_file,
    refuse_changes,
)
from bertcli.versions import __version__

JOURNAL_VERSION = 10  # of the journal and of the files beside it
BYTES_PER_READ = 8 << 20  # for a checksum
START_OVER_HINT = f"{option('overwrite')} starts over"

WriterT = TypeVar("WriterT", bound="RunWriter")


class OutputState(Enum):
    """State of an output and its run folder when a run starts."""

    NEW = "nothing, or something that --overwrite replaces"
    INTERRUPTED = "committed rows of the same run"
    CHANGED = "rows or output of a different run, which an update replaces"
    COMPLETE = "the output of the same run"


@dataclass(frozen=True)
class Target(ABC, Generic[WriterT]):
    """An output file, and how to handle an existing one. Subclasses make the writer of its rows."""

    path: Path
    file_format: str  # its name
    precision: str = "float32"
    resume: bool = field(default=False, kw_only=True)
    update: bool = field(default=False, kw_only=True)  # reuse rows of the output and replace it
    overwrite: bool = field(default=False, kw_only=True)
    has_manifest: bool = field(default=True, kw_only=True)
    row_files: ClassVar[tuple[str, ...]] = ()  # names of the files that rows are appended to

    def has_index(self, *, with_ids: bool) -> bool:
        """Return True if the output has an index; ``with_ids`` is True if records have ids."""
        return False

    @abstractmethod
    def writer(self, model: WatchedFiles) -> WriterT:
        """Return the writer of the rows of a run."""

    @contextmanager
    def opened(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> Iterator[WriterT]:
        """Lock the output and yield the writer of its rows, which continues an interrupted run.

        ``fingerprint`` (model and options) and the ``inputs``, which are hashed, determine the
        output's bytes. A run is not resumed if either differs; an update then starts over. If
        nothing is committed at the end, no files remain.

        Raises OutputError if

        - another process writes the output;
        - an input is one of the files that are written or removed;
        - the name of one of these files is taken by something else;
        - the output or an interrupted run exists, and no option says how to handle it;
        - files of the run to continue were changed.
        """
        writer = self.writer(WatchedFiles(inputs.model_files))
        with writer.converting_os_errors():
            if self.path.exists() and not self.path.is_file():
                raise OutputError(f"{self.path}: is a folder, device or pipe", "name a file")
        if writer.output.is_symlink():
            raise OutputError(f"{self.path}: circular symlink")
        options: dict[str, Any] = {"format": self.file_format, "precision": self.precision}
        if self.update:
            options["update"] = True
        refuse_inputs(inputs.all, [self.path, *writer.all])
        with writer.locked(), ExitStack() as stack:
            has_index = self.has_index(with_ids=True)
            writer.refuse_foreign_files(manifest=self.has_manifest, index=has_index)
            with writer.converting_os_errors():
                writer.begin(as_json({**fingerprint, **options}), inputs)
            if writer.output_state is not OutputState.COMPLETE:
                stack.callback(writer.end)
                stack.enter_context(writer.open_files())
            try:
                yield writer
            except PrecisionError:  # these rows can never be written in this precision
                (writer.folder / JOURNAL).unlink(missing_ok=True)
                raise


class RunWriter(OutputFiles, ABC):
    """Stores the rows of one output, and tracks how many of them are committed.

    Subclasses define what a row is, and make the output from the stored rows.
    ``output_state`` is the state of the output at the start. ``model`` watches the model files,
    which may be memory-mapped: no rows are committed after one of them has changed.
    """

    hint_if_full: ClassVar[str] = RESUME_IF_FULL

    def __init__(self, target: Target[Any], model: WatchedFiles) -> None:
        super().__init__(target.path)
        self.target = target
        self.model = model
        self.output_state = OutputState.NEW
        self.files: dict[str, IO[bytes]] = {}
        self.journal: dict[str, Any] = {
            "overwrite": target.overwrite or target.update,  # True: replace an existing output
            "parts": {},  # file name -> bytes, crc32
            "state": None,
        }

    @property
    def state(self) -> Any:
        """The state of the last commit; None on a fresh run."""
        return self.journal["state"]

    # --- start of a run ---

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Find out the state of the output, then continue or clear it; see `Target.opened`."""
        descriptions = inputs.describe()  # may fail, so it comes before files are removed
        run = {"fingerprint": fingerprint, "inputs": descriptions}
        self.output_state = self.find_output_state(identity_of(run) or {}, inputs)
        match self.output_state:
            case OutputState.INTERRUPTED:
                self.journal = self._read_journal()
            case OutputState.NEW | OutputState.CHANGED | OutputState.COMPLETE:
                self.clear()
                self.journal |= run

    def find_output_state(self, identity: Mapping[str, Any], inputs: Inputs) -> OutputState:
        """Return the output's state for a run with this identity.

        Raises OutputError if the output or its run may not be continued or replaced.
        """
        target = self.target
        if target.overwrite:
            return OutputState.NEW
        if journal := self._read_journal():
            is_update = target.update and journal["fingerprint"].get("update")
            if not (target.resume or is_update):
                self.refuse_replacing()
            if self.output.exists() and not journal["overwrite"]:
                raise OutputError(
                    f"{target.path}: was created after the run was interrupted",
                    f"move it away, or start over with {option('overwrite')}",
                )
            return self._state_if_same(journal, OutputState.INTERRUPTED, identity, inputs)
        if self.output.exists() and (target.resume or target.update):
            manifest = self.read_unchanged_manifest()
            return self._state_if_same(manifest, OutputState.COMPLETE, identity, inputs)
        if not target.update:  # an update replaces the output
            self.refuse_replacing(index=True)
        return OutputState.NEW

    def _state_if_same(
        self,
        earlier: Mapping[str, Any],
        state: OutputState,
        identity: Mapping[str, Any],
        inputs: Inputs,
    ) -> OutputState:
        """Return ``state`` if the earlier run is the same, or CHANGED if an update replaces it.

        Raises OutputError for a different run.
        """
        earlier_identity = identity_of(earlier) or {}
        for cached in inputs.cached:  # a missing one is written again
            if not cached.exists():
                earlier_identity.get("inputs", {}).pop(str(cached), None)
        if not self.target.update:
            refuse_changes(str(self.target.path), earlier_identity, identity)
            return state
        has_streams = None in identity["inputs"].values()  # stdin and pipes have no digest
        return OutputState.CHANGED if earlier_identity != identity or has_streams else state

    def _read_journal(self) -> dict[str, Any]:
        """Return the journal, or {} if there is none. Raises OutputError if it is broken."""
        path = self.folder / JOURNAL
        raw = read_bytes(path, OutputError, START_OVER_HINT)
        if raw is None:
            return {}
        journal = object_or_empty(raw)
        if journal.get("version") != JOURNAL_VERSION or identity_of(journal) is None:
            raise OutputError(f"{path}: not a journal of this version of bertcli", START_OVER_HINT)
        return journal

    def read_unchanged_manifest(self) -> dict[str, Any]:
        """Return the manifest of an unchanged output. Raises OutputError if it was changed."""
        manifest = self.read_manifest()
        if "sha256" not in manifest or identity_of(manifest) is None:
            raise not_resumable(str(self.target.path))
        refuse_changed_file(self.output, manifest["sha256"])
        if "index" in manifest:
            refuse_changed_file(self.index, manifest.get("index_sha256"))
        return manifest

    @contextmanager
    def open_files(self) -> Iterator[None]:
        """Open the files that rows are appended to, for the duration of the block."""
        with ExitStack() as stack:
            with self.converting_os_errors():
                for name in self.target.row_files:
                    self.files[name] = stack.enter_context(self.open_for_appending(name))
            yield

    def open_for_appending(self, name: str) -> IO[bytes]:
        """Open a file for appending, truncated to its committed bytes.

        Raises OutputError if the committed bytes are not what was written.
        """
        path = self.folder / name
        size, expected_crc = self.journal["parts"].get(name, (0, 0))
        crc = 0
        file = open(path, "ab", 0, opener=opener(None))  # noqa: SIM115 - `open_files` closes it
        with open(path, "rb") as committed:
            for start in range(0, size, BYTES_PER_READ):
                crc = crc32(committed.read(min(BYTES_PER_READ, size - start)), crc)
        if crc != expected_crc:
            file.close()
            raise OutputError(
                f"{path}: the committed rows were changed: their checksum differs from the "
                "journal's",
                f"the file was changed or cut, or the disk fails; {START_OVER_HINT}",
            )
        file.truncate(size)
        return file

    # --- rows ---

    def append(self, rows: Mapping[str, bytes]) -> None:
        """Append rows, as bytes by file name, to the files of the run."""
        for name, file in self.files.items():
            size, crc = self.journal["parts"].get(name, (0, 0))
            with self.converting_os_errors():
                write_all(file, rows[name])
            self.journal["parts"][name] = size + len(rows[name]), crc32(rows[name], crc)

    def commit(self, state: Any) -> None:
        """Commit all rows durably, with a JSON value from which a later run resumes."""
        self.model.refuse_changes()
        with self.converting_os_errors():
            for file in self.files.values():
                sync(file)
            self.journal |= {"state": state, "version": JOURNAL_VERSION}
            with replacing(self.folder / JOURNAL, self.folder / SAVING) as file:
                file.write(json.dumps(self.journal).encode())

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Publish the output and its manifest with the ``summary``, and remove the run folder.

        Commit before: a run that is killed here is resumed from its last commit.
        """

    def converting_os_errors(self) -> AbstractContextManager[None]:
        """Convert an OSError of the block to an OutputError about this output."""
        return converting_os_errors(self.target.path, self.hint_if_full)

    @contextmanager
    def new_file(self) -> Iterator[IO[bytes]]:
        """Yield the file that becomes the output. It is synced at the end. Raises OSError."""
        new = self.folder / NEW_OUTPUT
        with open(new, "wb", opener=opener(None)) as file:
            with (
                compressing(self.output, file) as inner,
                json_array_file(self.target.path, self.target.file_format, inner) as rows_file,
            ):
                yield rows_file
            sync(file)

    def publish_run(self, entries: Mapping[str, Any]) -> None:
        """Publish the new output, its index and its manifest, and remove the run folder.

        ``entries`` are those of the manifest that the writer adds.
        """
        target = self.target
        with self.converting_os_errors():
            manifest = {
                **entries,
                "bertcli": __version__,
                "fingerprint": self.journal["fingerprint"],
                "inputs": self.journal["inputs"],
                "output": self.output.name,
                "format": target.file_format,
                "sha256": sha256(self.folder / NEW_OUTPUT),
            }
            self.journal["overwrite"] = True  # from here on, the output may be this run's own
            self.commit(self.state)
            for file in self.files.values():
                file.close()  # Windows cannot rename open files
            self.publish(
                index=(self.folder / NEW_INDEX).exists(),
                manifest=json_text(manifest) if target.has_manifest else None,
            )
            self.clear()

    def end(self) -> None:
        """Remove the files of a run that has committed nothing."""
        if not self.is_interrupted:
            self.clear()


def write_json_atomically(path: Path, value: Any) -> None:
    """Write a JSON file atomically and sync it."""
    with whole_file(path) as file:
        file.write(json_text(value))


def json_text(value: Any) -> bytes:
    """Return a value as indented JSON."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    return text.encode(errors="backslashreplace")  # lone surrogates, as JSON escapes
