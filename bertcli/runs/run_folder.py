"""The run folder of an output: the rows that are committed, and where a run starts.

    with target.opened(fingerprint, inputs) as writer:
        match writer.found:
            case OutputState.COMPLETE: ...      # nothing to do
            case OutputState.INTERRUPTED: ...   # continue after writer.state
            case _: ...                         # start
        writer.write(rows)
        writer.commit({"records": 10})
        writer.finish({"counts": {"records": 10}})

Rows are appended to files of the run folder (see `io.output_files`), whatever the format; the
output is made from them at the end. So its bytes depend on the rows alone, and int8, which needs
the range of every dimension over all rows, is not special.

The journal is replaced atomically after the data is synced. Bytes past the committed offset are
truncated on resume. It is deleted last: a run that is killed while it is published makes the output
again when it is resumed.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, TypeVar
from zlib import crc32

from bertcli.errors import OutputError, PrecisionError, option
from bertcli.formats.writers import json_array
from bertcli.io.output_files import (
    JOURNAL,
    NEW_INDEX,
    NEW_OUTPUT,
    SAVING,
    OutputFiles,
    object_in,
)
from bertcli.io.paths import WatchedFiles, refuse_inputs, sha256
from bertcli.io.publish import explained, replacing, whole_file
from bertcli.io.streams import packed
from bertcli.io.system_calls import opener, sync, write_all
from bertcli.io.typed_json import as_json, read_bytes
from bertcli.runs.identity import (
    Inputs,
    depends_on,
    not_resumable,
    refuse_changed_file,
    refuse_changes,
)
from bertcli.versions import __version__

VERSION = 10  # of the journal and the files beside it
CHUNK = 8 << 20  # bytes that are checked at a time
BEGIN_AGAIN = f"{option('overwrite')} starts over"

WriterT = TypeVar("WriterT", bound="RunWriter")


class OutputState(Enum):
    """What a run finds where it is to write."""

    NEW = "nothing, or an output that it replaces"
    INTERRUPTED = "committed rows of the same run"
    CHANGED = "an output or committed rows of another input, which an update replaces"
    COMPLETE = "the output of the same run"


@dataclass(frozen=True)
class Target(Generic[WriterT]):
    """An output file, and what to do with what is there."""

    path: Path
    form: str
    precision: str = "float32"
    resume: bool = field(default=False, kw_only=True)
    update: bool = field(default=False, kw_only=True)  # reuse rows of the output, and replace it
    overwrite: bool = field(default=False, kw_only=True)
    manifest: bool = field(default=True, kw_only=True)
    row_files: ClassVar[tuple[str, ...]] = ()  # names of the files that rows are appended to

    def has_index(self, *, named: bool) -> bool:
        """Return True if there is an index beside the output; ``named``: records have ids."""
        return False

    @abstractmethod
    def writer(self, model: WatchedFiles) -> WriterT:
        """Return the writer of the rows of a run."""

    @contextmanager
    def opened(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> Iterator[WriterT]:
        """Lock the output, and yield the writer of its rows, which continues an interrupted run.

        ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which
        are hashed. A run with another fingerprint or other inputs is not resumed; an update starts
        over. If nothing is committed at the end, nothing remains.

        Raises OutputError if another process writes the output, if an input is one of the files
        that are written or removed, if something else has the name of one of them, if the output or
        an interrupted run exists and no option says what to do with it, and if what is there to be
        continued has been changed.
        """
        writer = self.writer(WatchedFiles(inputs.model_files))
        with writer.errors():
            if self.path.exists() and not self.path.is_file():
                raise OutputError(f"{self.path}: is a folder, device or pipe", "name a file")
        if writer.output.is_symlink():
            raise OutputError(f"{self.path}: circular symlink")
        identity: dict[str, Any] = {"format": self.form, "precision": self.precision}
        identity |= {"update": True} if self.update else {}
        refuse_inputs(inputs.all, [self.path, *writer.all])
        with writer.locked(), ExitStack() as stack:
            writer.refuse_foreign_files(manifest=self.manifest, index=self.has_index(named=True))
            with writer.errors():
                writer.begin(as_json({**fingerprint, **identity}), inputs)
            if writer.found is not OutputState.COMPLETE:
                stack.callback(writer.end)
                stack.enter_context(writer.open_files())
            try:
                yield writer
            except PrecisionError:  # these rows can never be written so: nothing is resumed
                (writer.folder / JOURNAL).unlink(missing_ok=True)
                raise


class RunWriter(OutputFiles):
    """Writes the rows of one output, and knows how many of them are committed.

    ``found`` says what was there. ``model`` are the files of the model, which may be mapped: no
    rows are committed once one of them has changed.
    """

    def __init__(self, target: Target[Any], model: WatchedFiles) -> None:
        super().__init__(target.path)
        self.target = target
        self.model = model
        self.found = OutputState.NEW
        self.files: dict[str, IO[bytes]] = {}
        self.journal: dict[str, Any] = {
            "overwrite": target.overwrite or target.update,  # an output that is there is replaced
            "parts": {},  # name -> bytes, crc32
            "state": None,
        }

    @property
    def state(self) -> Any:
        """What the last commit was given, None on a fresh run."""
        return self.journal["state"]

    # --- where a run begins ---

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Find out what is there, and continue it or clear it: see `Target.opened`."""
        described = inputs.described()  # fails before anything is removed
        run = {"fingerprint": fingerprint, "inputs": described}
        self.found = self.output_state(depends_on(run) or {}, inputs)
        match self.found:
            case OutputState.INTERRUPTED:
                self.journal = self._read_journal()
            case OutputState.NEW | OutputState.CHANGED | OutputState.COMPLETE:
                self.clear()
                self.journal |= run

    def output_state(self, identity: Mapping[str, Any], inputs: Inputs) -> OutputState:
        """Return what is there. Raises OutputError if this run may not continue or replace it."""
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
            return self._compared(journal, OutputState.INTERRUPTED, identity, inputs)
        if self.output.exists() and (target.resume or target.update):
            return self._compared(self._unchanged(), OutputState.COMPLETE, identity, inputs)
        if not target.update:  # which replaces what it finds
            self.refuse_replacing(index=True)
        return OutputState.NEW

    def _compared(
        self,
        earlier: Mapping[str, Any],
        state: OutputState,
        identity: Mapping[str, Any],
        inputs: Inputs,
    ) -> OutputState:
        """Return the state if the earlier run is the same one; CHANGED if an update replaces it.

        Raises OutputError for another run.
        """
        before = depends_on(earlier) or {}
        for cached in inputs.cached:  # made again if it is missing
            if not cached.exists():
                before.get("inputs", {}).pop(str(cached), None)
        if not self.target.update:
            refuse_changes(str(self.target.path), before, identity)
            return state
        unread = None in identity["inputs"].values()  # stdin and pipes have no digest
        return OutputState.CHANGED if before != identity or unread else state

    def _read_journal(self) -> dict[str, Any]:
        """Return the journal, empty where there is none. Raises OutputError for a broken one."""
        path = self.folder / JOURNAL
        raw = read_bytes(path, OutputError, BEGIN_AGAIN)
        if raw is None:
            return {}
        journal = object_in(raw)
        if journal.get("version") != VERSION or depends_on(journal) is None:
            raise OutputError(f"{path}: not a journal of this version of bertcli", BEGIN_AGAIN)
        return journal

    def _unchanged(self) -> dict[str, Any]:
        """Return the manifest of an output that is as it was made. Raises OutputError else."""
        manifest = self.read_manifest()
        if "sha256" not in manifest or depends_on(manifest) is None:
            raise not_resumable(str(self.target.path))
        refuse_changed_file(self.output, manifest["sha256"])
        if "index" in manifest:
            refuse_changed_file(self.index, manifest.get("index_sha256"))
        return manifest

    @contextmanager
    def open_files(self) -> Iterator[None]:
        """Open the files that rows are appended to while the block runs."""
        with ExitStack() as stack:
            with self.errors():
                for name in self.target.row_files:
                    self.files[name] = stack.enter_context(self.appended(name))
            yield

    def appended(self, name: str) -> IO[bytes]:
        """Open a file behind what is committed of it: what is beyond is removed.

        Raises OutputError when that is not what was written.
        """
        path = self.folder / name
        size, expected = self.journal["parts"].get(name, (0, 0))
        crc = 0
        file = open(path, "ab", 0, opener=opener(None))  # noqa: SIM115 - `open_files` closes it
        with open(path, "rb") as written:
            for at in range(0, size, CHUNK):
                crc = crc32(written.read(min(CHUNK, size - at)), crc)
        if crc != expected:
            file.close()
            raise OutputError(
                f"{path}: the committed rows are not those that were written: their checksum "
                "differs from the journal's",
                f"the file was changed or cut, or the disk fails; {BEGIN_AGAIN}",
            )
        file.truncate(size)
        return file

    # --- rows ---

    def append(self, parts: Mapping[str, bytes]) -> None:
        """Add bytes to the files of the run, by their names."""
        for name, file in self.files.items():
            size, crc = self.journal["parts"].get(name, (0, 0))
            with self.errors():
                write_all(file, parts[name])
            self.journal["parts"][name] = size + len(parts[name]), crc32(parts[name], crc)

    def commit(self, state: Any) -> None:
        """Make all rows durable, with a JSON value for whoever resumes after them."""
        self.model.refuse_changes()
        with self.errors():
            for file in self.files.values():
                sync(file)
            self.journal |= {"state": state, "version": VERSION}
            with replacing(self.folder / JOURNAL, self.folder / SAVING) as file:
                file.write(json.dumps(self.journal).encode())

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Make the output and its manifest, which holds the ``summary``; remove the run folder.

        After a kill on the way the run is resumed from its last commit: commit before.
        """

    def errors(self) -> AbstractContextManager[None]:
        """Turn what the system refuses into an OutputError."""
        return explained(self.target.path)

    @contextmanager
    def new_file(self) -> Iterator[IO[bytes]]:
        """Yield the file that becomes the output; it is on the disk at the end."""
        new = self.folder / NEW_OUTPUT
        with self.errors(), open(new, "wb", opener=opener(None)) as file:
            with (
                packed(self.output, file) as inner,
                json_array(self.target.path, self.target.form, inner) as rows_file,
            ):
                yield rows_file
            sync(file)

    def publish_run(self, about: Mapping[str, Any]) -> None:
        """Publish the new output, its index and its manifest, and remove the run folder."""
        target = self.target
        with self.errors():
            manifest = {
                **about,
                "bertcli": __version__,
                "fingerprint": self.journal["fingerprint"],
                "inputs": self.journal["inputs"],
                "output": self.output.name,
                "format": target.form,
                "sha256": sha256(self.folder / NEW_OUTPUT),
            }
            self.journal["overwrite"] = True  # from here on, the output may be this run's own
            self.commit(self.state)
            for file in self.files.values():
                file.close()  # Windows moves no open file
            self.publish(
                index=(self.folder / NEW_INDEX).exists(),
                manifest=json_text(manifest) if target.manifest else None,
            )
            self.clear()

    def end(self) -> None:
        """Remove the files of a run that has committed nothing."""
        if not self.is_interrupted:
            self.clear()


def put_json(path: Path, value: Any) -> None:
    """Write a JSON file that is whole, on the disk, or as it was."""
    with whole_file(path) as file:
        file.write(json_text(value))


def json_text(value: Any) -> bytes:
    """Return what stands in a journal or manifest."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    return text.encode(errors="backslashreplace")  # half of a surrogate pair, as JSON escapes it
