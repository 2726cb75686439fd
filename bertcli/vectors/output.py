"""Vectors out: to a file that appears whole, from a run that may be killed at any instant.

    target = Target(Path("out.npy"), "npy", resume=True)
    with claimed(target, inputs) as files:
        sink = begin(target, files, {"model": "..."}, inputs)
        with closing(sink):
            if not sink.done:
                for metas, vectors in work_after(sink.state):
                    sink.write(metas, vectors)
                    sink.commit({"records": ...})
                yield from sink.finishing({"options": ...})

A format holds vectors alone (NPY, NPZ, safetensors), or the other fields of the records as well
(JSONL, CSV, Parquet). All are made in the same way: the rows are spooled as raw float32 and JSON,
and the file is made from them at the end. So the bytes of the file depend on the rows alone, and
int8, which needs the range of every dimension over all rows, is nothing special.

A record may have several rows (``many``), for its tokens or words. Beside vectors alone an index
says which; where a record has one row, the index has its id, and in an output that follows its
input the digest of its text.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.errors import BertcliError, OutputError, PrecisionError, UsageError
from bertcli.files.atomic import explained, move
from bertcli.files.lock import locked
from bertcli.files.paths import beside, sha256
from bertcli.files.system_calls import sync_folder
from bertcli.files.typed_json import as_json, read_bytes
from bertcli.files.versions import __version__
from bertcli.inference.progress import Wrote
from bertcli.tokenizing.columns import PLACE
from bertcli.vectors.fingerprint import Inputs, refuse_changed
from bertcli.vectors.formats import WITH_FIELDS, WRITERS, at_precision, make, refuse_long_ids
from bertcli.vectors.journal import (
    BEGIN_AGAIN,
    FIELDS,
    INDEX,
    MAKING,
    VECTORS,
    WHOLE,
    Files,
    Journal,
    manifest_in,
    not_resumable,
    put_json,
    refuse_changes,
)
from bertcli.vectors.precision import RANGED, check_values, refuse_dense
from bertcli.vectors.spool import DIGEST, ID, ROW, Row, Rows, Spool, placed

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames

ANOTHER = "give --overwrite, or another name"


@contextmanager
def claimed(target: Target, inputs: Inputs) -> Iterator[Files]:
    """Yield the output and the files next to it, locked against other processes meanwhile.

    Raises OutputError when another process writes it, or when an input is one of the files that
    are written or removed.
    """
    with explained(target.path):
        target.check()
    files = Files.of(target.path)
    inputs.refuse([target.path, *files.own])
    for path in files.own:
        if path.is_dir():
            raise OutputError(
                f"{path}: is a folder, and this run writes a file there", "move it away"
            )
    if files.folder.is_symlink() or files.folder.is_file():
        raise OutputError(f"{files.folder}: is not the folder of a run", "move it away")
    with locked(files.lock, target.path, files.mode()):
        yield files


def begin(target: Target, files: Files, fingerprint: Mapping[str, Any], inputs: Inputs) -> Sink:
    """Return the sink for the rows of a file, where the run that it resumes had committed.

    ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which are
    hashed: a run with another one, or other inputs, is not resumed; an update starts
    over. Raises OutputError also when the output, or the rest of a killed run, is there and nothing
    says what to do with it, and for an output to update that this program has not made, or not as
    it is. When the sink is closed before it is finished, what was committed stays for ``resume``;
    when nothing was, nothing stays.
    """
    now = as_json({**fingerprint, "format": target.form, "precision": target.precision})
    now |= {"update": True} if target.update else {}
    goes_on, name = target.resume or target.update, str(target.path)
    with explained(target.path):
        journal = None if target.overwrite else Journal.read(files.journal)
        if journal and journal.manifest and goes_on:
            end(files, journal, manifest=target.manifest)
            journal = None
        of_another = journal and target.update and not journal.fingerprint.get("update")
        older = beside(files.output, ".journal.json")  # of version 0.1.0
        if of_another or (journal and not goes_on) or (older.exists() and not target.overwrite):
            left = (files.folder if journal else older).name
            hint = f"--resume continues it, {BEGIN_AGAIN}" if journal else BEGIN_AGAIN
            raise OutputError(f"{name}: an interrupted run left {left}", hint)
        made = not journal and goes_on and files.output.exists()
        if not (made or journal or target.overwrite):
            for path in (files.output, files.row_index):
                if path.exists():
                    shown = name if path == files.output else path
                    raise OutputError(f"{shown}: already exists", ANOTHER)
        manifest = _unchanged(files, name) if made else {}
        before = journal.fingerprint if journal else manifest.get("fingerprint", now)
        if not target.update:
            refuse_changes(name, before, now)
        if journal and files.output.exists() and not journal.overwrite:
            raise OutputError(
                f"{name}: was created after the run was interrupted",
                "move it away, or start over with --overwrite",
            )
        described = inputs.described()  # fails before anything is removed
        read = journal.inputs if journal else manifest.get("inputs", described)
        if target.update:  # stdin and pipes have no sha256
            same = (before, read) == (now, described) and all(file.get("sha256") for file in read)
            journal, manifest = (journal, manifest) if same else (None, {})
        else:
            refuse_changed(name, read, described)
        if journal:
            return Sink(target, files, journal)
        older.unlink(missing_ok=True)
        files.clear()  # of a run that was killed before its first journal
        fresh = Journal(now, described, target.overwrite or target.update, files.mode())
        return Sink(target, files, fresh, done=manifest or None)


def _unchanged(files: Files, name: str) -> dict[str, Any]:
    """Return the manifest of an output that is as it was made. Raises OutputError else."""
    manifest = manifest_in(read_bytes(files.manifest, OutputError))
    if not isinstance(manifest.get("fingerprint"), dict) or "sha256" not in manifest:
        raise not_resumable(name)
    inputs = manifest.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(file, dict) for file in inputs):
        raise not_resumable(name)
    refuse_changed_file(files.output, manifest["sha256"])
    if "index" in manifest:
        refuse_changed_file(files.row_index, manifest.get("index_sha256"))
    return manifest


def refuse_changed_file(
    path: Path,
    digest: str | None,
    error: type[BertcliError] = OutputError,
    hint: str = ANOTHER,
) -> None:
    """Raise an error for a file that is not the one of which a manifest has the sha256."""
    if not path.is_file() or sha256(path) != digest:  # a device may have no end
        raise error(
            f"{path}: was changed after it was made: its sha256 differs from the manifest's", hint
        )


def end(files: Files, journal: Journal, *, manifest: bool = True) -> None:
    """Publish what a killed run had made. Raises OutputError where it was changed since."""
    made = journal.manifest or {}
    for part, digest in ((WHOLE, made.get("sha256")), (INDEX, made.get("index_sha256"))):
        if digest and (files.folder / part).exists():
            refuse_changed_file(files.folder / part, digest)
    publish(files, journal, manifest=manifest)


def end_killed(path: Path) -> None:
    """Give an output its name and its manifest whose run had made it when it was killed.

    What cannot be ended stays as it is, and so does what is not made.
    """
    files = Files.of(path)
    if files.journal.exists():
        with suppress(OutputError), explained(path), locked(files.lock, path):
            journal = Journal.read(files.journal)
            if journal and journal.manifest:
                end(files, journal)


def publish(files: Files, journal: Journal, *, manifest: bool = True) -> None:
    """Give what is made its name. Done again after a kill, it ends in the same."""
    whole, index, made = files.folder / WHOLE, files.folder / INDEX, journal.manifest or {}
    files.manifest.unlink(missing_ok=True)  # that of an output which is replaced
    if "index" not in made:
        if journal.overwrite:
            files.row_index.unlink(missing_ok=True)  # likewise
    elif index.exists():  # before the output has its name: both there are of one run
        files.output.unlink(missing_ok=True)
        move(index, files.row_index, journal.mode)
    if whole.exists():
        move(whole, files.output, journal.mode)
        sync_folder(files.output.parent)
    elif not files.output.exists():
        raise OutputError(f"{files.output}: was removed", "start over with --overwrite")
    if manifest:
        put_json(files.manifest, made, journal.mode, files.folder / MAKING)
    files.clear()


@dataclass(frozen=True)
class Target:
    """An output file and how it is to be made."""

    path: Path
    form: str
    precision: str = "float32"
    resume: bool = False
    update: bool = False  # what is there is replaced, and an index has the digests of texts
    overwrite: bool = False
    manifest: bool = True
    many: bool = False  # whether a record may have several rows
    ids: bool = False  # whether vectors alone have the ids of their records beside them,
    every_id: bool = False  # also where no record has one: then it is its number
    places: tuple[str, ...] = ()  # carried fields that the index has beside the ids
    terms: TermNames | None = None  # whether the rows of a record are weights of these

    @property
    def with_fields(self) -> bool:
        """Whether the format holds more than vectors."""
        return self.form in WITH_FIELDS

    @property
    def only_ids(self) -> bool:
        """Whether of all fields of a record its id alone is written, where it has one."""
        one_row = self.ids and not self.many and not self.every_id
        return not self.with_fields and (one_row or self.terms is not None)

    @property
    def parts(self) -> list[str]:
        """The files that rows are spooled to."""
        indexed = self.update or ((self.many or self.ids) and not self.with_fields)
        return [VECTORS, *[FIELDS] * self.with_fields, *[INDEX] * indexed]

    def indexed(self, *, named: bool) -> bool:
        """Tell whether there is an index beside the output: of rows and whose they are."""
        if self.update or self.terms or self.with_fields:
            return self.update
        in_archive = self.form == "npz" and not self.places
        return self.many or (self.ids and named and not in_archive)

    def check(self) -> None:
        """Raise OutputError or UsageError for what can never be written."""
        if self.resume and self.overwrite:
            raise UsageError("--resume cannot be combined with --overwrite")
        self._check_update()
        if self.form not in WRITERS:
            raise OutputError(f"vectors cannot be written as {self.form}", ", ".join(WRITERS))
        if self.terms:
            refuse_dense(self.form)
        if self.many and self.form == "csv":
            raise UsageError(
                "csv holds one vector per row, and each text has several",
                "use -f jsonl, parquet or npy",
            )
        if self.path.is_dir():
            raise OutputError(f"{self.path}: is a folder", "name a file in it")
        if os.path.islink(os.path.realpath(self.path)):
            raise OutputError(f"{self.path}: circular symlink")
        if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
            raise OutputError(
                f"{self.path}: is a device or pipe, where nothing can be resumed",
                "write JSONL or CSV to stdout",
            )
        if not self.path.parent.is_dir():
            raise OutputError(
                f"{self.path}: folder {self.path.parent} not found", "create the folder first"
            )
        if self.form == "parquet":
            from bertcli.files import parquet  # noqa: F401 - is pyarrow installed?

    def _check_update(self) -> None:
        if not self.update:
            return
        if self.overwrite or not self.manifest:
            other = "--overwrite" if self.overwrite else "--no-manifest"
            raise UsageError(f"--update cannot be combined with {other}")
        if self.many or PLACE[0] in self.places:
            raise UsageError("--update needs one vector per text")
        if self.precision in RANGED:
            raise UsageError(
                f"--update cannot be combined with --precision {self.precision}",
                "its ranges are those of all texts together; use float32, float16 or binary",
            )


class Sink:
    """Where the rows of one output go.

    ``state`` is what the last commit was given, None on a fresh run; ``manifest`` is there once the
    output is.
    """

    def __init__(
        self, target: Target, files: Files, journal: Journal, *, done: dict[str, Any] | None = None
    ) -> None:
        self.target, self.files, self.journal, self.manifest = target, files, journal, done
        if done:
            return
        try:
            files.folder.mkdir(0o700, exist_ok=True)
            self.spool = Spool(files.folder, journal, target.parts)
        except OSError:
            self._clear()
            raise

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
        return self.spool.rows

    def write(
        self,
        metas: Sequence[Row],
        vectors: np.ndarray,
        counts: Sequence[int] | None = None,
        digests: Sequence[bytes] = (),
    ) -> None:
        """Add rows: vectors float32 [n, D...], and as many records (id, n_tokens, ...).

        Where a record may have several rows, ``counts`` says how many each has. ``digests`` are
        those of the texts of an update.
        """
        target, index = self.target, metas
        if target.only_ids and target.form == "npz":
            refuse_long_ids(metas, self.rows)
        if any(metas) and not self.journal.named:
            self.journal = replace(self.journal, named=True)
        if counts is not None:
            index = metas = [*placed(metas, counts, self.rows)]
        elif INDEX in target.parts:
            own = (
                [{}] * len(metas) if target.with_fields else [{ID: None, **meta} for meta in metas]
            )
            index = [{ROW: row, **ids} for row, ids in enumerate(own, self.rows)]
        if target.update:
            rows = zip(index, digests, strict=True)
            index = [{**row, DIGEST: digest.hex()} for row, digest in rows]
        with explained(target.path), self._hopeless():
            check_values(vectors, target.precision)
            self.spool.append(vectors, {FIELDS: metas, INDEX: index})

    def commit(self, state: Any) -> None:
        """Make all rows durable, with a JSON value for whoever resumes after them."""
        with explained(self.target.path):
            self._note(state=state, **self.spool.committed())

    def _note(self, **changes: Any) -> None:
        self.journal = replace(self.journal, **changes)
        self.journal.write(self.files.journal)

    def finishing(self, about: Mapping[str, Any]) -> Iterator[Wrote]:
        """Make the output and its manifest, which holds ``about``, and remove the partial files.

        Yields how far that is. After a kill on the way the run is resumed from its last commit:
        commit before.
        """
        target, files = self.target, self.files
        with explained(target.path), self._hopeless():
            ids = target.ids and self.journal.named and bool(target.terms or not target.many)
            rows = Rows(
                files.folder, self.rows, self.spool.shape, target.many, ids, terms=target.terms
            )
            rows, ranges = at_precision(rows, target.precision)
            self.spool.committed()
            self.spool.close()  # Windows moves no open file
            for written in make(rows, target.form, files.folder / WHOLE, files.output):
                yield Wrote(written, rows.count)
            self._note(manifest=as_json({**about, **self._made(rows, ranges)}))
            publish(files, self.journal, manifest=target.manifest)
            self.manifest = self.journal.manifest

    @contextmanager
    def _hopeless(self) -> Iterator[None]:
        """Leave nothing to resume where these rows can never be written in the precision asked."""
        try:
            yield
        except PrecisionError:
            self.spool.close()
            self.files.clear()
            raise

    def _made(self, rows: Rows, ranges: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the manifest says of the output itself."""
        shape, dtype = rows.kind()
        made = {
            "bertcli": __version__,
            "fingerprint": self.journal.fingerprint,
            "inputs": self.journal.inputs,
            "output": self.files.output.name,
            "format": self.target.form,
            "precision": self.target.precision,
            "rows": shape[0],
            **({"terms": rows.count} if rows.terms else {}),
            "shape": shape,
            "dtype": dtype.name,
            "sha256": sha256(self.files.folder / WHOLE),
            **({"ranges": ranges} if ranges else {}),
        }
        if self.target.indexed(named=self.journal.named):
            made["index"] = self.files.row_index.name
            made["index_sha256"] = sha256(self.files.folder / INDEX)
        return made

    def close(self) -> None:
        """Close the files; they stay where something is committed."""
        if not self.done:
            self.spool.close()
            self._clear()

    def _clear(self) -> None:
        """Remove the partial files of a run that has committed nothing."""
        if not self.files.journal.exists():
            self.files.clear()
