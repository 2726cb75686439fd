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
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertcli.errors import OutputError
from bertcli.files.atomic import explained
from bertcli.files.digests import sha256
from bertcli.files.lock import locked
from bertcli.files.typed_json import as_json, read_bytes
from bertcli.inference.progress import Hashed
from bertcli.vectors.input_hashes import Described, Inputs, refuse_changed
from bertcli.vectors.journal import (
    BEGIN_AGAIN,
    Files,
    Journal,
    manifest_in,
    not_resumable,
    refuse_changes,
)
from bertcli.vectors.sink import Sink, Target, index_of, whole_of


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
    """Yield the output and the files next to it, locked against other processes meanwhile.

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
            made = _unchanged(target, files, now)
            _same_inputs(target, made, (yield from inputs.described()))
            files.clear()  # of a run with --overwrite that was killed before its first journal
            return Sink(target, files, Journal(now), done=made)
        _refuse_remains(target, files)
        return Sink(target, files, Journal(now, (yield from inputs.described())))


def _begin_update(
    target: Target, files: Files, now: dict[str, Any], inputs: Inputs
) -> Generator[Hashed, None, Sink]:
    """Return the sink of a run that follows its input: resumed where it is the same run.

    Raises OutputError for an output that this program has not made, or not as it is.
    """
    described = yield from inputs.described()
    whole = all(one.get("sha256") for one in described)  # stdin and pipes have none
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
        made = _unchanged(target, files)
        if whole and (made.get("fingerprint"), made.get("inputs")) == (now, described):
            return Sink(target, files, Journal(now), done=made)
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
    made = dict(manifest_in(read_bytes(files.manifest, OutputError), str(files.manifest)))
    was, digest = made.get("fingerprint"), made.get("sha256")
    if isinstance(was, dict) and now is not None:
        refuse_changes(str(target.path), was, now)
    if not isinstance(was, dict) or not isinstance(digest, str):
        raise not_resumable(str(target.path))
    expected: dict[Path, Any] = {files.output: digest}
    if "index" in made or (target.many and target.indexed):
        expected[files.row_index] = made.get("index_sha256")
    for path, wanted in expected.items():
        if not path.is_file() or sha256(path) != wanted:  # a device may have no end
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 differs from the manifest's",
                "give --overwrite, or another name",
            )
    return made


def _same_inputs(target: Target, made: Mapping[str, Any], now: Sequence[Described]) -> None:
    was = made.get("inputs")
    if not isinstance(was, list) or not all(isinstance(one, dict) for one in was):
        raise OutputError(
            f"{target.path}: already exists, but its manifest has no sha256 of the inputs",
            "give --overwrite, or another name",
        )
    refuse_changed(str(target.path), was, now)


def _check_made(target: Target, files: Files, made: Mapping[str, Any]) -> None:
    """Raise OutputError when an output that has not its name yet was changed."""
    whole = whole_of(target, files)
    for path, digest in (
        (whole, made.get("sha256")),
        (index_of(target, files), made.get("index_sha256")),
    ):
        if digest and path.exists() and sha256(path) != digest:
            raise OutputError(
                f"{path}: was changed after it was made: its sha256 differs from the journal's",
                BEGIN_AGAIN,
            )
