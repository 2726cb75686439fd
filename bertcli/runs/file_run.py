"""A run of `bertcli embed` to a file that appears whole, and that may be killed at any instant.

    run = FileRun(embedder, reader, Target(Path("out.npy"), "npy", resume=True))
    for step in run:      # how far it is
        ...

Rows go to the `Sink` of `run_folder`. A record may have several, for its tokens or words.

The index of an output that is updated has a digest of each row: of its text, and of all else that
decides its vector. A vector is taken over where the digest is the same, so the new output has the
bytes of a run from nothing, as far as a vector depends on its text alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import refuse_format
from bertcli.embedding.pooling import EmbeddedBlock, split
from bertcli.errors import OutputError, counted, option
from bertcli.formats.jsonl import objects_of
from bertcli.formats.registry import FORMATS, VECTORS
from bertcli.formats.vector_files import DIGEST, ROW, Array, floats, put_aside
from bertcli.formats.vector_writer import Fields
from bertcli.io.paths import input_name
from bertcli.io.progress import Ran, Step
from bertcli.io.typed_json import as_json
from bertcli.records.batch import RecordBatch
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.runs.run_folder import InputDigest, Inputs, Sink, Target, made_by
from bertcli.tokenizing.batch import TokenBatch
from bertcli.tokenizing.run import TokenCounts, TokenizeRun
from bertcli.versions import versions

NOT_OF_RECORDS = ("asked", "taken", "max_record_bytes")  # no record is another by these
NOT_OF_VECTORS = ("model",)  # a text has the same vector wherever the model lies
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
    resumed: int = 0  # records that an interrupted run had committed
    reusable: KnownVectors | None = None  # of an output that is updated
    unusable: str = ""  # why no vector of the output that is updated can be reused
    unchecked: Sequence[str] = ()  # inputs of a run that is resumed which cannot be read twice

    def __post_init__(self) -> None:
        embedder, form = self.embedder, self.target.form
        if form not in VECTORS:
            raise OutputError(f"vectors cannot be written as {form}", ", ".join(VECTORS))
        refuse_format(form, embedder.options)
        FORMATS[form].require()
        self.consumed = embedder.runtime.extra.read_by(self.reader)
        self.target = replace(
            self.target,
            many=embedder.options.several,
            places=embedder.places(self.reader),
            terms=embedder.term_names,
        )

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the run is; at the end the file is there.

        Records are committed by windows, so those of a run that is resumed are the same.

        Raises OutputError when a run that is resumed saw another input.
        """
        embedder, target, digest = self.embedder, self.target, InputDigest()
        about = self.about or {"versions": versions(*LIBRARIES)}
        source, maker = self.reader.source, made_by(embedder)
        inputs = Inputs.of(source, embedder.folder.model_files)
        paths = [input_name(path) for path in source.paths]
        read = asdict(source) | {"texts": len(source.texts), "paths": paths}
        read = {name: value for name, value in read.items() if name not in NOT_OF_RECORDS}
        with target.opened({**maker, "input": read}, inputs) as sink:
            self.unchecked = inputs.streams if sink.complete or sink.state else ()
            self.complete = sink.complete
            if sink.complete:
                return
            state = sink.state or {}
            self.committed = self.resumed = state.get("records", 0)
            self.tally = TokenCounts(**state.get("tally", {}))
            yield Ran(before=self.tally.records)
            blocks = self._after(state, digest)
            run = embedder.run(self.reader, full=True)
            run = replace(run, rest=blocks, start=digest.records, tally=self.tally)
            windows = embedder.windows(run)
            if target.update:
                decides = {**maker, **about, "precision": target.precision}
                rows, vectors = self.known_rows(sink)
                self.reusable = KnownVectors(decides, embedder, rows, vectors)
                self.unusable = self._unusable(sink, rows, decides)
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
                sink.write(Fields(0), embedder.nothing)
            self._commit(sink, digest)
            sink.finish(
                {
                    **about,
                    "same_bits": embedder.runtime.engine.same_bits,
                    "counts": asdict(self.tally) | {"skipped": self.reader.skipped},
                    "input_sha256": digest.of(),
                    "corpus_sha256": digest.texts,
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
        if state and digest.of() != state["input"]:
            raise OutputError(
                f"{self.target.path}: the first {state['records']} records are not those of the "
                "run that is resumed",
                f"give the same input, or start over with {option('overwrite')}",
            )
        return chain([uncommitted], blocks) if uncommitted else blocks

    def _write(self, sink: Sink, block: EmbeddedBlock) -> None:
        digests = self.reusable.digests(block.records) if self.reusable else None
        block.records = block.records.without(self.consumed)
        fields = self.target.fields_of(block)
        sizes = [*map(len, block.vectors)] if isinstance(block.vectors, list) else None
        sink.write(replace(fields, sizes=sizes, digests=digests), block.stacked)

    def known_rows(self, sink: Sink) -> tuple[dict[str, int], Array]:
        """Return the rows of the digests in an output that is updated, and all its vectors.

        They are put aside.
        """
        rows: dict[str, int] = {}
        if sink.has_known_rows():
            for _, row in chain.from_iterable(objects_of(str(sink.index))):
                if DIGEST in row:
                    rows.setdefault(row[DIGEST], row[ROW])
        shape = self.embedder.nothing.shape[1:]
        blocks = floats(str(sink.output), shape[-1]) if rows else ()
        return rows, put_aside(block for block in blocks if block.shape[1:] == shape)

    def _unusable(self, sink: Sink, rows: Mapping[str, int], decides: Mapping[str, Any]) -> str:
        """Return why the output has no vector that can be reused, "" if it may have some."""
        manifest = sink.read_manifest() if sink.output.exists() else {}
        if not manifest:
            return ""
        if not rows:
            return f"{self.target.path} was made without {option('update')}"
        before = {**manifest, **manifest.get("fingerprint", {})}
        names = [name for name in as_json(decides) if name not in NOT_OF_VECTORS]
        different = [name for name in names if before.get(name) != as_json(decides)[name]]
        if different:
            return f"{self.target.path} was made with other {', '.join(different)}"
        return ""

    @property
    def reuse(self) -> str:
        """How many vectors an update did not compute, for a note; "" where it is no update."""
        if self.reusable is None:
            return ""
        line = f"{self.reusable.reused:,} of {counted(self.tally.records, 'vector')} reused"
        if self.resumed:
            line += f", {self.resumed:,} kept from the interrupted update"
        return f"{line}: {self.unusable}" if self.unusable else line

    def _commit(self, sink: Sink, digest: InputDigest) -> None:
        sink.commit(
            {
                "records": digest.records,
                "input": digest.of(),
                "tally": asdict(self.tally),
            }
        )
        self.committed = digest.records


class KnownVectors:
    """The ``vectors`` of earlier runs [n, D...], and the row of each digest of a text.

    Digests are of what ``decides`` vectors as well. ``reused`` counts texts of this run.
    """

    def __init__(
        self,
        decides: Mapping[str, Any],
        embedder: Embedder,
        rows: Mapping[str, int],
        vectors: Array,
    ) -> None:
        self.embedder, self.reused = embedder, 0
        decides = {name: it for name, it in decides.items() if name not in NOT_OF_VECTORS}
        text = json.dumps(decides, sort_keys=True)
        self.key = hashlib.sha256(text.encode(errors="surrogatepass"))
        self.vectors = vectors
        self.rows = {digest: row for digest, row in rows.items() if row < len(vectors)}

    def digests(self, records: Sequence[Record]) -> list[str]:
        """Return the digest of each record's text, pair, and the ids that the model needs."""
        digests = []
        for record in RecordBatch.of(records):
            digest, extra = self.key.copy(), record.extra or {}
            ids = (extra.get(name) for name in self.embedder.runtime.extra.limits)
            text = repr((record.text, record.pair, *ids))
            digest.update(text.encode(errors="surrogatepass"))
            digests.append(digest.hexdigest()[:32])
        return digests

    def windows(self, run: TokenizeRun) -> Iterator[Iterator[Ran | EmbeddedBlock]]:
        """Yield the windows of a run, as those of the embedder."""
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
