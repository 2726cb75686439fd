"""A run on a cluster: plan shards, process them on workers, and report the results.

A shard is an input file and its output file. A worker processes one shard at a time. It may be
killed at any instant; a worker that dies is replaced.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from glob import has_magic
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, InputError, OutputError, UsageError, option
from bertcli.formats.registry import INPUT_SUFFIXES
from bertcli.formats.writers import writer_of
from bertcli.io.output_files import OutputFiles, object_in
from bertcli.io.paths import beside, manifest_beside, public, refuse_inputs, sha256
from bertcli.io.progress import Advance, Show, show_nothing
from bertcli.io.streams import PACKED, packed
from bertcli.io.typed_json import as_json
from bertcli.model_folder.files import TOKENIZER_FILES, files_for
from bertcli.model_folder.folder import ModelFolder
from bertcli.ray.locations import filesystem, is_local, listed, local_path, named
from bertcli.records.input import Input, is_data, no_data
from bertcli.records.reader import Reader
from bertcli.runs.identity import not_resumable, refuse_changes, tokenizer_of
from bertcli.runs.run_folder import json_text, put_json
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.run import RECORDS_PER_WINDOW, TokenCounts, TokenOutput
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import __version__, install_command

if TYPE_CHECKING:
    from bertcli.embedding.options import EmbedOptions
    from bertcli.embedding.record_embedder import RecordEmbedder


# --- one shard ---

MANIFEST = ".manifest.json"
DEAD = ".errors.jsonl"  # suffix of the file with the errors of skipped records


class Shard(NamedTuple):
    """An input file and its output file."""

    source: str  # public name of the input, as in manifests
    output: str
    pattern: str  # opens the file system of the source
    path: str  # path of the source in that file system


@dataclass(frozen=True)
class Done:
    """The result of a shard, sent by the worker."""

    shard: Shard
    by: dict[str, Any]  # identity of the model and options, equal for all shards
    tally: TokenCounts
    skipped: int
    max_length: int | None  # truncation limit in tokens
    sha256: str  # digest of the output
    passed_over: bool  # True if an earlier run had completed the shard


@dataclass
class ShardWorker:
    """Processes the shards of a job."""

    job: ShardJob

    @cached_property
    def loaded(self) -> ReadyJob:
        """The model or tokenizer, loaded with the first shard, so that errors are reported."""
        return self.job.open()

    def make(self, shard: Shard) -> Done:
        """Write the output of a shard unless it is complete. Raises BertcliError if this fails."""
        source: dict[str, Any] = {"place": shard.source}
        with filesystem(shard.pattern) as (fs, _):
            source["bytes"] = int(fs.size(shard.path))
            if is_local(shard.pattern):  # hashing a remote file would download it
                source["sha256"] = sha256(Path(shard.path))
        now = as_json({"by": self.loaded.by, "source": source})
        output = local_path(shard.output)
        replaces = self.job.overwrite
        manifest = {} if replaces else _manifest(shard)
        with filesystem(shard.output) as (fs, path):
            exists = not replaces and fs.exists(path)
        # A manifest or a journal shows that the output belongs to an earlier run of this shard.
        is_begun = OutputFiles(output).is_interrupted
        if exists and not ("shard" in manifest or is_begun):
            raise not_resumable(public(shard.output))
        made_before = exists and "counts" in manifest and not is_begun
        if made_before:
            refuse_changes(public(shard.output), manifest["shard"], now)
        else:
            with tempfile.TemporaryDirectory(prefix="bertcli-") as scratch:
                self._make(shard, Path(scratch), {"shard": now})
            manifest = _manifest(shard)
        if "counts" not in manifest:  # another run, which holds no lock here, has restarted it
            raise OutputError(
                f"{public(shard.output)}: another bertcli is writing it",
                "wait for it to end, or choose another name",
            )
        counts = manifest["counts"]
        skipped = counts.pop("skipped")
        return Done(
            shard,
            now["by"],
            TokenCounts(**counts),
            skipped,
            self.loaded.max_length,
            manifest["sha256"],
            made_before,
        )

    def _make(self, shard: Shard, scratch: Path, about: About) -> None:
        job = self.job
        here = is_local(shard.output)
        place = local_path(shard.output)
        output = place if here else scratch / "out" / place.name
        output.parent.mkdir(parents=True, exist_ok=True)
        path = shard.path
        if not is_local(shard.pattern):
            with filesystem(shard.pattern) as (fs, _):
                path = str(scratch / path.rsplit("/", 1)[-1])
                fs.get_file(shard.path, path)

        letters = beside(output, DEAD)
        letters.unlink(missing_ok=True)

        def put_letter(message: str) -> None:
            """Record why a record was skipped."""
            with letters.open("a", encoding="utf-8") as file:
                reason = message.replace(path, shard.source)
                file.write(json.dumps({"error": reason}, ensure_ascii=False) + "\n")

        reader = Reader(replace(job.source, paths=(path,)), warn=put_letter)
        try:
            job.make(self.loaded.model, reader, output, about)
        except BertcliError as error:
            raise type(error)(error.marked.replace(path, shard.source), error.marked_hint) from None
        if not here:
            manifest = manifest_beside(output)
            with filesystem(shard.output) as (fs, remote):
                folder = remote.rsplit("/", 1)[0]
                fs.makedirs(folder, exist_ok=True)
                # From here on, a killed run is continued by the next one.
                fs.pipe_file(remote + MANIFEST, json.dumps(about).encode())
                # The manifest is uploaded last: it shows that the other files are complete.
                for file in sorted(output.parent.iterdir(), key=manifest.__eq__):
                    fs.put_file(str(file), f"{folder}/{file.name}")


def _manifest(shard: Shard) -> dict[str, Any]:
    """Return the manifest of a shard. It has counts if the output is complete."""
    with filesystem(shard.output + MANIFEST) as (fs, path):
        return object_in(fs.cat_file(path) if fs.exists(path) else None)


About = Mapping[str, Any]


class ReadyJob(NamedTuple):
    """The loaded model or tokenizer of a job."""

    model: Any
    by: dict[str, Any]  # what the output bytes depend on, besides the texts
    max_length: int | None  # truncation limit in tokens


@dataclass(frozen=True)
class _Job:
    """A computation that runs on every shard, and how the input files are read."""

    model: Callable[..., ModelFolder]  # called on each worker's machine
    source: Input
    overwrite: bool = field(default=False, kw_only=True)  # replaces outputs of earlier runs


@dataclass(frozen=True)
class EmbedJob(_Job):
    """Compute vectors of texts."""

    options: EmbedOptions
    form: str
    precision: str = "float32"

    def open(self) -> ReadyJob:
        """Load the model."""
        from bertcli.embedding.record_embedder import RecordEmbedder
        from bertcli.runs.vector_run import made_by

        embedder = RecordEmbedder.open(
            self.model(files=files_for(self.options.dtype)), self.options
        )
        by = {**made_by(embedder), "precision": self.precision}
        return ReadyJob(embedder, by, embedder.max_length)

    def make(self, loaded: RecordEmbedder, reader: Reader, output: Path, about: About) -> None:
        """Write the vectors of a shard and their manifest."""
        from bertcli.runs.vector_run import VectorRun, VectorTarget

        target = VectorTarget(
            output,
            self.form,
            self.precision,
            resume=not self.overwrite,
            overwrite=self.overwrite,
        )
        VectorRun(loaded, reader, target, about).execute()


@dataclass(frozen=True)
class TokenizeJob(_Job):
    """Compute token ids of texts."""

    layout: Layout
    form: str
    extra: tuple[str, ...] = ()
    parse_special: bool = True
    window: int = RECORDS_PER_WINDOW  # number of records that are padded together

    def open(self) -> ReadyJob:
        """Load the tokenizer."""
        folder = self.model(files=TOKENIZER_FILES)
        tokenizer = Tokenizer.load(folder, parse_special=self.parse_special)
        by = {
            "model": folder.name,
            "tokenizer": tokenizer_of(folder.encoder),
            "layout": asdict(self.layout),
            "extra": self.extra,
            "parse_special": self.parse_special,
        }
        return ReadyJob(tokenizer, by, tokenizer.cut_at(self.layout))

    def make(self, loaded: Tokenizer, reader: Reader, output: Path, about: About) -> None:
        """Write the token ids of a shard and their manifest."""
        token_output = TokenOutput(self.layout, self.extra, self.form)
        run = token_output.run(reader, loaded, self.window)
        files = OutputFiles(output)
        with files.locked():
            # If the run is killed after the output was renamed, this manifest identifies it.
            with (
                files.new_output(json_text(about)) as raw,
                packed(output, raw) as file,
                writer_of(token_output.writer, to_file=True)(file) as put,
            ):
                token_output.write(run, run, put)
            put_json(
                files.manifest,
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


# --- which files ---


def plan(source: Input, output: str, form: str) -> list[Shard]:
    """Return the shards of the patterns of a source: one output file per input file, in order.

    Outputs keep the folder structure of the input. Raises UsageError for input that is not files,
    and InputError for patterns that match nothing or several inputs with the same output.
    """
    if source.texts or "-" in source.paths:
        raise UsageError(
            f"{option('engine', 'ray')} reads files only", "give folders, globs or files with -i"
        )
    files = {  # without duplicates: each path of a host once
        (pattern.partition("://")[2].partition("/")[0], path): (pattern, path)
        for pattern in source.paths
        for path in listed(pattern)
        if path in pattern or is_data(named(pattern, path), source, glob=has_magic(pattern))
    }
    if not files:
        raise no_data(public(", ".join(source.paths)), source)
    names = [named(*address) for address in files.values()]
    base = os.path.commonpath([os.path.dirname(file) for file in names])
    folder = output.rstrip("/")
    shards: dict[str, Shard] = {}  # output -> its shard
    for file, address in zip(names, files.values(), strict=True):
        name = os.path.relpath(file, base)
        for suffixes in (PACKED, INPUT_SUFFIXES):
            stem, suffix = os.path.splitext(name)
            name = stem if suffix.lower() in suffixes else name
        shard = Shard(file, f"{folder}/{name}.{form}", *address)
        other = shards.setdefault(shard.output, shard)
        if other is not shard:
            raise InputError(
                f"{other.source} and {file} would both be written to {name}",
                "rename one of them",
            )
    if is_local(folder):
        places = {local_path(place).parent for place in shards}
        own = chain.from_iterable(place.glob("*") for place in places)
        refuse_inputs(map(local_path, names), [local_path(folder), *own])
    return [*shards.values()]


# --- the workers ---

RETRIES = 3  # maximum retries of a shard whose worker died


@dataclass(frozen=True)
class ShardRun:
    """Shards to process with a pool of workers on the connected cluster."""

    job: ShardJob
    shards: Sequence[Shard]
    pool: Pool

    def execute(self, show: Show = show_nothing) -> list[Done]:
        """Process the shards and return their results.

        A worker processes one shard at a time, and is replaced if it dies. Raises BertcliError as
        soon as a worker does; completed shards stay, and the next run continues.
        """
        import ray
        from ray.util import ActorPool

        resources: dict[str, Any] = {"num_cpus": self.pool.cpus, "num_gpus": self.pool.gpus}
        actor: Any = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(ShardWorker)
        busy = ActorPool(
            [actor.remote(self.job) for _ in range(min(self.pool.workers or 1, len(self.shards)))]
        )
        for shard in self.shards:
            busy.submit(lambda worker, shard: worker.make.remote(shard), shard)
        done: list[Done] = []
        try:
            while busy.has_next():
                show(Advance(len(done), "shards", len(done) / len(self.shards)))
                done.append(busy.get_next_unordered())
        except ray.exceptions.RayError as failed:
            cause = getattr(failed, "cause", failed)
            if isinstance(cause, BertcliError):
                raise cause from None
            reason = str(cause).strip().split("\n")[0]
            raise BertcliError(
                f"a worker failed: {reason}",
                "every node needs this version of bertcli; if memory is short, decrease "
                f"{option('workers')}; the "
                "same command continues this run",
            ) from failed
        return done


# --- results ---

NAME = "manifest.json"


def totals(done: Sequence[Done]) -> TokenCounts:
    """Return the summed counts of all shards."""
    tally = TokenCounts()
    for shard in done:
        tally.merge(shard.tally)
    return tally


def put_manifest(folder: str, done: Sequence[Done]) -> None:
    """Write the manifest of the run next to its shards, sorted by output name."""
    base = folder.rstrip("/")
    ordered = sorted(done, key=lambda result: result.shard.output)
    value = {
        "bertcli": __version__,
        "by": ordered[0].by,
        "counts": asdict(totals(done)) | {"skipped": sum(result.skipped for result in done)},
        "shards": [
            {
                "source": result.shard.source,
                "output": result.shard.output.removeprefix(base + "/"),
                "records": result.tally.records,
                "sha256": result.sha256,
            }
            for result in ordered
        ],
    }
    if is_local(base):
        put_json(local_path(base) / NAME, value)
        return
    with filesystem(f"{base}/{NAME}") as (fs, path):
        fs.pipe_file(path, json_text(value))


def told(done: Sequence[Done], seconds: float) -> str:
    """Return a line with the amount of work done and its speed."""
    new = [result for result in done if not result.passed_over]
    tally = totals(new)
    return (
        f"{len(new)} of {len(done)} shards made, {len(done) - len(new)} already done: "
        f"{tally.records:,} texts, {tally.tokens:,} tokens in {seconds:.1f} s"
    )


# --- the cluster ---

PATIENCE = 10.0  # seconds to wait for a cluster's answer
MOST_CPUS = 4  # default CPUs of a worker: small models gain little from more


@dataclass(frozen=True)
class Pool:
    """Number of workers and the resources of each. None: decided by the cluster."""

    workers: int | None = None
    cpus: int | None = None
    gpus: float | None = None

    def on(self, nodes: list[dict[str, float]]) -> Pool:
        """Return the pool for nodes with these resources: one worker per GPU, or per 4 CPUs.

        Raises UsageError if the cluster lacks the requested resources, for which Ray would wait
        forever.
        """
        gpus = self.gpus
        if gpus is None:
            gpus = float(any(node.get("GPU") for node in nodes))
        places = [
            (int(node.get("CPU", 0)), int(node.get("GPU", 0) // gpus) if gpus else 1)
            for node in nodes
        ]
        shares = (have // most for have, most in places if most)
        cpus = self.cpus or max(1, min([MOST_CPUS, *shares]))
        room = sum(min(have // cpus, most) if gpus else have // cpus for have, most in places)
        if not room or (self.workers or 0) > room:
            raise UsageError(
                f"the cluster has no room for {self.workers or 1} workers of {cpus} CPUs and "
                f"{gpus:g} GPUs each",
                f"decrease {option('workers')}, {option('cpus_per_worker')} or "
                f"{option('gpus_per_worker')}; see ray status",
            )
        return Pool(self.workers or room, cpus, gpus)


@contextmanager
def connected(address: str | None) -> Iterator[list[dict[str, float]]]:
    """Connect to the cluster at an address or start one here; yield the resources of its nodes.

    ``auto`` is a cluster that runs on this machine. Without an address, RAY_ADDRESS is used.
    Raises BertcliError if there is no cluster or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise BertcliError(f"{option('engine', 'ray')} needs Ray", install_command("ray"))
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    import ray

    # Ray prints to stdout, at any log level, that a worker died and its task will be retried.
    with redirect_stdout(sys.stderr):
        try:
            parts = urlsplit(address if "://" in address else f"//{address}")
            if address not in ("local", "auto") and parts.hostname:  # Ray retries for minutes
                socket.create_connection((parts.hostname, parts.port or 10001), PATIENCE).close()
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as failed:
            reason = str(failed).strip().split("\n")[0]
            raise BertcliError(
                f"no Ray cluster at {address}: {reason}",
                f"start one with ray start --head, or leave out {option('ray_address')} to use "
                "this machine only",
            ) from None
        try:
            yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
        finally:
            ray.shutdown()
