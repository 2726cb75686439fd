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
from bertcli.formats.jsonl import located_objects, to_lines
from bertcli.formats.precision import check_values
from bertcli.formats.registry import FORMATS, VECTORS, Holds, load
from bertcli.formats.vector_files import DIGEST, ROW, Array, memory_mapped, read_float_vectors
from bertcli.formats.vector_writer import OutputFields, StoredRows, write_index
from bertcli.io.output_files import FIELDS, NEW_INDEX, RAW_VECTORS
from bertcli.io.paths import WatchedFiles, input_name, sha256
from bertcli.io.progress import BatchDone, Show, Step, show_nothing
from bertcli.io.typed_json import as_json
from bertcli.records.batch import RecordBatch
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.runs.embedded_rows import fields_of_block
from bertcli.runs.identity import InputDigest, Inputs, config_values, model_digests
from bertcli.runs.run import Commit, RunResult, execute
from bertcli.runs.run_folder import RunWriter, Target
from bertcli.tokenizing.batch import TokenBatch
from bertcli.tokenizing.run import TokenCounts, TokenizeRun
from bertcli.versions import versions

if TYPE_CHECKING:
    from bertcli.embedding.sparse import TermNames

# Options of an input that do not change its records.
OPTIONS_WITHOUT_EFFECT = ("asked", "taken", "text_option", "max_record_bytes")
# Keys of a fingerprint that do not change vectors: the location of the model.
KEYS_WITHOUT_EFFECT = ("model",)
LIBRARIES = ("openvino", "torch", "tokenizers", "numpy")  # libraries that affect vectors


@dataclass(frozen=True)
class VectorTarget(Target["VectorWriter"]):
    """A file of vectors."""

    has_several_rows: bool = field(default=False, kw_only=True)  # of a record
    location_fields: tuple[str, ...] = field(default=(), kw_only=True)  # in the index, beside ids
    vocabulary: TermNames | None = field(default=None, kw_only=True)  # of rows that are terms
    row_files: ClassVar[tuple[str, ...]] = (RAW_VECTORS, FIELDS)

    @property
    def with_fields(self) -> bool:
        """True if the format stores fields of records beside vectors."""
        return bool(FORMATS[self.file_format].holds & (Holds.ROWS | Holds.REQUESTS))

    @property
    def only_ids(self) -> bool:
        """True if at most the id of a record is written, and no other fields."""
        return not self.with_fields and (self.vocabulary is not None or not self.has_several_rows)

    def has_index(self, *, with_ids: bool) -> bool:
        """Return True if the output has an index, which maps records to rows."""
        if self.update or self.vocabulary or self.with_fields:
            return self.update
        ids_in_file = FORMATS[self.file_format].can_hold(Holds.IDS) and not self.location_fields
        return self.has_several_rows or (with_ids and not ids_in_file)

    def fields_of(self, block: EmbeddedBlock) -> OutputFields:
        """Return the fields that are written beside the vectors of a block."""
        if not self.only_ids:
            return fields_of_block(block)
        records = block.records
        locations = None
        if self.location_fields and records.extras:
            locations = [
                {name: (fields or {})[name] for name in self.location_fields}
                for fields in records.extras
            ]
        return OutputFields(len(block), records.ids, others=locations)

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
            "named": False,  # True if any record has an id or a location field
        }

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return int(self.journal["rows"])

    def write(self, fields: OutputFields, vectors: np.ndarray) -> None:
        """Add rows: vectors float32 [n, D...], and the fields of their records."""
        journal = self.journal
        check_values(vectors, self.target.precision)
        if fields.others and (check := FORMATS[self.target.file_format].width_check):
            load(check)(fields.others, vectors.shape[-1])
        journal["shape"] = vectors.shape[1:]
        journal["rows"] += len(vectors)
        journal["records"] += fields.count
        journal["named"] |= bool(fields.others) or any(key is not None for key in fields.id or ())
        lines = to_lines([vars(fields)]) if fields.count else ""
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
        with self.converting_os_errors():
            has_row_per_record = bool(target.vocabulary or not target.has_several_rows)
            rows = StoredRows(
                self.folder,
                self.rows,
                journal["records"],
                tuple(journal["shape"]),
                target.precision,
                has_several_rows=target.has_several_rows,
                with_ids=journal["named"] and has_row_per_record,
                vocabulary=target.vocabulary,
            )
            with self.new_file() as file:
                load(FORMATS[target.file_format].vector_writer)(file, target.file_format, rows)
            shape, dtype = rows.shape_and_dtype()
            manifest = {
                **summary,
                "precision": target.precision,
                "rows": shape[0],
                **({"terms": rows.count} if rows.vocabulary else {}),
                "shape": shape,
                "dtype": dtype.name,
            }
            if rows.ranges is not None:
                low, high = rows.ranges.tolist()
                manifest["ranges"] = {"min": low, "max": high}
            if target.has_index(with_ids=journal["named"]):
                write_index(rows, index, with_fields=target.with_fields)
                manifest |= {"index": self.index.name, "index_sha256": sha256(index)}
            self.publish_run(manifest)

    def has_known_rows(self) -> bool:
        """Return True if output and index match the manifest, so that rows can be reused.

        They differ if a run was killed between the renames of `publish`.
        """
        try:
            return "index" in self.read_unchanged_manifest()
        except OutputError:
            return False


