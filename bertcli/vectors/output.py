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
says which: it is the spool of the other fields. Where a record has one row, the index has the ids.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import OutputError, PrecisionError
from bertcli.files.atomic import explained, move
from bertcli.files.lock import locked
from bertcli.files.system_calls import sync_folder
from bertcli.files.typed_json import BadJsonError, as_json, parse, read_bytes
from bertcli.files.versions import __version__
from bertcli.hub import sha256
from bertcli.inference.progress import Hashed, Wrote
from bertcli.vectors.formats import (
    WITH_FIELDS,
    at_precision,
    is_spool,
    make,
    put_header,
    refuse_long_ids,
)
from bertcli.vectors.input_hashes import Described, Inputs, refuse_changed
from bertcli.vectors.journal import (
    BEGIN_AGAIN,
    Files,
    Journal,
    put_json,
    refuse_changes,
)
from bertcli.vectors.precision import check_values
from bertcli.vectors.spool import Row, Rows, VectorSpool
from bertcli.vectors.target import Target

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def open_vectors(target: Target, fingerprint: Mapping[str, Any]) -> Iterator[Sink]:
    """Yield the sink of a run without inputs; see ``claimed`` and ``begin``."""
    with claimed(target) as files:
        start = begin(target, files, fingerprint)
        try:
            next(start)
        except StopIteration as end:
            with closing(end.value) as sink:
                yield sink


@contextmanager
def claimed(target: Target, inputs: Inputs | None = None) -> Iterator[Files]:
    """Yield the output and the files beside it, which nobody else writes while the block runs.

    Raises OutputError when another process writes it, or when an input is one of the files that
    are written or removed.
    """
    with explained(target.path):
        target.check()
    files, inputs = Files.of(target.path), inputs or Inputs()
    inputs.refuse([target.path, *files.own])
    for path in files.own:
        if path.is_dir():
            raise OutputError(
                f"{path}: is a folder, and this run writes a file there", "move it away"
            )
    with locked(files.lock, target.path, files.modes().get("output")):
        yield files


def begin(
    target: Target, files: Files, fingerprint: Mapping[str, Any], inputs: Inputs | None = None
) -> Generator[Hashed, None, Sink]:
    """Return the sink for the rows of a file, where the run that it resumes had committed.

    ``fingerprint`` is what the bytes depend on (model, options) beside the ``inputs``, which are
    hashed on the way: a run with another one, or other inputs, is not resumed. Raises OutputError
    also when the output, or the rest of a killed run, is there and neither ``resume`` nor
    ``overwrite`` is asked for. When the sink is closed before it is finished, what was committed
    stays for ``resume``; when nothing was, nothing stays.
    """
    inputs = inputs or Inputs()
    now = as_json({**fingerprint, "format": target.form, "precision": target.precision})
    with explained(target.path):
        if target.overwrite:
            described = yield from inputs.described()  # fails before all is gone
            files.journal.unlink(missing_ok=True)  # before the data that it speaks of
            files.clear()
            return Sink(target, files, Journal(now, described, overwrite=True))
        journal = Journal.read(files.journal)
        if journal and target.resume:
            refuse_changes(str(target.path), journal.fingerprint, now)
            if files.output.exists() and not (journal.overwrite or journal.manifest):
                raise OutputError(
                    f"{target.path}: came to be while the run to resume was not at work",
                    "move it away, or begin again with --overwrite",
                )
            refuse_changed(str(target.path), journal.inputs, (yield from inputs.described()))
            if journal.manifest:
                _check_made(target, files, journal.manifest)
            return Sink(target, files, journal)
        if target.resume and files.output.exists():
            made = _finished(target, files, now)
            _same_inputs(target, made, (yield from inputs.described()))
            return Sink(target, files, Journal(now), done=made)
        _refuse_remains(target, files)
        return Sink(target, files, Journal(now, (yield from inputs.described())))


def _refuse_remains(target: Target, files: Files) -> None:
    for path in () if target.resume else (files.journal, files.vectors):
        if path.exists():
            raise OutputError(
                f"{target.path}: an interrupted run left {path.name}",
                f"--resume goes on with it, {BEGIN_AGAIN}",
            )
    for path in (files.output, *([files.row_index] if target.indexed else [])):
        if path.exists():
            name = target.path if path == files.output else path
            raise OutputError(f"{name}: exists already", "give --overwrite, or another name")


