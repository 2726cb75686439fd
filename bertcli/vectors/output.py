"""Vectors out: to a file that appears whole, from a run that may be killed at any instant.

    target = Target(Path("out.npy"), "npy", resume=True)
    with claimed(target, inputs) as files:
        sink = yield from begin(target, files, {"model": "..."}, inputs)
        with closing(sink):
            if not sink.done:
                for metas, vectors in work_after(sink.state):
                    sink.write(metas, vectors)
                    sink.commit({"records": ...})
                yield from sink.finishing({"options": ...})

A format holds vectors alone (NPY, NPZ, safetensors), or the other fields of the records as well
(JSONL, CSV, Parquet). All are made in the same way: the rows are spooled as raw float32 and JSON,
and the file is made from them at the end. So the bytes of the file depend on the rows alone, and
int8, which needs the range of every dimension over all rows, is nothing special. Float32 NPY is the
spool itself behind its header.

A record may have several rows (``many``), for its tokens or words. Beside vectors alone an index
says which: it is the spool of the other fields. Where a record has one row, the index has the ids.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.errors import OutputError, PrecisionError, UsageError
from bertcli.files.atomic import explained, move
from bertcli.files.jsonl import to_json
from bertcli.files.lock import locked
from bertcli.files.paths import sha256
from bertcli.files.system_calls import opener, sync, sync_folder
from bertcli.files.typed_json import as_json, read_bytes
from bertcli.files.versions import __version__
from bertcli.inference.progress import Hashed, Wrote
from bertcli.tokenizing.columns import PLACE
from bertcli.vectors.fingerprint import DIGEST_BYTES, Described, Inputs, refuse_changed
from bertcli.vectors.formats import (
    WITH_FIELDS,
    WRITERS,
    at_precision,
    make,
    put_header,
    refuse_long_ids,
)
from bertcli.vectors.journal import (
    BEGIN_AGAIN,
    Files,
    Journal,
    manifest_in,
    not_resumable,
    put_json,
    refuse_changes,
)
from bertcli.vectors.precision import RANGED, check_values, refuse_dense
from bertcli.vectors.spool import DIGEST, ROW, Row, Rows, VectorSpool

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames


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
    with locked(files.lock, target.path, files.modes().get("output")):
        yield files


def begin(
    target: Target, files: Files, fingerprint: Mapping[str, Any], inputs: Inputs
) -> Generator[Hashed, None, Sink]:
    """Return the sink for the rows of a file, where the run that it resumes had committed.

    ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which are
    hashed on the way: a run with another one, or other inputs, is not resumed. Raises OutputError
    also when the output, or the rest of a killed run, is there and neither ``resume`` nor
    ``overwrite`` is asked for. When the sink is closed before it is finished, what was committed
    stays for ``resume``; when nothing was, nothing stays.
    """
    now = as_json({**fingerprint, "format": target.form, "precision": target.precision})
    if target.update:
        with explained(target.path):
            return (yield from _begin_update(target, files, {**now, "update": True}, inputs))
    with explained(target.path):
        if target.overwrite:
            described = yield from inputs.described()  # fails before anything is removed
            files.clear(journal_first=True)
            return Sink(target, files, Journal(now, described, overwrite=True))
        journal = Journal.read(files.journal)
        if journal and target.resume:
            refuse_changes(str(target.path), journal.fingerprint, now)
            if files.output.exists() and not (journal.overwrite or journal.manifest):
                raise OutputError(
                    f"{target.path}: was created after the run was interrupted",
                    "move it away, or start over with --overwrite",
                )
            refuse_changed(str(target.path), journal.inputs, (yield from inputs.described()))
            if journal.manifest:
                _check_made(target, files, journal.manifest)
            return Sink(target, files, journal)
        if target.resume and files.output.exists():
            manifest = _unchanged(target, files, now)
            _same_inputs(target, manifest, (yield from inputs.described()))
            files.clear()  # of a run with --overwrite that was killed before its first journal
            return Sink(target, files, Journal(now), done=manifest)
        _refuse_remains(target, files)
        return Sink(target, files, Journal(now, (yield from inputs.described())))


def _begin_update(
    target: Target, files: Files, now: dict[str, Any], inputs: Inputs
) -> Generator[Hashed, None, Sink]:
    """Return the sink of a run that follows its input: resumed where it is the same run.

    Raises OutputError for an output that this program has not made, or not as it is.
    """
    described = yield from inputs.described()
    whole = all(file.get("sha256") for file in described)  # stdin and pipes have none
    journal = Journal.read(files.journal)
    if journal and journal.manifest:
        _end(target, files, journal)
    elif journal and not journal.fingerprint.get("update"):
        _refuse_remains(replace(target, resume=False), files)
    elif journal and whole and (journal.fingerprint, journal.inputs) == (now, described):
        return Sink(target, files, journal)
    files.clear(journal_first=True)
    if not files.output.exists():
        _refuse_remains(target, files)
    else:
        manifest = _unchanged(target, files)
        if whole and (manifest.get("fingerprint"), manifest.get("inputs")) == (now, described):
            return Sink(target, files, Journal(now), done=manifest)
    return Sink(target, files, Journal(now, described, overwrite=True))


def end_killed(path: Path) -> None:
    """Give an output its name and its manifest whose run had made it when it was killed.

    What cannot be ended stays as it is, and so does what is not made.
    """
    files = Files.of(path)
    if files.journal.exists() or files.lock.exists():
        with suppress(OutputError), explained(path), locked(files.lock, path):
            journal = Journal.read(files.journal)
            if journal and journal.manifest:
                _end(Target(path, ""), files, journal)


def _end(target: Target, files: Files, journal: Journal) -> None:
    """Give an output that is made its name, whatever it was made by."""
    form, precision = (str(journal.fingerprint.get(name)) for name in ("format", "precision"))
    updated = bool(journal.fingerprint.get("update"))
    made_as = replace(target, form=form, precision=precision, update=updated)
    _check_made(made_as, files, journal.manifest or {})
    Sink(made_as, files, journal)


def _refuse_remains(target: Target, files: Files) -> None:
    for path in () if target.resume else (files.journal, files.vectors):
        if path.exists():
            raise OutputError(
                f"{target.path}: an interrupted run left {path.name}",
                f"--resume continues it, {BEGIN_AGAIN}",
            )
    for path in (files.output, *([files.row_index] if target.indexed else [])):
        if path.exists():
            name = target.path if path == files.output else path
            raise OutputError(f"{name}: already exists", "give --overwrite, or another name")


def _unchanged(
    target: Target, files: Files, now: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the manifest of an output that is as it was made, ``now`` by this very command.

    Raises OutputError else.
    """
    manifest = dict(manifest_in(read_bytes(files.manifest, OutputError), str(files.manifest)))
    was, digest = manifest.get("fingerprint"), manifest.get("sha256")
    if isinstance(was, dict) and now is not None:
        refuse_changes(str(target.path), was, now)
    if not isinstance(was, dict) or not isinstance(digest, str):
        raise not_resumable(str(target.path))
    expected: dict[Path, Any] = {files.output: digest}
    if "index" in manifest or (target.many and target.indexed):
        expected[files.row_index] = manifest.get("index_sha256")
    for path, recorded in expected.items():
        if not path.is_file() or sha256(path) != recorded:  # a device may have no end
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 differs from the manifest's",
                "give --overwrite, or another name",
            )
    return manifest


