"""One shard, from its source to its output, by a worker that may be killed at any instant."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.checkpoints.scan import bert_folder
from bertcli.errors import BertcliError
from bertcli.files.paths import beside, manifest_beside, public, sha256
from bertcli.files.typed_json import as_json
from bertcli.files.versions import __version__
from bertcli.files.writers import open_writer
from bertcli.hub import TOKENIZER_FILES, files_for, find_model
from bertcli.ray import locations
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import WINDOW, Task, TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.vectors.run_folder import (
    RunFiles,
    Target,
    made_by,
    not_resumable,
    object_in,
    put_json,
    refuse_changes,
)

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.options import EmbedOptions


MANIFEST = ".manifest.json"
DEAD = ".errors.jsonl"  # why records of a shard were skipped


class Shard(NamedTuple):
    """An input file and its output file."""

    source: str
    output: str


@dataclass(frozen=True)
class Done:
    """The result of a shard, as it is sent by the worker."""

    shard: Shard
    by: dict[str, Any]  # what all shards depend on
    tally: TokenCounts
    skipped: int
    max_length: int | None  # to which texts were truncated
    sha256: str  # of the output
    passed_over: bool  # an earlier run had made it


@dataclass
class ShardWorker:
    """Makes shards by a job."""

    job: ShardJob

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
        source: dict[str, Any] = {"place": public(locations.named(shard.source))}
        source["bytes"] = locations.size(shard.source)
        if locations.is_local(shard.source):  # elsewhere it would have to be fetched
            with locations.explained(shard.source):
                source["sha256"] = sha256(locations.local_path(shard.source))
        now = {"by": self.made_by, "source": source}
        output, replaces = locations.local_path(shard.output), self.job.overwrite
        manifest = {} if replaces else _manifest(shard)
        exists = not replaces and locations.exists(shard.output)
        # What begins an output of a shard is its manifest, or the journal of its vectors.
        is_begun = RunFiles(output).is_begun
        if exists and not ("shard" in manifest or is_begun):
            raise not_resumable(public(shard.output))
        made_before = exists and "counts" in manifest and not is_begun
        if made_before:
            refuse_changes(public(shard.output), manifest["shard"], now)
        else:
            with tempfile.TemporaryDirectory(prefix="bertcli-") as scratch:
                self._make(shard, Path(scratch), {"shard": now})
            manifest = _manifest(shard)
        counts = manifest["counts"]
        skipped = counts.pop("skipped")
        if not skipped:
            beside(output, DEAD).unlink(missing_ok=True)
        return Done(
            shard,
            self.made_by,
            TokenCounts(**counts),
            skipped,
            self.job.max_length(self.loaded),
            manifest["sha256"],
            made_before,
        )

    def _make(self, shard: Shard, scratch: Path, about: About) -> None:
        job, here = self.job, locations.is_local(shard.output)
        place = locations.local_path(shard.output)
        output = place if here else scratch / "out" / place.name
        output.parent.mkdir(parents=True, exist_ok=True)
        path = str(locations.fetch(shard.source, scratch))

        def put_letter(message: str) -> None:
            """Write why a record was skipped; an earlier file stays until there is one."""
            mode = "w" if reader.skipped == 1 else "a"
            with open(beside(output, DEAD), mode, encoding="utf-8") as file:
                reason = message.replace(path, public(shard.source))
                file.write(json.dumps({"error": reason}, ensure_ascii=False) + "\n")

        reader = Reader(replace(job.source, paths=(path,)), put_letter)
        try:
            job.make(self.loaded, reader, output, about)
        except BertcliError as error:
            message = str(error).replace(path, public(shard.source))
            raise type(error)(message, error.hint) from None
        if not here:
            mark = json.dumps(about).encode()  # so that a run which is killed here goes on
            locations.write(shard.output + MANIFEST, mark)
            manifest = manifest_beside(output)
            others = [file for file in output.parent.iterdir() if file != manifest]
            for file in (*others, manifest):  # the last: it says that the others are there
                locations.put(file, shard.output.rsplit("/", 1)[0] + "/" + file.name)


def _manifest(shard: Shard) -> dict[str, Any]:
    """Return the manifest of a shard; it has counts when the output was whole."""
    return object_in(locations.read(shard.output + MANIFEST))


About = Mapping[str, Any]
Signed = tuple[Tokenizer, dict[str, str]]  # a tokenizer, and the sha256 of its files


@dataclass(frozen=True)
class Model:
    """A model by its name: every worker finds it where it runs."""

    name: str
    revision: str | None = None
    offline: bool = False

    def find(self, files: Any) -> Any:
        """Return its folder."""
        return find_model(self.name, files=files, revision=self.revision, offline=self.offline)


@dataclass(frozen=True)
class _Job:
    """What to do with each shard, and how the files are read."""

    model: Model
    source: Source
    overwrite: bool = field(default=False, kw_only=True)  # the outputs of an earlier run


@dataclass(frozen=True)
class EmbedJob(_Job):
    """Texts to vectors."""

    options: EmbedOptions
    form: str
    precision: str = "float32"
    threads: int | None = None

    def open(self) -> Embedder:
        """Load the model."""
        from bertcli.embedding.embedder import Embedder

        options = replace(self.options, threads=self.threads)
        return Embedder.open(self.model.find(files_for(options.dtype)), options)

    def made_by(self, loaded: Embedder) -> dict[str, Any]:
        """Return what the bytes of vectors depend on, besides the texts."""
        return {**made_by(loaded), "precision": self.precision}

    def max_length(self, loaded: Embedder) -> int:
        """Return the length that truncation keeps."""
        return loaded.max_length

    def make(self, loaded: Embedder, reader: Reader, output: Path, about: About) -> None:
        """Write vectors, and their manifest."""
        from bertcli.vectors.file_run import FileRun

        target = Target(
            output,
            self.form,
            self.precision,
            resume=not self.overwrite,
            overwrite=self.overwrite,
        )
        for _ in FileRun(loaded, reader, target, about):
            pass


@dataclass(frozen=True)
class TokenizeJob(_Job):
    """Texts to token ids."""

    layout: Layout
    form: str
    extra: tuple[str, ...] = ()
    parse_special: bool = True
    window: int = WINDOW  # records that are padded together

    def open(self) -> Signed:
        """Load the tokenizer; and the digests of its files."""
        folder = self.model.find(TOKENIZER_FILES)
        tokenizer = Tokenizer.load(folder.path, parse_special=self.parse_special)
        place = bert_folder(folder.path)
        files = [place / name for name in TOKENIZER_FILES if (place / name).is_file()]
        return tokenizer, {file.name: sha256(file) for file in files}

    def made_by(self, loaded: Signed) -> dict[str, Any]:
        """Return what the bytes of token ids depend on, besides the texts."""
        return {
            "model": self.model.name,
            "tokenizer": loaded[1],
            "layout": asdict(self.layout),
            "extra": self.extra,
            "parse_special": self.parse_special,
        }

    def max_length(self, loaded: Signed) -> int | None:
        """Return the length that truncation keeps; None without truncation."""
        return loaded[0].cut_at(self.layout)

    def make(self, loaded: Signed, reader: Reader, output: Path, about: About) -> None:
        """Write token ids, and their manifest."""
        task = Task(self.layout, self.extra, self.form)
        run = task.run(reader, loaded[0], self.window)
        manifest = manifest_beside(output)
        put_json(manifest, about)  # what is killed behind this line may be replaced
        try:
            with open_writer(output, task.writer, overwrite=True) as put:
                task.write(run, run, put)
        except BertcliError:
            if not output.exists():
                manifest.unlink()
            raise
        put_json(
            manifest,
            {
                **about,
                "bertcli": __version__,
                "output": output.name,
                "format": self.form,
                "counts": asdict(run.tally) | {"skipped": reader.skipped},
                "rows": run.tally.records,
                "sha256": sha256(output),
            },
        )


ShardJob = EmbedJob | TokenizeJob