def _finished(target: Target, files: Files, now: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of an output that this very command made. Raises OutputError else."""
    try:
        manifest = parse(read_bytes(files.manifest, OutputError) or b"")
    except BadJsonError:
        manifest = None
    made = manifest if isinstance(manifest, dict) else {}
    was, digest = made.get("fingerprint"), made.get("sha256")
    if not isinstance(was, dict) or not isinstance(digest, str):
        raise OutputError(
            f"{target.path}: exists already, and no manifest says what made it",
            "give --overwrite, or another name",
        )
    refuse_changes(str(target.path), was, now)
    expected: dict[Path, Any] = {files.output: digest}
    if "index" in made or (target.many and target.indexed):
        expected[files.row_index] = made.get("index_sha256")
    for path, wanted in expected.items():
        if not path.exists() or sha256(path) != wanted:
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 is not the manifest's",
                "give --overwrite, or another name",
            )
    return made


def _same_inputs(target: Target, made: Mapping[str, Any], now: Sequence[Described]) -> None:
    was = made.get("inputs")
    if not isinstance(was, list) or not all(isinstance(one, dict) for one in was):
        raise OutputError(
            f"{target.path}: exists already, and its manifest does not name the sha256 of its "
            "inputs",
            "give --overwrite, or another name",
        )
    refuse_changed(str(target.path), was, now)


def _check_made(target: Target, files: Files, made: Mapping[str, Any]) -> None:
    """Raise OutputError when an output that has not its name yet was changed."""
    whole = _whole_of(target, files)
    for path, digest in ((whole, made.get("sha256")), (files.metas, made.get("index_sha256"))):
        if digest and path.exists() and sha256(path) != digest:
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 differs from the journal's",
                BEGIN_AGAIN,
            )


def _whole_of(target: Target, files: Files) -> Path:
    """Return where the output is before it has its name."""
    return files.vectors if is_spool(files, target.form, target.precision) else files.whole


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
        known = [modes[one] for one in (name, "output") if one in modes]
        return known[0] & known[-1] if known else None

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
        if self.target.lists_ids and self.target.form == "npz":
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

    def finish(self, about: Mapping[str, Any]) -> None:
        """Make the output and its manifest, which holds ``about``, and remove the partial files.

        After a kill on the way the run is resumed from its last commit: commit before.
        """
        for _ in self.finishing(about):
            pass

    def finishing(self, about: Mapping[str, Any]) -> Iterator[Wrote]:
        """Finish, and yield how far that is."""
        spool = self._open
        with explained(self.target.path), self._hopeless():
            many, ids = self.target.many, self.target.lists_ids and spool.meta_bytes > 0
            rows = Rows(self.files, spool.rows, tuple(spool.shape), many, ids)
            rows, ranges = at_precision(rows, self.target.precision)
            spool.sync()
            spool.close()  # Windows moves no open file
            if self._whole == self.files.vectors:
                put_header(rows)
            else:
                for written in make(rows, self.target.form, self.journal.mode):
                    yield Wrote(written, rows.count)
            self._note(manifest=as_json({**about, **self._made(rows, ranges)}))
            self._publish()

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
        return _whole_of(self.target, self.files)

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
            "rows": rows.count,
            "shape": shape,
            "dtype": dtype.name,
            "sha256": sha256(self._whole),
            **({"ranges": ranges} if ranges else {}),
            **self._indexed(rows),
        }

    def _indexed(self, rows: Rows) -> dict[str, Any]:
        """Return what the manifest says of the index, where there is one."""
        if not (self.target.indexed and (rows.many or rows.ids)):
            return {}
        return {"index": self.files.row_index.name, "index_sha256": sha256(self.files.metas)}

    def _publish_index(self) -> None:
        """Give the index its name before the output has: both there are of one run."""
        files = self.files
        if "index" not in (self.journal.manifest or {}):
            if self.journal.overwrite:
                files.row_index.unlink(missing_ok=True)  # that of an output which is replaced
        elif files.metas.exists():
            files.output.unlink(missing_ok=True)  # likewise
            self._move(files.metas, "row_index")

    def _publish(self) -> None:
        """Give the output its name. Done again after a kill, it ends in the same."""
        files = self.files
        files.manifest.unlink(missing_ok=True)  # that of an output which is replaced
        self._publish_index()
        if self._whole.exists():
            self._move(self._whole, "output")
            sync_folder(files.output.parent)
        elif not files.output.exists():
            raise OutputError(f"{self.target.path}: is gone", "begin again with --overwrite")
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