def _same_inputs(target: Target, manifest: Mapping[str, Any], now: Sequence[Described]) -> None:
    was = manifest.get("inputs")
    if not isinstance(was, list) or not all(isinstance(file, dict) for file in was):
        raise OutputError(
            f"{target.path}: already exists, but its manifest has no sha256 of the inputs",
            "give --overwrite, or another name",
        )
    refuse_changed(str(target.path), was, now)


def _check_made(target: Target, files: Files, manifest: Mapping[str, Any]) -> None:
    """Raise OutputError when an output that has not its name yet was changed."""
    whole = whole_of(target, files)
    for path, digest in (
        (whole, manifest.get("sha256")),
        (index_of(target, files), manifest.get("index_sha256")),
    ):
        if digest and path.exists() and sha256(path) != digest:
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 differs from the journal's",
                BEGIN_AGAIN,
            )


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
    def lists_ids(self) -> bool:
        """Whether the ids of records go to an index, or into the archive."""
        return self.ids and not self.many and self.form not in WITH_FIELDS

    @property
    def indexed(self) -> bool:
        """Whether there may be an index beside the output: of rows and whose they are."""
        if self.update:
            return True
        if self.terms:
            return False
        beside_ids = self.form == "npz" and not (self.many or self.places)
        return (self.many or self.lists_ids) and not (beside_ids or self.form in WITH_FIELDS)

    @property
    def only_ids(self) -> bool:
        """Whether of all fields of a record its id alone is written, where it has one."""
        alone = self.terms is not None and self.form not in WITH_FIELDS
        return alone or (self.lists_ids and not self.every_id)

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


def whole_of(target: Target, files: Files) -> Path:
    """Return where the output is before it has its name: the spool becomes float32 NPY."""
    is_npy = target.form == "npy" == files.output.suffix.lower()[1:]
    return files.vectors if is_npy and target.precision == "float32" else files.whole


def index_of(target: Target, files: Files) -> Path:
    """Return where the index is before it has its name."""
    return files.new_index if target.update else files.metas


