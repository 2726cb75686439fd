"""A run that writes vectors of texts to a file, and may be killed at any instant.

    run = VectorRun(embedder, reader, VectorTarget(Path("out.npy"), "npy", resume=True))
    result = run.execute()
    result.state        # OutputState.COMPLETE: there was nothing to do

The committed rows are in two files of the run folder:

    vectors      raw float32
    fields       lines of JSON: other fields of a block of records as columns, the number of rows
                 of each record and, for outputs that are updated, the digest of its text

The index maps records to row ranges (or stores the id, for one row per record). The index of an
updatable output also has a digest per row, of the text and of everything else that determines its
vector. An update reuses vectors with equal digests, so the new output has the bytes of a run from
scratch, if vectors depend on their text alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertcli.embedding.options import refuse_format
from bertcli.embedding.pooling import EmbeddedBlock, split_by_sizes
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.errors import OutputError, counted, option
from bertcli.formats.jsonl import objects_of, to_lines
from bertcli.formats.precision import check_values
from bertcli.formats.registry import FORMATS, VECTORS, Holds, load
from bertcli.formats.vector_files import DIGEST, ROW, Array, floats, put_aside
from bertcli.formats.vector_writer import Fields, Rows, write_index
from bertcli.io.output_files import FIELDS, NEW_INDEX, RAW_VECTORS
from bertcli.io.paths import WatchedFiles, input_name, sha256
from bertcli.io.progress import Ran, Show, Step, show_nothing
from bertcli.io.typed_json import as_json
from bertcli.records.batch import RecordBatch
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.runs.embedded_rows import fields_of_block
from bertcli.runs.identity import InputDigest, Inputs, files_of_model, numbers_of
from bertcli.runs.run import Commit, RunResult, execute
from bertcli.runs.run_folder import RunWriter, Target
from bertcli.tokenizing.batch import TokenBatch
from bertcli.tokenizing.run import TokenCounts, TokenizeRun
from bertcli.versions import versions

if TYPE_CHECKING:
    from bertcli.embedding.sparse import TermNames

NOT_OF_RECORDS = (
    "asked",
    "taken",
    "text_option",
    "max_record_bytes",
)  # options that do not change records
NOT_OF_VECTORS = ("model",)  # the location of the model does not affect vectors
LIBRARIES = ("openvino", "torch", "tokenizers", "numpy")  # libraries that affect vectors


@dataclass(frozen=True)
class VectorTarget(Target["VectorWriter"]):
    """A file of vectors."""

    many: bool = field(default=False, kw_only=True)  # records may have several rows
    places: tuple[str, ...] = field(default=(), kw_only=True)  # fields in the index beside ids
    terms: TermNames | None = field(default=None, kw_only=True)  # rows are weights of these terms
    row_files: ClassVar[tuple[str, ...]] = (RAW_VECTORS, FIELDS)

    @property
    def with_fields(self) -> bool:
        """True if the format stores fields of records beside vectors."""
        return FORMATS[self.form].can_hold(Holds.ROWS)

    @property
    def only_ids(self) -> bool:
        """True if at most the id of a record is written, and no other fields."""
        return not self.with_fields and (self.terms is not None or not self.many)

    def has_index(self, *, named: bool) -> bool:
        """Return True if the output has an index, which maps records to rows."""
        if self.update or self.terms or self.with_fields:
            return self.update
        in_archive = FORMATS[self.form].can_hold(Holds.IDS) and not self.places
        return self.many or (named and not in_archive)

    def fields_of(self, block: EmbeddedBlock) -> Fields:
        """Return the fields that are written beside the vectors of a block."""
        if not self.only_ids:
            return fields_of_block(block)
        records = block.records
        extras = records.extras if self.places else None
        located = extras and [{name: (row or {})[name] for name in self.places} for row in extras]
        return Fields(len(block), records.ids, others=located)

    def writer(self, model: WatchedFiles) -> VectorWriter:
        """Return the writer of the rows of a run."""
        return VectorWriter(self, model)


class VectorWriter(RunWriter):
    """Writes vectors and the fields of their records."""

    target: VectorTarget

    def __init__(self, target: VectorTarget, model: WatchedFiles) -> None:
        super().__init__(target, model)
        self.journal |= {
            "rows": 0,
            "records": 0,
            "shape": [0],  # shape of a row, known after the first one
            "named": False,  # True if any record has an id or a field of ``places``
        }

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return int(self.journal["rows"])

    def write(self, fields: Fields, vectors: np.ndarray) -> None:
        """Add rows: vectors float32 [n, D...], and the fields of their records."""
        journal = self.journal
        check_values(vectors, self.target.precision)
        journal["shape"] = vectors.shape[1:]
        journal["rows"] += len(vectors)
        journal["records"] += fields.count
        journal["named"] |= bool(fields.others) or any(key is not None for key in fields.id or ())
        lines = to_lines([vars(fields)][: fields.count])
        self.append(
            {RAW_VECTORS: vectors.astype("<f4", copy=False).tobytes(), FIELDS: lines.encode()}
        )

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Publish the output and its manifest with the ``summary``, and remove the run folder.

        Commit before: a run that is killed here is resumed from its last commit.
        """
        target = self.target
        journal = self.journal
        index = self.folder / NEW_INDEX
        with self.errors():
            rows = Rows(
                self.folder,
                self.rows,
                journal["records"],
                tuple(journal["shape"]),
                target.precision,
                target.many,
                journal["named"] and bool(target.terms or not target.many),
                target.terms,
            )
            with self.new_file() as file:
                load(FORMATS[target.form].vector_writer)(file, target.form, rows)
            shape, dtype = rows.shape_and_dtype()
            manifest = {
                **summary,
                "precision": target.precision,
                "rows": shape[0],
                **({"terms": rows.count} if rows.terms else {}),
                "shape": shape,
                "dtype": dtype.name,
            }
            if rows.ranges is not None:
                low, high = rows.ranges.tolist()
                manifest["ranges"] = {"min": low, "max": high}
            indexed = target.has_index(named=journal["named"])
            if indexed:
                write_index(rows, index, with_fields=target.with_fields)
                manifest |= {"index": self.index.name, "index_sha256": sha256(index)}
            self.publish_run(manifest)

    def has_known_rows(self) -> bool:
        """Return True if output and index match the manifest, so that rows can be reused.

        They do not after a kill between the renames of `publish`.
        """
        try:
            return "index" in self._unchanged()
        except OutputError:
            return False


