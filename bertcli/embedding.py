"""A whole run of `bertcli embed`: from a reader to a file that can be resumed, or to a stream."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import OutputError
from bertcli.hub import sha256
from bertcli.pipeline import Embedded, Embedder
from bertcli.records import Reader, Record
from bertcli.tokenizing import Tally
from bertcli.vectors.sink import Sink, Target, open_vectors

if TYPE_CHECKING:
    import numpy as np

TOKENIZER = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass
class Digest:
    """The sha256 of the records so far, so that a changed input is noticed on resuming."""

    sha: Any = field(default_factory=hashlib.sha256)
    records: int = 0

    def add(self, record: Record) -> None:
        """Take in one record."""
        self.sha.update(repr((record.id, record.text, record.pair, record.extra)).encode())
        self.records += 1


def metas(items: Sequence[Embedded]) -> list[dict[str, Any]]:
    """Return what is written of each record beside its vector."""
    found = []
    for encoded, _ in items:
        record = encoded.record
        row = {
            "id": encoded.sample if record.id is None else record.id,
            "n_tokens": encoded.length,
        }
        if encoded.cut:
            row["truncated"] = encoded.cut
        extra = record.extra or {}
        found.append(row | {name: value for name, value in extra.items() if name not in row})
    return found


def stacked(items: Sequence[Embedded]) -> np.ndarray:
    """Return the vectors of a window as one array, [n, D]."""
    import numpy as np

    return np.stack([item.vector for item in items])


@dataclass
class Writing:
    """A run that writes a file, window by window. ``tally`` counts over all runs of the file."""

    embedder: Embedder
    reader: Reader
    target: Target
    about: Mapping[str, Any]
    tally: Tally = field(default_factory=Tally)
    complete: bool = False  # whether the file was there already

    def __iter__(self) -> Iterator[list[Embedded]]:
        """Yield the windows that are new, each once it is committed; at the end the file is there.

        Raises OutputError when a run that is resumed saw another input.
        """
        with open_vectors(self.target, self._fingerprint()) as sink:
            if sink.done:
                self.complete = True
                return
            state = sink.state or {}
            digest = Digest()
            run = self.embedder.run(self.reader, full=True)
            run.start, run.passed = state.get("records", 0), digest.add
            run.tally = self.tally = Tally(**state.get("tally", {}))
            for number, window in enumerate(self.embedder.embed(run)):
                if number == 0:
                    self._same_input(digest, state)
                for item in window:
                    digest.add(item.encoded.record)
                sink.write(metas(window), stacked(window))
                self._commit(sink, digest)
                yield window
            if digest.records < run.start or (state and not sink.rows):
                self._same_input(digest, state)
            if digest.records:
                self._commit(sink, digest)
                sink.finish(self._manifest(digest))

    def _commit(self, sink: Sink, digest: Digest) -> None:
        sink.commit(
            {
                "records": digest.records,
                "input": digest.sha.hexdigest(),
                "tally": asdict(self.tally),
            }
        )

    def _same_input(self, digest: Digest, state: Mapping[str, Any]) -> None:
        if state and digest.sha.hexdigest() != state["input"]:
            raise OutputError(
                f"{self.target.path}: the first {state['records']} records are not those of the "
                "run that is resumed",
                "give the same input, or begin again with --overwrite",
            )

    def _fingerprint(self) -> dict[str, Any]:
        source = asdict(self.reader.source)
        texts = source.pop("texts")
        return {**made_by(self.embedder), "input": source | {"texts": len(texts)}}

    def _manifest(self, digest: Digest) -> dict[str, Any]:
        counts = asdict(self.tally) | {"skipped": self.reader.skipped}
        return {**self.about, "counts": counts, "input_sha256": digest.sha.hexdigest()}


def made_by(embedder: Embedder) -> dict[str, Any]:
    """Return what vectors depend on besides the input."""
    folder = embedder.folder.path / embedder.sentence.transformer
    return {
        "model": embedder.folder.name,
        "weights": digests(folder, WEIGHTS),
        "tokenizer": digests(folder, TOKENIZER),
        "options": embedder.chosen(),
    }


def digests(folder: Path, patterns: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of the files of a folder that match, by name."""
    found = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    return {path.name: sha256(path) for path in found}
