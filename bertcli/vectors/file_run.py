"""A run of `bertcli embed` to a file that appears whole, and that may be killed at any instant.

    run = FileRun(embedder, reader, Target(Path("out.npy"), "npy", resume=True))
    for step in run:      # how far it is
        ...

Rows go to a `Sink`. A format holds vectors alone (NPY, NPZ, safetensors), or the other fields of
the records as well (JSONL, CSV, Parquet). All are made in the same way: the rows are appended to
files of the run's folder as raw float32 and JSON, and the output is made from them at the end. So
its bytes depend on the rows alone, and int8, which needs the range of every dimension over all
rows, is not special.

A record may have several rows (``many``), for its tokens or words. Beside vectors alone an index
says which; where a record has one row, the index has its id.

The index of an output that is updated has a digest of each row: of its text, and of all else that
decides its vector. A vector is taken over where the digest is the same, so the new output has the
bytes of a run from nothing, as far as a vector depends on its text alone.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.checkpoints.scan import model_files
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import RANGED, refuse_format
from bertcli.embedding.pooling import EmbeddedBlock, split
from bertcli.errors import OutputError, PrecisionError, UsageError
from bertcli.files.atomic import explained
from bertcli.files.jsonl import objects_of, to_lines
from bertcli.files.paths import sha256
from bertcli.files.versions import __version__, versions
from bertcli.inference.progress import Ran, Step
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tokenizing.columns import PLACE, TokenBlock
from bertcli.tokenizing.run import TokenCounts, TokenizeRun
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
    check_values,
    make,
    metas,
)
from bertcli.vectors.reading import Aside, floats
from bertcli.vectors.run_folder import (
    JOURNAL,
    WHOLE,
    InputDigest,
    Inputs,
    RunFiles,
    TextDigests,
    made_by,
)

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
    places: tuple[str, ...] = ()  # carried fields that the index has beside the ids
    terms: TermNames | None = None  # whether the rows of a record are weights of these

    @property
    def with_fields(self) -> bool:
        """Whether the format holds more than vectors."""
        return self.form in WITH_FIELDS

    @property
    def only_ids(self) -> bool:
        """Whether of all fields of a record its id alone is written, where it has one."""
        return not self.with_fields and (self.terms is not None or not self.many)

    @property
    def parts(self) -> list[str]:
        """The files that rows are appended to."""
        indexed = self.update or not self.with_fields
        return [RAW, *[FIELDS] * self.with_fields, *[INDEX] * indexed]

    def indexed(self, *, named: bool) -> bool:
        """Tell whether there is an index beside the output: of rows and whose they are."""
        if self.update or self.terms or self.with_fields:
            return self.update
        in_archive = self.form == "npz" and not self.places
        return self.many or (named and not in_archive)

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
        if self.path.is_dir():
            raise OutputError(f"{self.path}: is a folder", "name a file in it")
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
                    self.append(name, to_lines(lines).encode())
            self.append(RAW, vectors.astype("<f4", copy=False).tobytes())

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make all rows durable, with values for whoever resumes after them."""
        with explained(self.path):
            super().commit({**state, **{name: getattr(self, name) for name in OWN}})

    def finish(self, about: Mapping[str, Any]) -> None:
        """Make the output and its manifest, which holds ``about``, and remove the partial files.

        After a kill on the way the run is resumed from its last commit: commit before.
        """
        target = self.target
        with explained(target.path):
            ids = self.named and bool(target.terms or not target.many)
            rows = Rows(
                self.folder, self.rows, tuple(self.shape), target.many, ids, terms=target.terms
            )
            rows, ranges = at_precision(rows, target.precision)
            make(rows, target.form, self.folder / WHOLE, self.output)
            super().finish({**about, **self._manifest(rows, ranges)})

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


NOT_OF_RECORDS = ("asked", "flags", "taken", "max_record_bytes")  # no record is another by these
LIBRARIES = ("openvino", "torch", "tokenizers", "numpy")  # that the numbers depend on


