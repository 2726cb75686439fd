"""What a worker does with a shard: what `bertcli embed` and `bertcli tokenize` do with a file.

A job is a record of plain values, which is sent to workers. ``open`` loads the model, once per
worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import bert_folder
from bertcli.errors import BertcliError
from bertcli.files.paths import manifest_beside, sha256
from bertcli.files.versions import __version__
from bertcli.files.writers import open_writer
from bertcli.hub import MODEL_FILES, TOKENIZER_FILES, find_model
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.tokenizing.columns import Layout, RaggedBatch
from bertcli.tokenizing.run import WINDOW, TokenCounts
from bertcli.tokenizing.token_output import Task, TokenOutput
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.vectors.run_folder import put_json

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.options import EmbedOptions

About = Mapping[str, Any]
Signed = tuple[Tokenizer, dict[str, str]]  # a tokenizer, and the sha256 of its files
Seen = Callable[[TokenCounts], None]  # gets the counts of a shard so far


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
        from bertcli.inference.devices import refuse_several

        refuse_several(self.options.device, "--gpus-per-worker spreads the work of an engine")
        options = replace(self.options, threads=self.threads)
        return Embedder.open(self.model.find(MODEL_FILES), options)

    def made_by(self, loaded: Embedder) -> dict[str, Any]:
        """Return what the bytes of vectors depend on, besides the texts."""
        from bertcli.vectors.fingerprint import made_by

        return {**made_by(loaded), "precision": self.precision}

    def max_length(self, loaded: Embedder) -> int:
        """Return the length that truncation keeps."""
        return loaded.max_length

    def make(
        self, loaded: Embedder, reader: Reader, output: Path, about: About, seen: Seen
    ) -> None:
        """Write vectors, and their manifest."""
        from bertcli.inference.progress import Ran
        from bertcli.vectors.output import Target
        from bertcli.vectors.run import EmbedRun

        target = Target(
            output,
            self.form,
            self.precision,
            resume=not self.overwrite,
            overwrite=self.overwrite,
            many=self.options.per_token,
            ids=True,
            every_id=True,
        )
        writing = EmbedRun(loaded, reader, target, about)
        for step in writing:
            if isinstance(step, Ran):
                seen(writing.tally)


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
        names = [name for name in TOKENIZER_FILES if (place / name).is_file()]
        return tokenizer, {name: sha256(place / name) for name in sorted(names)}

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

    def make(self, loaded: Signed, reader: Reader, output: Path, about: About, seen: Seen) -> None:
        """Write token ids, and their manifest."""
        task = Task(self.layout, self.extra, self.form)
        run = task.run(reader, loaded[0], self.window)
        tokens = TokenOutput(run, task)
        manifest = manifest_beside(output)
        put_json(manifest, about)  # what is killed behind this line may be replaced
        try:
            with open_writer(output, tokens.form, overwrite=True) as put:
                tokens.write(_watched(tokens, seen), put)
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


def _watched(tokens: TokenOutput, seen: Seen) -> Iterator[RaggedBatch]:
    for window in tokens:
        yield window
        seen(tokens.run.tally)


ShardJob = EmbedJob | TokenizeJob
