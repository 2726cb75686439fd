"""Vectors out: to a file that appears whole, from a run that may be killed at any instant.

    with open_vectors(Target(Path("out.npy"), "npy", resume=True), {"model": "..."}) as sink:
        if not sink.done:
            for metas, vectors in work_after(sink.state):
                sink.write(metas, vectors)
                sink.commit({"records": ...})
            sink.finish({"options": ...})

A format holds vectors alone (NPY, NPZ, safetensors), or the other fields of the records as well
(JSONL, CSV, Parquet). All are made in the same way: the rows are spooled as raw float32 and JSON,
and the file is made from them at the end. So the bytes of the file depend on the rows alone, and
int8, which needs the range of every dimension over all rows, is nothing special. Float32 NPY is the
spool itself behind its header.

A record may have several rows (``many``), for its tokens or words. Beside vectors alone an index
says which: it is the spool of the other fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli import __version__
from bertcli.errors import OutputError
from bertcli.hub import sha256
from bertcli.vectors.formats import (
    WITH_FIELDS,
    at_precision,
    is_spool,
    make,
    put_header,
)
from bertcli.vectors.journal import (
    Files,
    Journal,
    as_json,
    explained,
    put_json,
    refuse_changes,
    sync_folder,
)
from bertcli.vectors.lock import locked
from bertcli.vectors.spool import Row, Rows, Spool
from bertcli.vectors.target import Target

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def open_vectors(target: Target, fingerprint: Mapping[str, Any]) -> Iterator[Sink]:
    """Yield the sink for the rows of a file, where the run that it resumes had committed.

    ``fingerprint`` is what the bytes depend on (model, options, input): a run with another one is
    not resumed. Raises OutputError also when the output, or the rest of a killed run, is there and
    neither ``resume`` nor ``overwrite`` is asked for, or when another process writes it.

    When the block is left before ``finish``, what was committed stays for ``resume``; when nothing
    was, nothing stays.
    """
    target.check()
    files = Files.of(target.path)
    now = as_json({**fingerprint, "format": target.form, "precision": target.precision})
    with locked(files.lock, target.path):
        sink = _begin(target, files, now)
        try:
            yield sink
        finally:
            sink.close()


def _begin(target: Target, files: Files, now: dict[str, Any]) -> Sink:
    """Find out what is there: an unfinished run, the finished output, or nothing."""
    with explained(target.path):
        if target.overwrite:
            files.journal.unlink(missing_ok=True)  # before the data that it speaks of
            files.clear()
            return Sink(target, files, Journal(now, overwrite=True))
        journal = Journal.read(files.journal)
        if not target.resume:
            _refuse_remains(target, files)
        elif journal:
            refuse_changes(str(target.path), journal.fingerprint, now)
            if files.output.exists() and not (journal.overwrite or journal.manifest):
                raise OutputError(
                    f"{target.path}: came to be while the run to resume was not at work",
                    "move it away, or begin again with --overwrite",
                )
            return Sink(target, files, journal)
        elif files.output.exists():
            return Sink(target, files, Journal(now), done=_finished(target, files, now))
        return Sink(target, files, Journal(now))


def _refuse_remains(target: Target, files: Files) -> None:
    for path in (files.journal, files.vectors):
        if path.exists():
            raise OutputError(
                f"{target.path}: an interrupted run left {path.name}",
                "--resume goes on with it, --overwrite begins again",
            )
    for path in (files.output, *([files.row_index] if target.indexed else [])):
        if path.exists():
            name = target.path if path == files.output else path
            raise OutputError(f"{name}: exists already", "give --overwrite, or another name")


def _finished(target: Target, files: Files, now: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of an output that this very command made. Raises OutputError else."""
    try:
        manifest: dict[str, Any] = json.loads(files.manifest.read_bytes())
        was, digest = manifest["fingerprint"], manifest["sha256"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise OutputError(
            f"{target.path}: exists already, and no manifest says what made it",
            "give --overwrite, or another name",
        ) from None
    refuse_changes(str(target.path), was, now)
    made = {files.output: digest}
    if target.indexed:
        made[files.row_index] = manifest.get("index_sha256")
    for path, expected in made.items():
        if not path.exists() or sha256(path) != expected:
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 is not the manifest's",
                "give --overwrite, or another name",
            )
    return manifest