def made_by(embedder: RecordEmbedder) -> dict[str, Any]:
    """Return what vectors depend on besides the input."""
    return {
        "model": embedder.folder.name,
        **files_of_model(embedder.runtime.spec.folder),
        "config": numbers_of(embedder.runtime.config),
        "options": embedder.vector_settings(),
    }


@dataclass
class VectorRun:
    """A run that writes vectors to a file, one window at a time.

    ``tally`` counts the records of all runs of the file, including interrupted ones.
    """

    embedder: RecordEmbedder
    reader: Reader
    target: VectorTarget
    about: Mapping[str, Any] | None = None  # manifest entries; None: the library versions
    tally: TokenCounts = field(default_factory=TokenCounts)
    committed: int = 0  # records committed so far, which a resumed run skips
    resumed: int = 0  # records committed by an interrupted run
    reusable: KnownVectors | None = None  # vectors of the output that is updated
    unusable: str = ""  # why no vector of that output can be reused
    digest: InputDigest = field(default_factory=InputDigest, init=False)
    earlier: Mapping[str, Any] = field(default_factory=dict, init=False)  # committed state

    def __post_init__(self) -> None:
        embedder = self.embedder
        form = self.target.form
        if form not in VECTORS:
            raise OutputError(f"vectors cannot be written as {form}", ", ".join(VECTORS))
        refuse_format(form, embedder.options)
        FORMATS[form].require()
        self.consumed = embedder.runtime.extra_columns.request_ids(self.reader)
        self.about = self.about or {"versions": versions(*LIBRARIES)}
        self.target = replace(
            self.target,
            many=embedder.options.has_several_rows,
            places=embedder.location_fields(self.reader),
            terms=embedder.term_names,
        )

    def execute(self, show: Show = show_nothing) -> RunResult:
        """Write the file, unless it is complete.

        Raises OutputError if a resumed run reads different input.
        """
        return execute(self, self.target, show)

    @cached_property
    def maker(self) -> dict[str, Any]:
        """What the vectors depend on besides the input."""
        return made_by(self.embedder)

    def inputs(self) -> Inputs:
        """Return the inputs."""
        return Inputs.of(self.reader.source, self.embedder.folder.model_files)

    def identity(self) -> dict[str, Any]:
        """Return what the vectors depend on besides the inputs."""
        source = self.reader.source
        paths = [input_name(path) for path in source.paths]
        read = source.options | {"texts": len(source.texts), "paths": paths}
        read = {name: value for name, value in read.items() if name not in NOT_OF_RECORDS}
        return {**self.maker, "input": read}

    def resume(self, state: Any) -> None:
        """Skip the records that an earlier run has committed."""
        self.earlier = state or {}
        self.committed = self.earlier.get("records", 0)
        self.resumed = self.committed
        self.tally = TokenCounts(**self.earlier.get("tally", {}))

    def events(self, writer: VectorWriter) -> Iterator[Step | Commit | EmbeddedBlock]:
        """Yield blocks of records with their vectors, commits and steps.

        Commits are made after whole windows, so a resumed run has the same windows.
        """
        embedder = self.embedder
        yield Ran(before=self.tally.records)
        blocks = self._uncommitted_records()
        run = embedder.run(self.reader, full=True)
        run = replace(run, remaining=blocks, start=self.digest.records, tally=self.tally)
        windows = embedder.windows(run)
        if self.target.update:
            precision = self.target.precision
            decides = {**self.maker, **(self.about or {}), "precision": precision}
            rows, vectors = self.known_rows(writer)
            self.reusable = KnownVectors(decides, embedder, rows, vectors)
            self.unusable = self._unusable(writer, rows, decides)
            windows = self.reusable.windows(run)
        for window in windows:
            for event in window:
                if isinstance(event, EmbeddedBlock):
                    self.digest.add(event.records)
                yield event
            yield self._commit()
            self.committed = self.digest.records
        if not writer.rows:
            writer.write(Fields(0), embedder.empty_output)
        yield self._commit()
        self.committed = self.digest.records

    def _uncommitted_records(self) -> Iterator[Sequence[Record]]:
        """Return blocks of the records after the committed ones; all are added to the digest.

        Raises OutputError if the committed records differ from those of the interrupted run.
        """
        blocks = self.reader.blocks()
        left = self.committed
        uncommitted: Sequence[Record] = ()
        while left and (block := next(blocks, None)) is not None:
            self.digest.add(block[:left])
            uncommitted = block[left:]
            left -= len(block[:left])
        if self.earlier and self.digest.of() != self.earlier["input"]:
            raise OutputError(
                f"{self.target.path}: the first {self.earlier['records']} records are not those of "
                "the run that is resumed",
                f"give the same input, or start over with {option('overwrite')}",
            )
        return chain([uncommitted], blocks) if uncommitted else blocks

    def write(self, writer: VectorWriter, block: EmbeddedBlock) -> None:
        """Write the records of a block and their vectors."""
        digests = self.reusable.digests(block.records) if self.reusable else None
        block.records = block.records.without(self.consumed)
        fields = self.target.fields_of(block)
        sizes = [*map(len, block.vectors)] if isinstance(block.vectors, list) else None
        writer.write(replace(fields, sizes=sizes, digests=digests), block.stacked)

    def _commit(self) -> Commit:
        return Commit(
            {
                "records": self.digest.records,
                "input": self.digest.of(),
                "tally": asdict(self.tally),
            }
        )

    def summary(self) -> dict[str, Any]:
        """Return the run's entries of the manifest."""
        return {
            **(self.about or {}),
            "same_bits": self.embedder.runtime.engine.same_bits,
            "counts": asdict(self.tally) | {"skipped": self.reader.skipped},
            "input_sha256": self.digest.of(),
            "corpus_sha256": self.digest.texts,
        }

    def known_rows(self, writer: VectorWriter) -> tuple[dict[str, int], Array]:
        """Return the row of each digest in the output to update, and all of its vectors.

        The vectors are copied to a temporary file.
        """
        rows: dict[str, int] = {}
        if writer.has_known_rows():
            for _, row in chain.from_iterable(objects_of(str(writer.index))):
                if DIGEST in row:
                    rows.setdefault(row[DIGEST], row[ROW])
        shape = self.embedder.empty_output.shape[1:]
        blocks = floats(str(writer.output), shape[-1]) if rows else ()
        return rows, put_aside(block for block in blocks if block.shape[1:] == shape)

    def _unusable(
        self, writer: VectorWriter, rows: Mapping[str, int], decides: Mapping[str, Any]
    ) -> str:
        """Return why no vector of the output can be reused; "" if some may be."""
        manifest = writer.read_manifest() if writer.output.exists() else {}
        if not manifest:
            return ""
        if not rows:
            return f"{self.target.path} was made without {option('update')}"
        before = {**manifest, **manifest.get("fingerprint", {})}
        values = as_json(decides)
        different = [
            name
            for name in values
            if name not in NOT_OF_VECTORS and before.get(name) != values[name]
        ]
        if different:
            return f"{self.target.path} was made with other {', '.join(different)}"
        return ""

    @property
    def reuse(self) -> str:
        """A note on the number of vectors that an update reused; "" without an update."""
        if self.reusable is None:
            return ""
        line = f"{self.reusable.reused:,} of {counted(self.tally.records, 'vector')} reused"
        if self.resumed:
            line += f", {self.resumed:,} kept from the interrupted update"
        return f"{line}: {self.unusable}" if self.unusable else line


