"""A whole run of `bertcli embed`: from a reader to a file that can be resumed, or to a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import model_files
from bertcli.embedding.embedder import Embedded, Embedder
from bertcli.errors import OutputError
from bertcli.files.versions import versions
from bertcli.files.writers import open_output
from bertcli.inference.progress import Ran, Resumed, Step
from bertcli.records.reader import Reader
from bertcli.records.records import Record, carried
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.fingerprint import InputDigest, made_by
from bertcli.vectors.formats import vector_writer
from bertcli.vectors.input_hashes import Inputs
from bertcli.vectors.output import begin, claimed
from bertcli.vectors.rows import WRITTEN, WRITTEN_OF_MANY
from bertcli.vectors.sink import Sink, Target

if TYPE_CHECKING:
    import numpy as np

LIBRARIES = ("torch", "tokenizers", "numpy")  # that the numbers depend on


def metas(items: Sequence[Embedded]) -> list[dict[str, Any]]:
    """Return what is written of each record beside its vector.

    Raises InputError when a record carries a field of a name that is written.
    """
    found = []
    also = WRITTEN if not items or items[0].pieces is None else WRITTEN_OF_MANY
    for encoded, _, pieces in items:
        record = encoded.record
        row = {"id": encoded.sample if record.id is None else record.id}
        if pieces is not None:
            row |= pieces.fields(pair=record.pair is not None)
        row["n_tokens"] = encoded.length
        if encoded.cut:
            row["truncated"] = encoded.cut
        found.append(row | carried(row, record, also))
    return found


def own_ids(items: Sequence[Embedded]) -> list[dict[str, Any]]:
    """Return the ids of those records that have one."""
    records = [item.encoded.record for item in items]
    return [{} if record.id is None else {"id": record.id} for record in records]


def stacked(items: Sequence[Embedded]) -> np.ndarray:
    """Return the vectors of some records as one array, [n, D]: one each, or those of all pieces."""
    import numpy as np

    vectors = [item.vector for item in items]
    return np.stack(vectors) if items[0].pieces is None else np.concatenate(vectors)


def counts(items: Sequence[Embedded]) -> list[int]:
    """Return how many rows of the array each record has."""
    return [1 if item.pieces is None else len(item.vector) for item in items]


@dataclass
class EmbedStream:
    """A run that gives its records to ``write``, each window once its vectors are there."""

    embedder: Embedder
    reader: Reader
    write: Callable[[list[Embedded]], None]
    tally: TokenCounts = field(default_factory=TokenCounts)

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the run is."""
        for window in self.embedder.windows(self.embedder.run(self.reader)):
            self.tally.merge(window.counts)
            for part in window.parts:
                if isinstance(part, Ran):
                    yield part
                else:
                    self.write(part)


@contextmanager
def stdout_writer(form: str, precision: str) -> Iterator[Callable[[list[Embedded]], None]]:
    """Yield a function that writes records to stdout, as JSONL or CSV."""
    with open_output(None) as out, vector_writer(out.file, form, precision) as write:

        def put(items: list[Embedded]) -> None:
            several = items and items[0].pieces is not None
            write(metas(items), [one.vector for one in items] if several else stacked(items))

        yield put


@dataclass
class EmbedRun:
    """A run that writes a file, window by window. ``tally`` counts over all runs of the file."""

    embedder: Embedder
    reader: Reader
    target: Target
    about: Mapping[str, Any] = field(default_factory=lambda: {"versions": versions(*LIBRARIES)})
    tally: TokenCounts = field(default_factory=TokenCounts)
    complete: bool = False  # whether the file was there already
    unchecked: Sequence[str] = ()  # inputs of a run that is resumed which cannot be read twice

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the run is; at the end the file is there.

        Records are committed by windows, so those of a run that is resumed are the same.

        Raises OutputError when a run that is resumed saw another input.
        """
        inputs = self._inputs()
        with claimed(self.target, inputs) as files:
            sink = yield from begin(self.target, files, self._fingerprint(), inputs)
            with closing(sink):
                yield from self._run(sink, inputs)

    def _run(self, sink: Sink, inputs: Inputs) -> Iterator[Step]:
        self.unchecked = inputs.streams if sink.done or sink.state else ()
        if sink.done:
            self.complete = True
            return
        state = sink.state or {}
        self.tally = TokenCounts(**state.get("tally", {}))
        yield Resumed(self.tally.records)
        digest = InputDigest()
        blocks = self._after(state, digest)
        run = self.embedder.run(self.reader, full=True, blocks=blocks, start=digest.records)
        for window in self.embedder.windows(run):
            self.tally.merge(window.counts)
            for part in window.parts:
                if isinstance(part, Ran):
                    yield part
                else:
                    self._write(sink, part, digest)
            yield from inputs.refuse_changing(str(self.target.path), sink.journal.inputs)
            self._commit(sink, digest)
        yield from inputs.refuse_changing(str(self.target.path), sink.journal.inputs)
        if not sink.rows:
            sink.write([], self.embedder.nothing, [] if self.target.many else None)
        self._commit(sink, digest)
        yield from sink.finishing(self._manifest(digest))

    def _after(self, state: Mapping[str, Any], digest: InputDigest) -> Iterator[Sequence[Record]]:
        """Return the records after those that are committed, which go to the digest.

        Raises OutputError unless they are those of the run that is resumed.
        """
        blocks, left = self.reader.blocks(), state.get("records", 0)
        rest: Sequence[Record] = ()
        while left and (block := next(blocks, None)) is not None:
            for record in block[:left]:
                digest.add(record)
            left, rest = left - len(block[:left]), block[left:]
        if state and digest.sha.hexdigest() != state["input"]:
            raise OutputError(
                f"{self.target.path}: the first {state['records']} records are not those of the "
                "run that is resumed",
                "give the same input, or start over with --overwrite",
            )
        return chain([rest], blocks) if rest else blocks

    def _inputs(self) -> Inputs:
        source = self.reader.source
        pair = () if source.pair is None else (source.pair,)
        texts = (*source.texts, *pair)
        folder = self.embedder.folder.path
        needed = model_files(folder, self.embedder.runtime.spec.folder)
        return Inputs(source.paths, texts, needed)

    def _write(self, sink: Sink, items: Sequence[Embedded], digest: InputDigest) -> None:
        for item in items:
            digest.add(item.encoded.record)
        rows = (
            own_ids(items) if self.target.lists_ids and not self.target.every_id else metas(items)
        )
        sink.write(rows, stacked(items), counts(items) if self.target.many else None)

    def _commit(self, sink: Sink, digest: InputDigest) -> None:
        sink.commit(
            {
                "records": digest.records,
                "input": digest.sha.hexdigest(),
                "tally": asdict(self.tally),
            }
        )

    def _fingerprint(self) -> dict[str, Any]:
        source = asdict(self.reader.source)
        for name in ("flags", "taken", "max_record_bytes"):  # no record is another by these
            del source[name]
        texts = source.pop("texts")
        return {**made_by(self.embedder), "input": source | {"texts": len(texts)}}

    def _manifest(self, digest: InputDigest) -> dict[str, Any]:
        tally = asdict(self.tally) | {"skipped": self.reader.skipped}
        return {
            **self.about,
            "same_bits": self.embedder.same_bits,
            "counts": tally,
            "input_sha256": digest.sha.hexdigest(),
            "texts_sha256": digest.texts.hexdigest(),
        }