class Sink:
    """Where the rows of one output go.

    ``state`` is what the last commit was given, None on a fresh run; ``rows`` counts what is
    written; ``manifest`` is there once the output is.
    """

    def __init__(
        self,
        target: Target,
        files: Files,
        journal: Journal,
        *,
        done: dict[str, Any] | None = None,
    ) -> None:
        self.target, self.files = target, files
        self.journal = journal
        self.manifest, self.spool = done, None
        if journal.manifest:
            self._publish()
        elif not done:
            self.spool = Spool(files, journal, metas=target.many or target.form in WITH_FIELDS)

    @property
    def done(self) -> bool:
        """Whether the output is complete: there is nothing to write."""
        return self.manifest is not None

    @property
    def state(self) -> Any:
        """What the last commit was given."""
        return self.journal.state

    @property
    def rows(self) -> int:
        """The number of rows written."""
        return self.spool.rows if self.spool else (self.manifest or {}).get("rows", 0)

    @property
    def _open(self) -> Spool:
        if self.spool is None:
            raise ValueError(f"{self.target.path} is complete")
        return self.spool

    def write(
        self, metas: Sequence[Row], vectors: np.ndarray, counts: Sequence[int] | None = None
    ) -> None:
        """Add rows: vectors float32 [n, D...], and as many records (id, n_tokens, ...).

        Where a record may have several rows, ``counts`` says how many each has.
        """
        if (counts is not None) != self.target.many:
            raise ValueError(f"counts {counts}, many {self.target.many}")
        with explained(self.target.path):
            self._open.append(metas, vectors, counts)

    def commit(self, state: Any) -> None:
        """Make all rows durable, with a JSON value for whoever resumes after them."""
        with explained(self.target.path):
            self._open.sync()
            self._note(
                rows=self._open.rows,
                shape=tuple(self._open.shape),
                meta_bytes=self._open.meta_bytes,
                state=state,
            )

    def _note(self, **changes: Any) -> None:
        self.journal = replace(self.journal, **changes)
        self.journal.write(self.files.journal)

    def finish(
        self, about: Mapping[str, Any], progress: Callable[[int], None] = lambda rows: None
    ) -> None:
        """Make the output and its manifest, which holds ``about``, and remove the partial files.

        After a kill on the way the run is resumed from its last commit: commit before. ``progress``
        is told how many rows were written since it was told last.
        """
        spool = self._open
        with explained(self.target.path):
            many = self.target.many
            rows = Rows(self.files, spool.rows, tuple(spool.shape), many, progress=progress)
            rows, ranges = at_precision(rows, self.target.precision)
            spool.sync()
            spool.close()  # Windows moves no open file
            if self._whole == self.files.vectors:
                put_header(rows)
            else:
                make(rows, self.target.form)
            self._note(manifest=as_json({**about, **self._made(rows, ranges)}))
            self._publish()

    @property
    def _whole(self) -> Path:
        """The output before it has its name."""
        spooled = is_spool(self.files, self.target.form, self.target.precision)
        return self.files.vectors if spooled else self.files.whole

    def _made(self, rows: Rows, ranges: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the manifest says of the output itself."""
        shape, dtype = rows.kind()
        return {
            "bertcli": __version__,
            "fingerprint": self.journal.fingerprint,
            "output": self.files.output.name,
            "format": self.target.form,
            "precision": self.target.precision,
            "rows": rows.count,
            "shape": shape,
            "dtype": dtype.name,
            "sha256": sha256(self._whole),
            **({"ranges": ranges} if ranges else {}),
            **self._indexed(),
        }

    def _indexed(self) -> dict[str, Any]:
        """Return what the manifest says of the index, where there is one."""
        if not self.target.indexed:
            return {}
        return {"index": self.files.row_index.name, "index_sha256": sha256(self.files.metas)}

    def _publish_index(self) -> None:
        """Give the index its name before the output has: both there are of one run."""
        files = self.files
        if not self.target.indexed:
            if self.journal.overwrite:
                files.row_index.unlink(missing_ok=True)  # that of an output which is replaced
        elif files.metas.exists():
            files.output.unlink(missing_ok=True)  # likewise
            os.replace(files.metas, files.row_index)

    def _publish(self) -> None:
        """Give the output its name. Done again after a kill, it ends in the same."""
        files = self.files
        files.manifest.unlink(missing_ok=True)  # that of an output which is replaced
        self._publish_index()
        if self._whole.exists():
            os.replace(self._whole, files.output)
            sync_folder(files.output.parent)
        elif not files.output.exists():
            raise OutputError(f"{self.target.path}: is gone", "begin again with --overwrite")
        if self.target.manifest:
            put_json(files.manifest, self.journal.manifest)
        files.clear()
        self.spool, self.manifest = None, self.journal.manifest

    def close(self) -> None:
        """Close the files; they stay where something is committed."""
        if self.spool:
            self.spool.close()
            if not self.files.journal.exists():
                self.files.clear()