class KnownVectors:
    """The ``vectors`` of earlier runs [n, D...], and their rows by digest of the text.

    Digests include what ``decides`` the vectors. ``reused`` counts texts of this run.
    """

    def __init__(
        self,
        decides: Mapping[str, Any],
        embedder: RecordEmbedder,
        rows: Mapping[str, int],
        vectors: Array,
    ) -> None:
        self.embedder = embedder
        self.reused = 0
        decides = {name: value for name, value in decides.items() if name not in NOT_OF_VECTORS}
        text = json.dumps(decides, sort_keys=True)
        self.key = hashlib.sha256(text.encode(errors="surrogatepass"))
        self.vectors = vectors
        self.rows = {digest: row for digest, row in rows.items() if row < len(vectors)}

    def digests(self, records: Sequence[Record]) -> list[str]:
        """Return the digest of each record's text, pair and extra embedding ids."""
        digests = []
        for record in RecordBatch.of(records):
            digest = self.key.copy()
            extra = record.extra or {}
            ids = (extra.get(name) for name in self.embedder.runtime.extra_columns.id_limits)
            text = repr((record.text, record.pair, *ids))
            digest.update(text.encode(errors="surrogatepass"))
            digests.append(digest.hexdigest()[:32])
        return digests

    def windows(self, run: TokenizeRun) -> Iterator[Iterator[Ran | EmbeddedBlock]]:
        """Yield the windows of a run, in the same form as `RecordEmbedder.windows`."""
        for counts, batch in run.counted():
            run.tally.merge(counts)
            yield self._parts(batch)

    def _parts(self, batch: TokenBatch) -> Iterator[Ran | EmbeddedBlock]:
        if not len(batch):
            return
        starts = [*accumulate(batch.windows[:-1], initial=0)]
        digests = self.digests([batch.records[start] for start in starts])
        old = np.array([self.rows.get(digest, -1) for digest in digests])
        fresh = np.flatnonzero(old < 0)
        if len(fresh) == len(old):
            yield from self.embedder.embed_window(batch)
            return
        vectors = self.vectors[np.maximum(old, 0)]
        self.embedder.refuse_without_vector(batch)
        rows = split_by_sizes(range(len(batch)), batch.windows)
        fresh_rows = batch.take(row for index in fresh for row in rows[index])
        for event in self.embedder.embed_window(fresh_rows):
            if isinstance(event, Ran):
                yield event
            else:
                vectors[fresh] = event.vectors
        self.reused += len(old) - len(fresh)
        yield EmbeddedBlock(batch.take(starts) if len(starts) < len(batch) else batch, vectors)