@dataclass
class FileRun:
    """A run whose records go to a file, window by window, as they are embedded.

    ``tally`` counts over all runs of the file.
    """

    embedder: Embedder
    reader: Reader
    target: Target
    about: Mapping[str, Any] | None = None  # for the manifest; None: the versions of libraries
    tally: TokenCounts = field(default_factory=TokenCounts)
    complete: bool = False  # whether the file was there already
    committed: int = 0  # records that a run which is resumed need not compute again
    reusable: KnownVectors | None = None  # of an output that is updated
    unchecked: Sequence[str] = ()  # inputs of a run that is resumed which cannot be read twice

    def __post_init__(self) -> None:
        embedder = self.embedder
        refuse_format(self.target.form, embedder.options)
        self.consumed = embedder.extra.read_by(self.reader)
        self.target = replace(
            self.target,
            many=embedder.options.several,
            places=embedder.places(self.reader),
            terms=embedder.term_names,
        )

    @property
    def reused(self) -> int:
        """The texts whose vectors the output had before."""
        return self.reusable.reused if self.reusable else 0

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the run is; at the end the file is there.

        Records are committed by windows, so those of a run that is resumed are the same.

        Raises OutputError when a run that is resumed saw another input.
        """
        embedder, target, digest = self.embedder, self.target, InputDigest()
        about = self.about or {"versions": versions(*LIBRARIES)}
        source, maker = self.reader.source, made_by(embedder)
        texts = source.texts if source.pair is None else (*source.texts, source.pair)
        needed = map(Path, filter(None, [source.list_file]))
        inputs = Inputs(source.paths, texts, [*needed, *model_files(embedder.folder.path)])
        read = asdict(source) | {"texts": len(source.texts)}
        read = {name: value for name, value in read.items() if name not in NOT_OF_RECORDS}
        with ExitStack() as stack:
            sink = stack.enter_context(target.opened({**maker, "input": read}, inputs))
            self.unchecked = inputs.streams if sink.complete or sink.state else ()
            self.complete = sink.complete is not None
            if self.complete:
                return
            state = sink.state or {}
            self.committed = state.get("records", 0)
            self.tally = TokenCounts(**state.get("tally", {}))
            yield Ran(before=self.tally.records)
            blocks = self._after(state, digest)
            run = embedder.run(self.reader, full=True)
            run = replace(run, blocks=blocks, start=digest.records, tally=self.tally)
            windows = embedder.windows(run)
            if target.update:  # a text has the same vector wherever the model lies
                decides = {**maker, **about, "precision": target.precision}
                del decides["model"]
                digests = TextDigests(decides, tuple(embedder.extra.limits))
                self.reusable = KnownVectors(sink, digests, embedder, state.get("reused", 0))
                stack.enter_context(closing(self.reusable))
                windows = self.reusable.windows(run)
            for window in windows:
                for part in window:
                    if isinstance(part, Ran):
                        yield part
                        continue
                    digest.add(part.records)
                    self._write(sink, part)
                self._commit(sink, digest)
            if not sink.rows:
                sink.write([], embedder.nothing, [] if target.many else None)
            self._commit(sink, digest)
            sink.finish(
                {
                    **about,
                    "same_bits": embedder.runtime.engine.same_bits,
                    "counts": asdict(self.tally) | {"skipped": self.reader.skipped},
                    "input_sha256": digest.sha.hexdigest(),
                    "texts_sha256": digest.texts.hexdigest(),
                }
            )

    def _after(self, state: Mapping[str, Any], digest: InputDigest) -> Iterator[Sequence[Record]]:
        """Return the records after those that are committed, which go to the digest.

        Raises OutputError unless they are those of the run that is resumed.
        """
        blocks, left = self.reader.blocks(), state.get("records", 0)
        uncommitted: Sequence[Record] = ()
        while left and (block := next(blocks, None)) is not None:
            digest.add(block[:left])
            left, uncommitted = left - len(block[:left]), block[left:]
        if state and digest.sha.hexdigest() != state["input"]:
            raise OutputError(
                f"{self.target.path}: the first {state['records']} records are not those of the "
                "run that is resumed",
                "give the same input, or start over with --overwrite",
            )
        return chain([uncommitted], blocks) if uncommitted else blocks

    def _write(self, sink: Sink, block: EmbeddedBlock) -> None:
        digests = self.reusable.digests.of(block.records) if self.reusable else ()
        counts, target = None, self.target
        block.records = block.records.without(self.consumed)
        if not target.only_ids:
            rows = metas(block)
        else:  # of those records that have one, and the fields that place them in a text
            ids = block.records.ids or [None] * len(block)
            extras = block.records.extras if target.places else None
            rows = [
                ({} if key is None else {"id": key})
                | {name: (extra or {})[name] for name in target.places}
                for key, extra in zip(ids, extras or repeat(None), strict=False)
            ]
        if target.many:
            several = isinstance(block.vectors, list)
            counts = [len(vectors) if several else 1 for vectors in block.vectors]
        sink.write(rows, block.stacked, counts, digests)

    def _commit(self, sink: Sink, digest: InputDigest) -> None:
        sink.commit(
            {
                "records": digest.records,
                "input": digest.sha.hexdigest(),
                "tally": asdict(self.tally),
                "reused": self.reused,
            }
        )
        self.committed = digest.records


class KnownVectors:
    """The vectors of an output, if there is one, by the digests of their texts: to be closed.

    ``reused`` counts texts.
    """

    def __init__(self, sink: Sink, digests: TextDigests, embedder: Embedder, reused: int) -> None:
        self.digests, self.embedder, self.reused, self.aside = digests, embedder, reused, Aside()
        exists, index, nothing = sink.output.exists(), sink.index, embedder.nothing
        rows: dict[bytes, int] = {}
        for _, row in chain.from_iterable(objects_of(str(index)) if index.exists() else ()):
            if not (exists and isinstance(row.get(DIGEST), str)):
                rows = {}
                break
            rows.setdefault(bytes.fromhex(row[DIGEST]), row[ROW])
        for block in floats(str(sink.output), nothing.shape[-1]) if rows else ():
            if block.shape[1:] == nothing.shape[1:]:  # else of another width
                self.aside.add(block)
        self.rows = {digest: row for digest, row in rows.items() if row < self.aside.count}
        self.vectors = self.aside.vectors()
        empty = index.exists() and not index.stat().st_size  # of an output without a row
        self.without_digests = exists and not rows and not empty

    def close(self) -> None:
        """Remove them."""
        del self.vectors
        self.aside.close()

    def windows(self, run: TokenizeRun) -> Iterator[Iterator[Ran | EmbeddedBlock]]:
        """Yield the windows of a run, as those of the embedder."""
        for counts, batch in run.counted():
            run.tally.merge(counts)
            yield self._parts(batch)

    def _parts(self, batch: TokenBlock) -> Iterator[Ran | EmbeddedBlock]:
        if not len(batch):
            return
        starts = [*accumulate(batch.windows[:-1], initial=0)]
        digests = self.digests.of([batch.records[start] for start in starts])
        old = np.array([self.rows.get(digest, -1) for digest in digests])
        fresh = np.flatnonzero(old < 0)
        if len(fresh) == len(old):
            yield from self.embedder.embedded(batch)
            return
        vectors = self.vectors[np.maximum(old, 0)]
        self.embedder.refuse(batch)
        rows = split(range(len(batch)), batch.windows)
        for part in self.embedder.embedded(batch.take(row for at in fresh for row in rows[at])):
            if isinstance(part, Ran):
                yield part
            else:
                vectors[fresh] = part.vectors
        self.reused += len(old) - len(fresh)
        yield EmbeddedBlock(batch.take(starts) if len(starts) < len(batch) else batch, vectors)
