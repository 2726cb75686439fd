"""A whole run of `bertcli embed`: from a reader to a file that can be resumed, or to a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import model_files
from bertcli.embedding.embedded import EmbeddedBlock
from bertcli.embedding.embedder import Embedder
from bertcli.errors import OutputError
from bertcli.files.versions import versions
from bertcli.inference.progress import Ran, Step
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.fingerprint import InputDigest, Inputs, TextDigests, made_by
from bertcli.vectors.formats import metas
from bertcli.vectors.output import Sink, Target
from bertcli.vectors.update import KnownVectors

NOT_OF_RECORDS = ("asked", "flags", "taken", "max_record_bytes")  # no record is another by these
LIBRARIES = ("openvino", "torch", "tokenizers", "numpy")  # that the numbers depend on


def own_ids(block: EmbeddedBlock, places: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the ids of those records that have one, and the fields that place them in a text."""
    rows: list[dict[str, Any]] = [
        {} if key is None else {"id": key} for key in block.records.ids or [None] * len(block)
    ]
    if places:
        for row, extra in zip(rows, block.records.extras or (), strict=True):
            row |= {name: (extra or {})[name] for name in places}
    return rows


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
        inputs, known, digest = self._inputs(), None, InputDigest()
        with ExitStack() as stack:
            sink = stack.enter_context(target.opened(self._fingerprint(), inputs))
            self.unchecked = inputs.streams if sink.complete or sink.state else ()
            self.complete = sink.complete
            if sink.complete:
                return
            state = sink.state or {}
            self.committed = state.get("records", 0)
            self.tally = TokenCounts(**state.get("tally", {}))
            if target.update:
                digests = TextDigests(self._made_by(target), tuple(self.embedder.extra.limits))
                known = KnownVectors(sink.folder, digests, self.embedder.nothing)
                stack.enter_context(closing(known))
                known.reused = state.get("reused", 0)
                self.without_digests = known.without_digests
            yield Ran(before=self.tally.records)
            blocks = self._after(state, digest, target.path)
            run = self.embedder.run(self.reader, full=True, blocks=blocks, start=digest.records)
            windows = known.windows(self.embedder, run) if known else self.embedder.windows(run)
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
                sink.write([], self.embedder.nothing, [] if target.many else None)
            self._commit(sink, inputs, digest)
            yield from sink.finishing(self._manifest(digest))

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
                f"{path}: the first {state['records']} records are not those of the "
                "run that is resumed",
                "give the same input, or start over with --overwrite",
            )
        return chain([uncommitted], blocks) if uncommitted else blocks

    def _inputs(self) -> Inputs:
        source = self.reader.source
        pair = () if source.pair is None else (source.pair,)
        texts = (*source.texts, *pair)
        needed = [Path(source.list_file)] if source.list_file else []
        return Inputs(source.paths, texts, [*needed, *model_files(self.embedder.folder.path)])

    def _write(self, sink: Sink, block: EmbeddedBlock, known: KnownVectors | None) -> None:
        ids, places = sink.target.only_ids, sink.target.places
        rows = own_ids(block, places) if ids else metas(block, self.consumed)
        counts = None
        if sink.target.many:
            several = isinstance(block.vectors, list)
            counts = [len(vectors) if several else 1 for vectors in block.vectors]
        digests = known.digests.of(block.records) if known else ()
        sink.write(rows, stacked(block), counts, digests)

    def _commit(self, sink: Sink, inputs: Inputs, digest: InputDigest) -> None:
        inputs.refuse_changing(str(sink.target.path), sink.folder.journal["inputs"])
        sink.commit(
            {
                "records": digest.records,
                "input": digest.sha.hexdigest(),
                "tally": asdict(self.tally),
                "reused": self.reused,
            }
        )
        self.committed = digest.records

    def _made_by(self, target: Target) -> dict[str, Any]:
        """Return all that decides the vector of a text, wherever the model lies."""
        maker = {name: value for name, value in made_by(self.embedder).items() if name != "model"}
        return {**maker, **self.about, "precision": target.precision}

    def _fingerprint(self) -> dict[str, Any]:
        source = asdict(self.reader.source)
        texts = source.pop("texts")
        read = {name: value for name, value in source.items() if name not in NOT_OF_RECORDS}
        return {**made_by(self.embedder), "input": read | {"texts": len(texts)}}

    def _manifest(self, digest: InputDigest) -> dict[str, Any]:
        tally = asdict(self.tally) | {"skipped": self.reader.skipped}
        return {
            **self.about,
            "same_bits": self.embedder.runtime.same_bits,
            "counts": tally,
            "input_sha256": digest.sha.hexdigest(),
            "texts_sha256": digest.texts.hexdigest(),
        }