class Sink:
    """Where the rows of one output go.

    ``state`` is what the last commit was given, None on a fresh run; ``rows`` counts what is
    written; ``manifest`` is there once the output is.
    """

    def __init__(
        self, target: Target, files: Files, journal: Journal, *, done: dict[str, Any] | None = None
    ) -> None:
        self.target, self.files = target, files
        self.journal = replace(journal, modes={**journal.modes, **files.modes()})
        self.manifest, self.spool = done, None
        if journal.manifest:
            self._publish()
        elif not done:
            try:
                self.spool = VectorSpool(
                    files,
                    journal,
                    metas=target.many or target.lists_ids or target.form in WITH_FIELDS,
                    ids=target.lists_ids,
                    mode=self.journal.mode,
                )
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
        return self.spool.rows if self.spool else (self.manifest or {}).get("rows", 0)

    def _final_mode(self, name: str) -> int | None:
        """Who may read and write a published file: as before, and nobody who may not the output."""
        modes = self.journal.modes
        before = [modes[published] for published in (name, "output") if published in modes]
        return before[0] & before[-1] if before else None

    @property
    def _open(self) -> VectorSpool:
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
        if self.target.only_ids and self.target.form == "npz":
            refuse_long_ids(metas, self.rows)
        with explained(self.target.path), self._hopeless():
            check_values(vectors, self.target.precision)
            self._open.append(metas, vectors, counts)

    def commit(self, state: Any) -> None:
        """Make all rows durable, with a JSON value for whoever resumes after them."""
        with explained(self.target.path):
            self._open.sync()
            self._note(
                rows=self._open.rows,
                shape=tuple(self._open.shape),
                meta_bytes=self._open.meta_bytes,
                **self._open.sums,
                state=state,
            )

    def _note(self, **changes: Any) -> None:
        self.journal = replace(self.journal, **changes)
        self.journal.write(self.files.journal)

    def finishing(self, about: Mapping[str, Any], digests: bytes = b"") -> Iterator[Wrote]:
        """Make the output and its manifest, which holds ``about``, and remove the partial files.

        Yields how far that is. After a kill on the way the run is resumed from its last commit:
        commit before. ``digests`` are those of the texts of an update.
        """
        spool = self._open
        with explained(self.target.path), self._hopeless():
            many, ids = self.target.many, self.target.lists_ids and spool.meta_bytes > 0
            shape, terms = tuple(spool.shape), self.target.terms
            rows = Rows(self.files, spool.rows, shape, many, ids, terms=terms)
            rows, ranges = at_precision(rows, self.target.precision)
            spool.sync()
            spool.close()  # Windows moves no open file
            if self._whole == self.files.vectors:
                put_header(rows)
            else:
                for written in make(rows, self.target.form, self.journal.mode):
                    yield Wrote(written, rows.count)
            if self.target.update:
                self._write_index(rows, digests)
            self._note(manifest=as_json({**about, **self._made(rows, ranges)}))
            self._publish()

    def _write_index(self, rows: Rows, digests: bytes) -> None:
        """Write the ids of the rows, where any has one, and the digests of their texts."""
        metas = chain.from_iterable(rows.metas()) if rows.ids else ({} for _ in range(rows.count))
        with open(self.files.new_index, "wb", opener=opener(self.journal.mode)) as file:
            for row, meta in enumerate(metas):
                digest = digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES].hex()
                line = {ROW: row, **meta, DIGEST: digest}
                file.write(to_json(line).encode())
            sync(file)

    @contextmanager
    def _hopeless(self) -> Iterator[None]:
        """Leave nothing to resume where these rows can never be written in the precision asked."""
        try:
            yield
        except PrecisionError:
            self._open.close()
            self.files.clear()
            raise

    @property
    def _whole(self) -> Path:
        return whole_of(self.target, self.files)

    def _made(self, rows: Rows, ranges: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the manifest says of the output itself."""
        shape, dtype = rows.kind()
        return {
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
            "sha256": sha256(self._whole),
            **({"ranges": ranges} if ranges else {}),
            **self._indexed(rows),
        }

    def _indexed(self, rows: Rows) -> dict[str, Any]:
        """Return what the manifest says of the index, where there is one."""
        if not (self.target.update or (self.target.indexed and (rows.many or rows.ids))):
            return {}
        index = index_of(self.target, self.files)
        return {"index": self.files.row_index.name, "index_sha256": sha256(index)}

    def _publish_index(self) -> None:
        """Give the index its name before the output has: both there are of one run."""
        files = self.files
        if "index" not in (self.journal.manifest or {}):
            if self.journal.overwrite:
                files.row_index.unlink(missing_ok=True)  # that of an output which is replaced
        elif (index := index_of(self.target, files)).exists():
            files.output.unlink(missing_ok=True)  # likewise
            self._move(index, "row_index")

    def _publish(self) -> None:
        """Give the output its name. Done again after a kill, it ends in the same."""
        files = self.files
        files.manifest.unlink(missing_ok=True)  # that of an output which is replaced
        self._publish_index()
        if self._whole.exists():
            self._move(self._whole, "output")
            sync_folder(files.output.parent)
        elif not files.output.exists():
            raise OutputError(f"{self.target.path}: was removed", "start over with --overwrite")
        if self.target.manifest:
            put_json(files.manifest, self.journal.manifest, self._final_mode("manifest"))
        files.clear()
        self.spool, self.manifest = None, self.journal.manifest

    def _move(self, path: Path, name: str) -> None:
        """Give a file that is whole the name of a published one, and its mode."""
        move(path, getattr(self.files, name), self._final_mode(name))

    def close(self) -> None:
        """Close the files; they stay where something is committed."""
        if self.spool:
            self.spool.close()
            self._clear()

    def _clear(self) -> None:
        """Remove the partial files of a run that has committed nothing."""
        if not self.files.journal.exists():
            self.files.clear()
