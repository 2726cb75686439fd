"""What a worker does with a shard: what `bertcli embed` and `bertcli tokenize` do with a file.

A job is a record of plain values, which is sent to workers. ``open`` loads the model, once per
worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bertcli.checkpoints.scan import bert_folder
from bertcli.errors import BertcliError
from bertcli.files.digests import sha256
from bertcli.files.versions import __version__
from bertcli.files.writers import open_writer
from bertcli.hub import MODEL_FILES, TOKENIZER_FILES, find_model
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import WINDOW, Batch, TokenCounts
from bertcli.tokenizing.token_output import Task, TokenOutput
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.vectors.journal import Files, put_json

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.options import EmbedOptions

About = Mapping[str, Any]
Seen = Callable[[TokenCounts], None]  # gets the counts of a shard so far


class ShardWork(Protocol):
    """A job that is ready."""

    @property
    def made_by(self) -> dict[str, Any]:
        """What the bytes of an output depend on, besides the input."""

    def __call__(self, reader: Reader, output: Path, about: About, seen: Seen) -> None:
        """Make a file, and its manifest, which holds ``about``."""


class ShardJob(Protocol):
    """What to do with each shard."""

    @property
    def source(self) -> Source:
        """How the files are read."""

    @property
    def overwrite(self) -> bool:
        """Whether to replace the outputs of an earlier run."""

    def open(self) -> ShardWork:
        """Load what is needed."""


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
class EmbedJob:
    """Texts to vectors."""

    model: Model
    source: Source
    options: EmbedOptions
    form: str
    precision: str = "float32"
    threads: int | None = None
    overwrite: bool = False

    def open(self) -> ShardWork:
        """Load the model."""
        from bertcli.embedding.embedder import Embedder
        from bertcli.inference.devices import refuse_several

        refuse_several(self.options.device, "--gpus-per-worker spreads the work of an engine")
        options = replace(self.options, threads=self.threads)
        return _Embedding(self, Embedder.open(self.model.find(MODEL_FILES), options))


@dataclass(frozen=True)
class _Embedding:
    job: EmbedJob
    embedder: Embedder

    @property
    def made_by(self) -> dict[str, Any]:
        from bertcli.vectors.fingerprint import made_by

        return {**made_by(self.embedder), "precision": self.job.precision}

    def __call__(self, reader: Reader, output: Path, about: About, seen: Seen) -> None:
        from bertcli.inference.progress import Ran
        from bertcli.vectors.run import EmbedRun
        from bertcli.vectors.sink import Target

        again = self.job.overwrite
        target = Target(
            output,
            self.job.form,
            self.job.precision,
            resume=not again,
            overwrite=again,
            many=self.job.options.per_token,
            ids=True,
            every_id=True,
        )
        writing = EmbedRun(self.embedder, reader, target, about)
        for step in writing:
            if isinstance(step, Ran):
                seen(writing.tally)


@dataclass(frozen=True)
class TokenizeJob:
    """Texts to token ids."""

    model: Model
    source: Source
    layout: Layout
    form: str
    extra: tuple[str, ...] = ()
    parse_special: bool = True
    window: int = WINDOW  # records that are padded together
    overwrite: bool = False

    def open(self) -> ShardWork:
        """Load the tokenizer."""
        folder = self.model.find(TOKENIZER_FILES)
        tokenizer = Tokenizer.load(folder.path, parse_special=self.parse_special)
        place = bert_folder(folder.path)
        names = [name for name in TOKENIZER_FILES if (place / name).is_file()]
        return _Tokenizing(self, tokenizer, {name: sha256(place / name) for name in sorted(names)})


@dataclass(frozen=True)
class _Tokenizing:
    job: TokenizeJob
    tokenizer: Tokenizer
    files: dict[str, str]

    @property
    def made_by(self) -> dict[str, Any]:
        job = self.job
        return {
            "model": job.model.name,
            "tokenizer": self.files,
            "layout": asdict(job.layout),
            "extra": job.extra,
            "parse_special": job.parse_special,
        }

    def __call__(self, reader: Reader, output: Path, about: About, seen: Seen) -> None:
        job = self.job
        task = Task(job.layout, job.extra, job.form)
        run = task.run(reader, self.tokenizer, job.window)
        made = TokenOutput(run, task)
        manifest = Files.of(output).manifest
        put_json(manifest, about)  # what is killed behind this line may be replaced
        try:
            with open_writer(output, made.form, overwrite=True) as put:
                made.write(_watched(made, seen), put)
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
                "format": job.form,
                "counts": asdict(run.tally) | {"skipped": reader.skipped},
                "rows": run.tally.records,
                "sha256": sha256(output),
            },
        )


def _watched(made: TokenOutput, seen: Seen) -> Iterator[Batch]:
    for window in made:
        yield window
        seen(made.run.tally)
