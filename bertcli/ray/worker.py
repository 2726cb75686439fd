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
from bertcli.ray.jobs import About, ShardJob
from bertcli.ray.shards import DEAD, Shard
from bertcli.records.reader import Reader
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.run_folder import RunFolder, not_resumable, object_in, refuse_changes

MANIFEST = ".manifest.json"
COUNTS = (*(field.name for field in fields(TokenCounts)), "skipped")


@dataclass(frozen=True)
class Done:
    """The result of a shard, as it is sent by the worker."""

    shard: Shard
    by: dict[str, Any]  # what all shards depend on
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
        recorded = {} if self.job.overwrite else _manifest(shard)
        exists = locations.exists(shard.output)
        if made_before := exists and "counts" in recorded:
            refuse_changes(public(shard.output), recorded["shard"], now)
        here = locations.is_local(shard.output)
        files = RunFolder(locations.local_path(shard.output)) if here else None
        begun = files is not None and files.is_begun
        killed = files is not None and (files.folder.exists() or files.lock.exists())
        manifest, skipped = recorded, 0
        if not made_before or killed:
            # What begins an output of a shard is its manifest, or the journal of its vectors.
            if exists and not (self.job.overwrite or begun or recorded):
                raise not_resumable(public(shard.output))
            # Of a run that had committed nothing, why records were skipped may be gone.
            job = replace(self.job, overwrite=self.job.overwrite or (killed and not begun))
            with tempfile.TemporaryDirectory(prefix="bertcli-") as scratch:
                skipped = self._make(job, shard, Path(scratch), {"shard": now})
            manifest = _manifest(shard)
        counts = manifest.get("counts", asdict(TokenCounts()) | {"skipped": skipped})
        if files and not counts["skipped"]:
            beside(locations.local_path(shard.output), DEAD).unlink(missing_ok=True)
        return Done(
            shard,
            self.made_by,
            counts,
            self.job.max_length(self.loaded),
            manifest.get("sha256"),
            made_before and not killed,
            self.name,
            monotonic() - start,
        )

    def _make(self, job: ShardJob, shard: Shard, scratch: Path, about: About) -> int:
        """Make it, and return how many records were skipped: without others there is no output."""
        here = locations.is_local(shard.output)
        place = Path(shard.output)
        output = locations.local_path(shard.output) if here else scratch / "out" / place.name
        output.parent.mkdir(parents=True, exist_ok=True)
        path = str(locations.fetch(shard.source, scratch))
        letters = DeadLetters(beside(output, DEAD), (path, public(shard.source)))
        reader = Reader(replace(job.source, paths=(path,)), letters)
        try:
            job.make(self.loaded, reader, output, about, partial(self.seen, shard.output))
        except BertcliError as error:
            message = str(error).replace(path, public(shard.source))
            raise type(error)(message, error.hint) from None
        if not here:
            mark = json.dumps(about).encode()  # so that a run which is killed here goes on
            locations.write(locations.beside(shard.output, MANIFEST), mark)
            manifest = manifest_beside(output)
            others = [file for file in output.parent.iterdir() if file != manifest]
            for file in (*others, manifest):  # the last: it says that the others are there
                if file.exists():
                    locations.put(file, shard.output.rsplit("/", 1)[0] + "/" + file.name)
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


def _manifest(shard: Shard) -> dict[str, Any]:
    """Return the manifest that names the shard, nothing when there is none.

    It has counts when the output was whole.
    """
    manifest = object_in(locations.read(locations.beside(shard.output, MANIFEST)))
    if not isinstance(manifest.get("shard"), dict):
        return {}
    counts = manifest.get("counts")
    whole = isinstance(counts, dict) and all(isinstance(counts.get(name), int) for name in COUNTS)
    if not whole or not isinstance(manifest.get("sha256"), str):
        return {"shard": manifest["shard"]}
    return manifest
