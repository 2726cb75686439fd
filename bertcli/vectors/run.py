"""A whole run of `bertcli embed`: from a reader to a file that can be resumed, or to a stream.

A stream keeps nothing, so what files need is imported with the first file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.checkpoints.scan import model_files
from bertcli.embedding.embedded import EmbeddedBlock
from bertcli.embedding.embedder import Embedder
from bertcli.errors import OutputError
from bertcli.inference.progress import Ran, Step
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.fingerprint import InputDigest, Inputs, TextDigests, made_by
from bertcli.vectors.formats import metas

if TYPE_CHECKING:
    from bertcli.vectors.output import Sink, Target
    from bertcli.vectors.update import KnownVectors

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
    about: Mapping[str, Any] | None = None  # for the manifest; None: the versions of libraries
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
        if not callable(self.target):
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
        from bertcli.files.versions import versions
        from bertcli.vectors.update import KnownVectors

        about = self.about or {"versions": versions(*LIBRARIES)}
        embedder, source, digest = self.embedder, self.reader.source, InputDigest()
        texts = source.texts if source.pair is None else (*source.texts, source.pair)
        needed = map(Path, filter(None, [source.list_file]))
        inputs = Inputs(source.paths, texts, [*needed, *model_files(embedder.folder.path)])
        maker, reusable = made_by(embedder), None
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
                decides = {**maker, **about, "precision": target.precision}
                del decides["model"]
                digests = TextDigests(decides, tuple(embedder.extra.limits))
                reusable = KnownVectors(sink, digests, embedder.nothing)
                stack.enter_context(closing(reusable))
                reusable.reused, self.without_digests = self.reused, reusable.without_digests
                windows = reusable.windows(embedder, run)
            for window in windows:
                self.tally.merge(window.counts)
                for part in window.parts:
                    if isinstance(part, Ran):
                        yield part
                        continue
                    digest.add(part.records)
                    self._write(sink, part, reusable)
                self.reused = reusable.reused if reusable else 0
                self._commit(sink, inputs, digest)
            if not sink.rows:
                sink.write([], embedder.nothing, [] if target.many else None)
            self._commit(sink, inputs, digest)
            yield from sink.finishing(
                {
                    **about,
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

    def _write(self, sink: Sink, block: EmbeddedBlock, reusable: KnownVectors | None) -> None:
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
        sink.write(
            rows, stacked(block), counts, reusable.digests.of(block.records) if reusable else ()
        )

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
