"""One shard, from its source to its output, by a worker that may be killed at any instant."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any

from bertcli.errors import BertcliError
from bertcli.files.paths import beside, manifest_beside, public, sha256
from bertcli.files.typed_json import as_json
from bertcli.ray import locations
from bertcli.ray.jobs import ShardJob
from bertcli.ray.shards import DEAD, Shard
from bertcli.records.reader import Reader
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.journal import Files, manifest_in, not_resumable, refuse_changes

MANIFEST = ".manifest.json"
COUNTS = (*(field.name for field in fields(TokenCounts)), "skipped")


@dataclass(frozen=True)
class Done:
    """The result of a shard, as it is sent by the worker."""

    shard: Shard
    counts: dict[str, int]
    max_length: int | None = None  # to which texts were truncated
    sha256: str | None = None  # of the output; None where there is none, of an empty input
    passed_over: bool = False  # an earlier run had made it
    worker: str = ""
    seconds: float = 0.0


class DeadLetters:
    """Writes the records that were skipped to a file next to the output, if there are any.

    That of an earlier run stays until then: of an output that a killed run had made, but not given
    its name, nothing is read again.
    """

    def __init__(self, path: Path, names: tuple[str, str]) -> None:
        self.path, self.names, self.mode = path, names, "w"

    def __call__(self, message: str) -> None:
        """Append one."""
        reason = message.removeprefix("skipped: ").replace(*self.names)
        with open(self.path, self.mode, encoding="utf-8") as file:
            file.write(json.dumps({"error": reason}, ensure_ascii=False) + "\n")
        self.mode = "a"


@dataclass
class ShardWorker:
    """Makes shards by a job. ``seen`` gets the counts so far, and the output they are of."""

    job: ShardJob
    name: str
    seen: Callable[[str, TokenCounts], None]

    @cached_property
    def loaded(self) -> Any:
        """What the job needs, loaded by the first shard, so that a failure has somebody to tell."""
        return self.job.open()

    @cached_property
    def made_by(self) -> dict[str, Any]:
        """What the bytes of every shard depend on."""
        return as_json(self.job.made_by(self.loaded))

    def make(self, shard: Shard) -> Done:
        """Make a shard's output, unless it is there. Raises BertcliError when that fails."""
        start = monotonic()
        now = {"by": self.made_by, "source": source_of(shard)}
        manifest = None if self.job.overwrite else manifest_of(shard)
        if exists := manifest is not None and locations.exists(shard.output):
            refuse_changes(public(shard.output), manifest["shard"], now)
        here = locations.is_local(shard.output)
        files = Files.of(locations.local_path(shard.output)) if here else None
        begun = files is not None and files.journal.exists()
        killed = files is not None and (files.folder.exists() or files.lock.exists())
        if not (passed_over := exists and not killed):
            # What begins an output of a shard is its manifest, or the journal of its vectors.
            ours = self.job.overwrite or begun or "shard" in _manifest(shard)
            if not ours and locations.exists(shard.output):
                raise not_resumable(public(shard.output))
            # Of a run that had committed nothing, why records were skipped may be gone.
            job = replace(self.job, overwrite=self.job.overwrite or (killed and not begun))
            with tempfile.TemporaryDirectory(prefix="bertcli-") as scratch:
                skipped = self._make(job, shard, Path(scratch), now)
            manifest = manifest_of(shard)
        counts = manifest["counts"] if manifest else asdict(TokenCounts()) | {"skipped": skipped}
        if files and not counts["skipped"]:
            beside(locations.local_path(shard.output), DEAD).unlink(missing_ok=True)
        digest = manifest["sha256"] if manifest else None
        limit = self.job.max_length(self.loaded)
        return Done(shard, counts, limit, digest, passed_over, self.name, monotonic() - start)

    def _make(self, job: ShardJob, shard: Shard, scratch: Path, now: dict[str, Any]) -> int:
        """Make it, and return how many records were skipped: without others there is no output."""
        here = locations.is_local(shard.output)
        place = Path(shard.output)
        output = locations.local_path(shard.output) if here else scratch / "out" / place.name
        output.parent.mkdir(parents=True, exist_ok=True)
        path = str(locations.fetch(shard.source, scratch))
        letters = DeadLetters(beside(output, DEAD), (path, public(shard.source)))
        reader = Reader(replace(job.source, paths=(path,)), letters)
        about, seen = {"shard": now}, partial(self.seen, shard.output)
        try:
            job.make(self.loaded, reader, output, about, seen)
        except BertcliError as error:
            message = str(error).replace(path, public(shard.source))
            raise type(error)(message, error.hint) from None
        if not here:
            files = sorted(
                output.parent.iterdir(), key=lambda path: path == manifest_beside(output)
            )
            mark = scratch / "begun.json"  # so that a run which is killed here goes on
            mark.write_text(json.dumps({"shard": now}), "utf-8")
            locations.put(mark, locations.beside(shard.output, MANIFEST))
            for file in files:  # the manifest last: it says that the others are there
                locations.put(file, str(shard.output).rsplit("/", 1)[0] + "/" + file.name)
        return reader.skipped


def source_of(shard: Shard) -> dict[str, Any]:
    """Return what identifies the contents of a shard's source."""
    identity: dict[str, Any] = {
        "place": public(locations.named(shard.source)),
        "bytes": locations.size(shard.source),
    }
    if locations.is_local(shard.source):  # elsewhere it would have to be fetched
        with locations.explained(shard.source):
            identity["sha256"] = sha256(locations.local_path(shard.source))
    return identity


def manifest_of(shard: Shard) -> dict[str, Any] | None:
    """Return what is written of an output that is whole; None when there is none."""
    manifest = _manifest(shard)
    counts = manifest.get("counts")
    whole = isinstance(counts, dict) and all(isinstance(counts.get(name), int) for name in COUNTS)
    return manifest if whole and isinstance(manifest.get("sha256"), str) else None


def _manifest(shard: Shard) -> dict[str, Any]:
    """Return the manifest that names the shard; nothing when there is none."""
    manifest = manifest_in(locations.read(locations.beside(shard.output, MANIFEST)))
    return manifest if isinstance(manifest.get("shard"), dict) else {}
