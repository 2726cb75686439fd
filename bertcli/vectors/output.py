"""Vectors out: to a file that appears whole, from a run that may be killed at any instant.

    target = Target(Path("out.npy"), "npy", resume=True)
    with target.opened({"model": "..."}, inputs) as sink:
        if not sink.complete:
            for metas, vectors in work_after(sink.state):
                sink.write(metas, vectors)
                sink.commit({"records": ...})
            yield from sink.finishing({"options": ...})

A format holds vectors alone (NPY, NPZ, safetensors), or the other fields of the records as well
(JSONL, CSV, Parquet). All are made in the same way: the rows are appended to files of the run's
folder as raw float32 and JSON, and the output is made from them at the end. So its bytes depend on
the rows alone, and int8, which needs the range of every dimension over all rows, is not special.

A record may have several rows (``many``), for its tokens or words. Beside vectors alone an index
says which; where a record has one row, the index has its id, and in an output that follows its
input the digest of its text.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.errors import OutputError, PrecisionError, UsageError
from bertcli.files.atomic import explained
from bertcli.files.jsonl import to_lines
from bertcli.files.paths import sha256
from bertcli.files.versions import __version__
from bertcli.inference.progress import Advance
from bertcli.tokenizing.columns import PLACE
from bertcli.vectors.fingerprint import Inputs
from bertcli.vectors.formats import (
    DIGEST,
    FIELDS,
    ID,
    INDEX,
    RAW,
    ROW,
    START,
    STOP,
    WITH_FIELDS,
    WRITERS,
    Row,
    Rows,
    at_precision,
    make,
    refuse_long_ids,
)
from bertcli.vectors.precision import RANGED, check_values, refuse_dense
from bertcli.vectors.run_folder import JOURNAL, WHOLE, RunFiles

if TYPE_CHECKING:
    from bertcli.embedding.sparse import TermNames


OWN = ("rows", "shape", "named")  # of a sink, in the state of its run


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
    ids: bool = False  # whether vectors alone have the ids of their records beside them
    places: tuple[str, ...] = ()  # carried fields that the index has beside the ids
    terms: TermNames | None = None  # whether the rows of a record are weights of these

    @property
    def with_fields(self) -> bool:
        """Whether the format holds more than vectors."""
        return self.form in WITH_FIELDS

    @property
    def only_ids(self) -> bool:
        """Whether of all fields of a record its id alone is written, where it has one."""
        one_row = self.ids and not self.many
        return not self.with_fields and (one_row or self.terms is not None)

    @property
    def parts(self) -> list[str]:
        """The files that rows are appended to."""
        indexed = self.update or ((self.many or self.ids) and not self.with_fields)
        return [RAW, *[FIELDS] * self.with_fields, *[INDEX] * indexed]

    def indexed(self, *, named: bool) -> bool:
        """Tell whether there is an index beside the output: of rows and whose they are."""
        if self.update or self.terms or self.with_fields:
            return self.update
        in_archive = self.form == "npz" and not self.places
        return self.many or (self.ids and named and not in_archive)

    @contextmanager
    def opened(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> Iterator[Sink]:
        """Yield the sink for the rows, where the run that it resumes had committed.

        ``fingerprint`` is what the bytes depend on beside the ``inputs``: see `RunFiles.opened`.
        """
        with explained(self.path):
            self.check()
        sink = Sink(self)
        how: dict[str, Any] = {"format": self.form, "precision": self.precision}
        how |= {"update": True} if self.update else {}
        with sink.opened(
            {**fingerprint, **how},
            inputs,
            self.parts,
            resume=self.resume,
            update=self.update,
            overwrite=self.overwrite,
        ):
            if sink.state:
                sink.rows, sink.shape, sink.named = (sink.state[name] for name in OWN)
            try:
                yield sink
            except PrecisionError:  # these rows can never be written so: nothing is resumed
                (sink.folder / JOURNAL).unlink(missing_ok=True)
                raise

    def check(self) -> None:
        """Raise OutputError or UsageError for what can never be written."""
        if self.resume and self.overwrite:
            raise UsageError("--resume cannot be combined with --overwrite")
        if self.update and (self.overwrite or not self.manifest):
            other = "--overwrite" if self.overwrite else "--no-manifest"
            raise UsageError(f"--update cannot be combined with {other}")
        if self.update and (self.many or PLACE[0] in self.places):
            raise UsageError("--update needs one vector per text")
        if self.update and self.precision in RANGED:
            raise UsageError(
                f"--update cannot be combined with --precision {self.precision}",
                "its ranges are those of all texts together; use float32, float16 or binary",
            )
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


class Sink(RunFiles):
    """Where the rows of one output go."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.path, keeps_manifest=target.manifest)
        self.target, self.rows = target, 0
        self.shape: Sequence[int] = (0,)  # of a row; known from the first one on
        self.named = False  # whether a record has an id, or a place

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
        target, first, index = self.target, self.rows, list[Row]()
        if target.only_ids and target.form == "npz":
            refuse_long_ids(metas, first)
        self.named = self.named or any(metas)
        if counts is not None:
            rows = zip(metas, accumulate(counts, initial=first), counts, strict=False)
            metas = index = [
                ({ID: meta[ID]} if ID in meta else {})  # comes first
                | {START: start, STOP: start + count, **meta}
                for meta, start, count in rows
            ]
        elif target.with_fields:
            index = [{ROW: row} for row in range(first, first + len(metas))]
        else:
            index = [{ROW: row, ID: None, **meta} for row, meta in enumerate(metas, first)]
        for row, digest in zip(index, digests, strict=False):
            row[DIGEST] = digest.hex()
        with explained(target.path):
            check_values(vectors, target.precision)
            self.shape = self.shape if self.rows else vectors.shape[1:]
            self.rows += len(vectors)
            for name, lines in ((FIELDS, metas), (INDEX, index)):
                if name in target.parts:
                    self.append(name, self._text(lines, first))
            self.append(RAW, vectors.astype("<f4", copy=False).tobytes())

    def _text(self, lines: Sequence[Row], first: int) -> bytes:
        """Return the fields as JSON lines: what cannot be written is found here, not at the end."""
        try:
            return to_lines(lines).encode()
        except (TypeError, ValueError) as bad:  # a date, say, or half a surrogate pair
            raise OutputError(
                f"one of the records {first + 1} to {first + len(lines)} has a field that cannot "
                f"be written: {bad}",
                "leave it out of --keep-fields",
            ) from None

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make all rows durable, with values for whoever resumes after them."""
        with explained(self.path):
            super().commit({**state, **{name: getattr(self, name) for name in OWN}})

    def finishing(self, about: Mapping[str, Any]) -> Iterator[Advance]:
        """Make the output and its manifest, which holds ``about``, and remove the partial files.

        Yields how far that is. After a kill on the way the run is resumed from its last commit:
        commit before.
        """
        target, done = self.target, 0
        with explained(target.path):
            ids = target.ids and self.named and bool(target.terms or not target.many)
            rows = Rows(
                self.folder, self.rows, tuple(self.shape), target.many, ids, terms=target.terms
            )
            rows, ranges = at_precision(rows, target.precision)
            for written in make(rows, target.form, self.folder / WHOLE, self.output):
                done += written
                yield Advance(done, "rows", done / max(1, rows.count))
            self.finish({**about, **self._manifest(rows, ranges)})

    def _manifest(self, rows: Rows, ranges: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what the manifest says of the output itself."""
        shape, dtype = rows.kind()
        manifest = {
            "bertcli": __version__,
            "fingerprint": self.journal["fingerprint"],
            "inputs": self.journal["inputs"],
            "output": self.output.name,
            "format": self.target.form,
            "precision": self.target.precision,
            "rows": shape[0],
            **({"terms": rows.count} if rows.terms else {}),
            "shape": shape,
            "dtype": dtype.name,
            "sha256": sha256(self.folder / WHOLE),
            **({"ranges": ranges} if ranges else {}),
        }
        if self.target.indexed(named=self.named):
            manifest["index"] = self.index.name
            manifest["index_sha256"] = sha256(self.folder / INDEX)
        return manifest
