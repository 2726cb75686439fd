"""A whole run of `bertcli embed`: from a reader to a file that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from bertcli.inference.progress import Ran, Resumed, Step
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.fingerprint import InputDigest, Inputs, TextDigests, made_by
from bertcli.vectors.output import Sink, Target, begin, claimed
from bertcli.vectors.stream import metas
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
    """A run that writes a file, window by window. ``tally`` counts over all runs of the file."""

    embedder: Embedder
    reader: Reader
    target: Target
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
        inputs, known = self._inputs(), None
        with claimed(self.target, inputs) as files, ExitStack() as stack:
            sink = begin(self.target, files, self._fingerprint(), inputs)
            stack.enter_context(closing(sink))
            self.unchecked = inputs.streams if sink.done or sink.state else ()
            if sink.done:
                self.complete = True
                return
            state = sink.state or {}
            self.committed = state.get("records", 0)
            self.tally = TokenCounts(**state.get("tally", {}))
            if self.target.update:
                digests = TextDigests(self._made_by(), tuple(self.embedder.extra.limits))
                opened = KnownVectors.open(files, digests, self.embedder.nothing)
                known = stack.enter_context(opened)
                known.reused = state.get("reused", 0)
                self.without_digests = known.without_digests
            yield Resumed(self.tally.records)
            digest = InputDigest()
            blocks = self._after(state, digest)
            run = self.embedder.run(self.reader, full=True, blocks=blocks, start=digest.records)
            for window in (
                known.windows(self.embedder, run) if known else self.embedder.windows(run)
            ):
                self.tally.merge(window.counts)
                for part in window.parts:
                    if isinstance(part, Ran):
                        yield part
                        continue
                    digest.add(part.records)
                    self._write(sink, part, known)
                self.reused = known.reused if known else 0
                inputs.refuse_changing(str(self.target.path), sink.journal.inputs)
                self._commit(sink, digest)
            inputs.refuse_changing(str(self.target.path), sink.journal.inputs)
            if not sink.rows:
                sink.write([], self.embedder.nothing, [] if self.target.many else None)
            self._commit(sink, digest)
            yield from sink.finishing(self._manifest(digest))

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

    def _inputs(self) -> Inputs:
        source = self.reader.source
        pair = () if source.pair is None else (source.pair,)
        texts = (*source.texts, *pair)
        needed = [Path(source.list_file)] if source.list_file else []
        return Inputs(source.paths, texts, [*needed, *model_files(self.embedder.folder.path)])

    def _write(self, sink: Sink, block: EmbeddedBlock, known: KnownVectors | None) -> None:
        rows = (
            own_ids(block, self.target.places)
            if self.target.only_ids
            else metas(block, self.consumed)
        )
        counts = None
        if self.target.many:
            several = isinstance(block.vectors, list)
            counts = [len(vectors) if several else 1 for vectors in block.vectors]
        digests = known.digests.of(block.records) if known else ()
        sink.write(rows, stacked(block), counts, digests)

    def _commit(self, sink: Sink, digest: InputDigest) -> None:
        sink.commit(
            {
                "records": digest.records,
                "input": digest.sha.hexdigest(),
                "tally": asdict(self.tally),
                **({"reused": self.reused} if self.target.update else {}),
            }
        )
        self.committed = digest.records

    def _made_by(self) -> dict[str, Any]:
        """Return all that decides the vector of a text, wherever the model lies."""
        maker = {name: value for name, value in made_by(self.embedder).items() if name != "model"}
        return {**maker, **self.about, "precision": self.target.precision}

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
