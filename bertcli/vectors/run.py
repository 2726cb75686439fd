"""A whole run of `bertcli embed`: from a reader to a file that can be resumed, or to a stream.

An output may follow its input (``update``): texts that it holds keep their vectors, others get
theirs. Beside the output an index has a digest of each row: of its text, and of all else that
decides its vector. A vector is taken over where the digest is the same, so the new output has the
bytes of a run from nothing, as far as a vector depends on its text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import model_files
from bertcli.embedding.embedded import COLUMNS, EmbeddedBlock, EmbedWindow, windows_of
from bertcli.embedding.embedder import Embedder
from bertcli.errors import OutputError
from bertcli.files.jsonl import objects_of
from bertcli.files.versions import versions
from bertcli.inference.progress import Ran, Step
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tokenizing.columns import RaggedBatch
from bertcli.tokenizing.run import Batch, TokenCounts, TokenizeRun, each_of
from bertcli.vectors.fingerprint import InputDigest, Inputs, TextDigests, made_by
from bertcli.vectors.formats import DIGEST, ROW, metas
from bertcli.vectors.output import Sink, Target
from bertcli.vectors.reading import Aside, floats
from bertcli.vectors.run_folder import RunFiles

NOT_OF_RECORDS = ("asked", "flags", "taken", "max_record_bytes")  # no record is another by these
LIBRARIES = ("openvino", "torch", "tokenizers", "numpy")  # that the numbers depend on


def stacked(block: EmbeddedBlock) -> np.ndarray:
    """Return the vectors of some records as one array, [n, D]: one each, or those of all pieces."""
    vectors = block.vectors
    return np.concatenate(vectors) if isinstance(vectors, list) else vectors


@dataclass
class EmbedRun:
    """A run whose records go to a file, window by window, or to a function, as they are embedded.

    ``tally`` counts over all runs of the file.
    """

    embedder: Embedder
    reader: Reader
    target: Target | Callable[[EmbeddedBlock], None]
    about: Mapping[str, Any] = field(default_factory=lambda: {"versions": versions(*LIBRARIES)})
    tally: TokenCounts = field(default_factory=TokenCounts)
    complete: bool = False  # whether the file was there already
    committed: int = 0  # records that a run which is resumed need not compute again
    reused: int = 0  # texts whose vectors the output had before
    without_digests: bool = False  # whether that output did not say of which texts they are
    unchecked: Sequence[str] = ()  # inputs of a run that is resumed which cannot be read twice

    def __post_init__(self) -> None:
        self.consumed = self.embedder.extra.read_by(self.reader)

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the run is; at the end the file is there.

        Records are committed by windows, so those of a run that is resumed are the same.

        Raises OutputError when a run that is resumed saw another input.
        """
        if isinstance(self.target, Target):
            yield from self._to_file(self.target)
            return
        for window in self.embedder.windows(self.embedder.run(self.reader)):
            self.tally.merge(window.counts)
            for part in window.parts:
                if isinstance(part, Ran):
                    yield part
                else:
                    part.records = part.records.without(self.consumed)
                    self.target(part)

    def _to_file(self, target: Target) -> Iterator[Step]:
        embedder, source, digest = self.embedder, self.reader.source, InputDigest()
        texts = source.texts if source.pair is None else (*source.texts, source.pair)
        needed = map(Path, filter(None, [source.list_file]))
        inputs = Inputs(source.paths, texts, [*needed, *model_files(embedder.folder.path)])
        maker, known = made_by(embedder), None
        read = asdict(source) | {"texts": len(source.texts)}
        read = {name: value for name, value in read.items() if name not in NOT_OF_RECORDS}
        with ExitStack() as stack:
            sink = stack.enter_context(target.opened({**maker, "input": read}, inputs))
            self.unchecked = inputs.streams if sink.complete or sink.state else ()
            self.complete = sink.complete is not None
            if self.complete:
                return
            state = sink.state or {}
            self.committed, self.reused = state.get("records", 0), state.get("reused", 0)
            self.tally = TokenCounts(**state.get("tally", {}))
            yield Ran(before=self.tally.records)
            blocks = self._after(state, digest, target.path)
            run = embedder.run(self.reader, full=True, blocks=blocks, start=digest.records)
            windows = embedder.windows(run)
            if target.update:  # a text has the same vector wherever the model lies
                decides = {**maker, **self.about, "precision": target.precision}
                del decides["model"]
                digests = TextDigests(decides, tuple(embedder.extra.limits))
                known = KnownVectors(sink, digests, embedder.nothing)
                stack.enter_context(closing(known))
                known.reused, self.without_digests = self.reused, known.without_digests
                windows = known.windows(embedder, run)
            for window in windows:
                self.tally.merge(window.counts)
                for part in window.parts:
                    if isinstance(part, Ran):
                        yield part
                        continue
                    digest.add(part.records)
                    self._write(sink, part, known)
                self.reused = known.reused if known else 0
                self._commit(sink, inputs, digest)
            if not sink.rows:
                sink.write([], embedder.nothing, [] if target.many else None)
            self._commit(sink, inputs, digest)
            yield from sink.finishing(
                {
                    **self.about,
                    "same_bits": embedder.runtime.same_bits,
                    "counts": asdict(self.tally) | {"skipped": self.reader.skipped},
                    "input_sha256": digest.sha.hexdigest(),
                    "texts_sha256": digest.texts.hexdigest(),
                }
            )

    def _after(
        self, state: Mapping[str, Any], digest: InputDigest, path: Path
    ) -> Iterator[Sequence[Record]]:
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
                f"{path}: the first {state['records']} records are not those of the run that is "
                "resumed",
                "give the same input, or start over with --overwrite",
            )
        return chain([uncommitted], blocks) if uncommitted else blocks

    def _write(self, sink: Sink, block: EmbeddedBlock, known: KnownVectors | None) -> None:
        counts, places = None, sink.target.places
        if not sink.target.only_ids:
            rows = metas(block, self.consumed)
        else:  # of those records that have one, and the fields that place them in a text
            ids = block.records.ids or [None] * len(block)
            extras = block.records.extras if places else None
            rows = [
                ({} if key is None else {"id": key})
                | {name: (extra or {})[name] for name in places}
                for key, extra in zip(ids, extras or repeat(None), strict=False)
            ]
        if sink.target.many:
            several = isinstance(block.vectors, list)
            counts = [len(vectors) if several else 1 for vectors in block.vectors]
        sink.write(rows, stacked(block), counts, known.digests.of(block.records) if known else ())

    def _commit(self, sink: Sink, inputs: Inputs, digest: InputDigest) -> None:
        inputs.refuse_changing(str(sink.target.path), sink.journal["inputs"])
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

    def __init__(self, folder: RunFiles, digests: TextDigests, nothing: np.ndarray) -> None:
        """Read them; ``nothing`` is of the shape of no vector, [0, D...]."""
        self.digests, self.aside, self.reused = digests, Aside(), 0
        exists, index = folder.output.exists(), folder.index
        rows: dict[bytes, int] = {}
        for _, row in chain.from_iterable(objects_of(str(index)) if index.exists() else ()):
            if not (exists and isinstance(row.get(DIGEST), str)):
                rows = {}
                break
            rows.setdefault(bytes.fromhex(row[DIGEST]), row[ROW])
        for block in floats(str(folder.output), nothing.shape[-1]) if rows else ():
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

    def windows(self, embedder: Embedder, run: TokenizeRun) -> Iterator[EmbedWindow]:
        """Yield the windows of a run, as those of the embedder."""
        for counts, batch in run.counted():
            yield EmbedWindow(counts, self._parts(embedder, batch))

    def _parts(self, embedder: Embedder, batch: Batch) -> Iterator[Ran | EmbeddedBlock]:
        if not len(batch):
            return
        items = windows_of(each_of(batch, COLUMNS))
        digests = self.digests.of([windows[0].record for windows in items])
        old = np.array([self.rows.get(digest, -1) for digest in digests])
        fresh = np.flatnonzero(old < 0)
        if len(fresh) == len(old):
            yield from embedder.embedded(batch)
            return
        vectors = self.vectors[np.maximum(old, 0)]
        embedder.refuse(batch)
        new = [item for at in fresh for item in items[at]]
        for part in embedder.embedded(new):
            if isinstance(part, Ran):
                yield part
            else:
                vectors[fresh] = part.vectors
        self.reused += len(old) - len(fresh)
        firsts = batch if isinstance(batch, RaggedBatch) else [windows[0] for windows in items]
        yield EmbeddedBlock(firsts, vectors)