def vector_fingerprint(embedder: RecordEmbedder) -> dict[str, Any]:
    """Return what vectors depend on besides the input: model files, config values and options."""
    return {
        "model": embedder.folder.name,
        **model_digests(embedder.runtime.spec.folder),
        "config": config_values(embedder.runtime.config),
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
    # Added to the run's entries; None: library versions.
    manifest_entries: Mapping[str, Any] | None = None
    tally: TokenCounts = field(default_factory=TokenCounts)
    committed: int = 0  # records committed so far, which a resumed run skips
    resumed: int = 0  # records committed by an interrupted run
    known_vectors: KnownVectors | None = None  # vectors of the output that is updated
    unusable_reason: str = ""  # why no vector of that output can be reused
    digest: InputDigest = field(default_factory=InputDigest, init=False)
    earlier: Mapping[str, Any] = field(default_factory=dict, init=False)  # committed state

    def __post_init__(self) -> None:
        embedder = self.embedder
        file_format = self.target.file_format
        if file_format not in VECTORS:
            raise OutputError(f"vectors cannot be written as {file_format}", ", ".join(VECTORS))
        refuse_format(file_format, embedder.options)
        FORMATS[file_format].require()
        self.consumed = embedder.runtime.extra_columns.request_ids(self.reader)
        self.manifest_entries = self.manifest_entries or {"versions": versions(*LIBRARIES)}
        self.target = replace(
            self.target,
            has_several_rows=embedder.options.has_several_rows,
            location_fields=embedder.location_fields(self.reader),
            vocabulary=embedder.term_names,
        )

    def execute(self, show: Show = show_nothing) -> RunResult:
        """Write the file, unless it is complete.

        Raises OutputError if a resumed run reads different input.
        """
        return execute(self, self.target, show)

    @cached_property
    def vector_fingerprint(self) -> dict[str, Any]:
        """What the vectors depend on besides the records."""
        return vector_fingerprint(self.embedder)

    @property
    def inputs(self) -> Inputs:
        """The inputs."""
        return Inputs.of(self.reader.source, self.embedder.folder.model_files)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the output depends on besides the inputs: the vectors, and how records are read."""
        source = self.reader.source
        paths = [input_name(path) for path in source.paths]
        options = source.options | {"texts": len(source.texts), "paths": paths}
        for name in OPTIONS_WITHOUT_EFFECT:
            del options[name]
        return {**self.vector_fingerprint, "input": options}

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
        yield BatchDone(earlier_texts=self.tally.records)
        blocks = self._uncommitted_records()
        run = embedder.run(self.reader, fixed_windows=True)
        run = replace(run, remaining=blocks, start=self.digest.records, tally=self.tally)
        windows = embedder.windows(run)
        if self.target.update:
            fingerprint = {**self.vector_fingerprint, **(self.manifest_entries or {})}
            fingerprint["precision"] = self.target.precision
            rows, vectors = self.known_rows(writer)
            self.known_vectors = KnownVectors(fingerprint, embedder, rows, vectors)
            self.unusable_reason = self._unusable_reason(writer, rows, fingerprint)
            windows = self.known_vectors.windows(run)
        for window in windows:
            for event in window:
                if isinstance(event, EmbeddedBlock):
                    self.digest.add(event.records)
                yield event
            yield self._commit()
            self.committed = self.digest.records
        if not writer.rows:
            writer.write(OutputFields(0), embedder.empty_output)
        yield self._commit()
        self.committed = self.digest.records

    def _uncommitted_records(self) -> Iterator[Sequence[Record]]:
        """Return blocks of the records after the committed ones; all are added to the digest.

        Raises OutputError if the committed records differ from those of the interrupted run.
        """
        blocks = self.reader.blocks()
        records_left = self.committed
        uncommitted: Sequence[Record] = ()
        while records_left and (block := next(blocks, None)) is not None:
            self.digest.add(block[:records_left])
            uncommitted = block[records_left:]
            records_left -= len(block[:records_left])
        if self.earlier and self.digest.hexdigest() != self.earlier["input"]:
            raise OutputError(
                f"{self.target.path}: the first {self.earlier['records']} records are not those of "
                "the run that is resumed",
                f"give the same input, or start over with {option('overwrite')}",
            )
        return chain([uncommitted], blocks) if uncommitted else blocks

    def write(self, writer: VectorWriter, block: EmbeddedBlock) -> None:
        """Write the records of a block and their vectors."""
        digests = self.known_vectors.digests(block.records) if self.known_vectors else None
        block.records = block.records.without(self.consumed)
        fields = self.target.fields_of(block)
        sizes = [*map(len, block.vectors)] if isinstance(block.vectors, list) else None
        writer.write(replace(fields, sizes=sizes, digests=digests), block.stacked)

    def _commit(self) -> Commit:
        return Commit(
            {
                "records": self.digest.records,
                "input": self.digest.hexdigest(),
                "tally": asdict(self.tally),
            }
        )

    def summary(self) -> dict[str, Any]:
        """Return the run's entries of the manifest."""
        return {
            **(self.manifest_entries or {}),
            "same_bits": self.embedder.runtime.engine.same_bits,
            "counts": asdict(self.tally) | {"skipped": self.reader.skipped},
            "input_sha256": self.digest.hexdigest(),
            "corpus_sha256": self.digest.texts,
        }

    def known_rows(self, writer: VectorWriter) -> tuple[dict[str, int], Array]:
        """Return the row of each digest in the output to update, and all of its vectors.

        The vectors are copied to a temporary file.
        """
        rows: dict[str, int] = {}
        if writer.has_known_rows():
            for _, row in chain.from_iterable(located_objects(str(writer.index))):
                if DIGEST in row:
                    rows.setdefault(row[DIGEST], row[ROW])
        shape = self.embedder.empty_output.shape[1:]
        blocks = read_float_vectors(str(writer.output), shape[-1]) if rows else ()
        return rows, memory_mapped(block for block in blocks if block.shape[1:] == shape)

    def _unusable_reason(
        self, writer: VectorWriter, rows: Mapping[str, int], fingerprint: Mapping[str, Any]
    ) -> str:
        """Return why no vector of the output can be reused; "" if some may be."""
        manifest = writer.read_manifest() if writer.output.exists() else {}
        if not manifest:
            return ""
        if not rows:
            return f"{self.target.path} was made without {option('update')}"
        recorded = {**manifest, **manifest.get("fingerprint", {})}
        values = as_json(fingerprint)
        different = [
            name
            for name in values
            if name not in KEYS_WITHOUT_EFFECT and recorded.get(name) != values[name]
        ]
        if different:
            return f"{self.target.path} was made with other {', '.join(different)}"
        return ""

    @property
    def reuse_note(self) -> str:
        """A note on the number of vectors that an update reused; "" without an update."""
        if self.known_vectors is None:
            return ""
        line = f"{self.known_vectors.reused:,} of {counted(self.tally.records, 'vector')} reused"
        if self.resumed:
            line += f", {self.resumed:,} kept from the interrupted update"
        return f"{line}: {self.unusable_reason}" if self.unusable_reason else line


class KnownVectors:
    """The ``vectors`` of earlier runs [n, D...], and their rows by digest of the text.

    Digests include the fingerprint (model and options). ``reused`` counts texts of this run.
    """

    def __init__(
        self,
        fingerprint: Mapping[str, Any],
        embedder: RecordEmbedder,
        rows: Mapping[str, int],
        vectors: Array,
    ) -> None:
        self.embedder = embedder
        self.reused = 0
        values = {key: fingerprint[key] for key in fingerprint if key not in KEYS_WITHOUT_EFFECT}
        text = json.dumps(values, sort_keys=True)
        self.prefix_hash = hashlib.sha256(text.encode(errors="surrogatepass"))
        self.vectors = vectors
        self.rows = {digest: row for digest, row in rows.items() if row < len(vectors)}

    def digests(self, records: Sequence[Record]) -> list[str]:
        """Return the digest of each record's text, pair, extra embedding ids and window."""
        digests = []
        for record in RecordBatch.of(records):
            digest = self.prefix_hash.copy()
            extra = record.extra or {}
            ids = (extra.get(name) for name in self.embedder.runtime.extra_columns.id_limits)
            window = record.window[:3] if record.window else ()
            text = repr((record.text, record.pair, *ids, *window))
            digest.update(text.encode(errors="surrogatepass"))
            digests.append(digest.hexdigest()[:32])
        return digests

    def windows(self, run: TokenizeRun) -> Iterator[Iterator[BatchDone | EmbeddedBlock]]:
        """Yield the windows of a run, in the same form as `RecordEmbedder.windows`."""
        for counts, batch in self.embedder.counted(run):
            run.tally.merge(counts)
            yield self._events(batch)

    def _events(self, batch: TokenBatch) -> Iterator[BatchDone | EmbeddedBlock]:
        if not len(batch):
            return
        starts = [*accumulate(batch.windows_per_record[:-1], initial=0)]
        digests = self.digests([batch.records[start] for start in starts])
        old = np.array([self.rows.get(digest, -1) for digest in digests])
        fresh = np.flatnonzero(old < 0)
        if len(fresh) == len(old):
            yield from self.embedder.embed_window(batch)
            return
        vectors = self.vectors[np.maximum(old, 0)]
        self.embedder.refuse_without_vector(batch)
        rows = split_by_sizes(range(len(batch)), batch.windows_per_record)
        fresh_rows = batch.take(row for index in fresh for row in rows[index])
        for event in self.embedder.embed_window(fresh_rows):
            if isinstance(event, BatchDone):
                yield event
            else:
                vectors[fresh] = event.vectors
        self.reused += len(old) - len(fresh)
        yield EmbeddedBlock(batch.take(starts) if len(starts) < len(batch) else batch, vectors)
