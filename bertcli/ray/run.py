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
from bertcli.io.output_files import OutputFiles, object_or_empty
from bertcli.io.paths import (
    HUB_SCHEME,
    beside,
    manifest_beside,
    public,
    refuse_inputs,
    sha256,
)
from bertcli.io.progress import Advance, Show, show_nothing
from bertcli.io.streams import COMPRESSED_SUFFIXES, compressing
from bertcli.io.typed_json import as_json
from bertcli.model_folder.files import TOKENIZER_FILES, files_for
from bertcli.model_folder.folder import ModelFolder
from bertcli.ray.locations import filesystem, is_local, list_files, local_path, public_name
from bertcli.records.input import Input, is_data, no_data
from bertcli.records.reader import Reader
from bertcli.runs.identity import not_resumable, refuse_changes, tokenizer_digests
from bertcli.runs.run_folder import json_text, write_json_atomically
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.run import RECORDS_PER_WINDOW, TokenCounts, TokenOutput
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.versions import __version__, install_command

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.embedding.options import EmbedOptions


# --- one shard ---

# Suffixes of the output's name.
MANIFEST_SUFFIX = ".manifest.json"
ERRORS_SUFFIX = ".errors.jsonl"  # the errors of skipped records


class Shard(NamedTuple):
    """An input file and its output file."""

    source: str  # public name of the input, as in manifests
    output: str
    pattern: str  # opens the file system of the source
    path: str  # path of the source in that file system


@dataclass(frozen=True)
class ShardResult:
    """The result of a shard, sent by the worker."""

    shard: Shard
    fingerprint: dict[str, Any]  # of the model and options, equal for all shards
    tally: TokenCounts
    skipped: int
    max_length: int | None  # truncation limit in tokens
    sha256: str  # digest of the output
    was_complete: bool  # True if an earlier run had completed the shard


@dataclass
class ShardWorker:
    """Processes the shards of a job."""

    job: ShardJob

    @cached_property
    def ready(self) -> ReadyJob:
        """The model or tokenizer, loaded with the first shard, so that errors are reported."""
        return self.job.open()

    def make(self, shard: Shard) -> ShardResult:
        """Write the output of a shard unless it is complete. Raises BertcliError if this fails."""
        source: dict[str, Any] = {"place": shard.source}
        with filesystem(shard.pattern) as (fs, _):
            source["bytes"] = int(fs.size(shard.path))
            if is_local(shard.pattern):  # hashing a remote file would download it
                source["sha256"] = sha256(Path(shard.path))
        identity = as_json({"by": self.ready.fingerprint, "source": source})
        output = local_path(shard.output)
        overwrite = self.job.overwrite
        manifest = {} if overwrite else _manifest(shard)
        with filesystem(shard.output) as (fs, path):
            exists = not overwrite and fs.exists(path)
        # A manifest or a journal shows that the output belongs to an earlier run of this shard.
        is_begun = OutputFiles(output).is_interrupted
        if exists and not ("shard" in manifest or is_begun):
            raise not_resumable(public(shard.output))
        was_complete = exists and "counts" in manifest and not is_begun
        if was_complete:
            refuse_changes(public(shard.output), manifest["shard"], identity)
        else:
            with tempfile.TemporaryDirectory(prefix="bertcli-") as scratch:
                self._make(shard, Path(scratch), {"shard": identity})
            manifest = _manifest(shard)
        if "counts" not in manifest:  # another run, which holds no lock here, has restarted it
            raise OutputError(
                f"{public(shard.output)}: another bertcli is writing it",
                "wait for it to end, or choose another name",
            )
        counts = manifest["counts"]
        skipped = counts.pop("skipped")
        return ShardResult(
            shard,
            identity["by"],
            TokenCounts(**counts),
            skipped,
            self.ready.max_length,
            manifest["sha256"],
            was_complete,
        )

    def _make(self, shard: Shard, scratch: Path, manifest_entries: ManifestEntries) -> None:
        """Write the output of a shard; files of remote systems are copied by way of ``scratch``."""
        job = self.job
        is_local_output = is_local(shard.output)
        local_output = local_path(shard.output)
        output = local_output if is_local_output else scratch / "out" / local_output.name
        output.parent.mkdir(parents=True, exist_ok=True)
        path = shard.path
        if not is_local(shard.pattern):
            with filesystem(shard.pattern) as (fs, _):
                path = str(scratch / path.rsplit("/", 1)[-1])
                fs.get_file(shard.path, path)

        errors_file = beside(output, ERRORS_SUFFIX)
        errors_file.unlink(missing_ok=True)

        def record_error(message: str) -> None:
            """Record why a record was skipped."""
            with errors_file.open("a", encoding="utf-8") as file:
                reason = message.replace(path, shard.source)
                file.write(json.dumps({"error": reason}, ensure_ascii=False) + "\n")

        reader = Reader(replace(job.source, paths=(path,)), warn=record_error)
        try:
            job.make(self.ready.model, reader, output, manifest_entries)
        except BertcliError as error:
            raise type(error)(error.marked.replace(path, shard.source), error.marked_hint) from None
        if not is_local_output:
            manifest = manifest_beside(output)
            with filesystem(shard.output) as (fs, remote):
                folder = remote.rsplit("/", 1)[0]
                fs.makedirs(folder, exist_ok=True)
                # From here on, a killed run is continued by the next one.
                fs.pipe_file(remote + MANIFEST_SUFFIX, json.dumps(manifest_entries).encode())
                # The manifest is uploaded last: it shows that the other files are complete.
                for file in sorted(output.parent.iterdir(), key=manifest.__eq__):
                    fs.put_file(str(file), f"{folder}/{file.name}")


def _manifest(shard: Shard) -> dict[str, Any]:
    """Return the manifest of a shard. It has counts if the output is complete."""
    with filesystem(shard.output + MANIFEST_SUFFIX) as (fs, path):
        return object_or_empty(fs.cat_file(path) if fs.exists(path) else None)


ManifestEntries = Mapping[str, Any]  # added to the manifest of a shard


class ReadyJob(NamedTuple):
    """The loaded model or tokenizer of a job."""

    model: Any
    fingerprint: dict[str, Any]  # what the output bytes depend on besides the texts
    max_length: int | None  # truncation limit in tokens


@dataclass(frozen=True)
class ShardJobBase:
    """A computation that runs on every shard, and how the input files are read."""

    model: Callable[..., ModelFolder]  # called on each worker's machine
    source: Input
    overwrite: bool = field(default=False, kw_only=True)  # replaces outputs of earlier runs


@dataclass(frozen=True)
class EmbedJob(ShardJobBase):
    """Compute vectors of texts."""

    options: EmbedOptions
    file_format: str
    precision: str = "float32"

    def open(self) -> ReadyJob:
        """Load the model."""
        from bertcli.embedding.embedder import Embedder
        from bertcli.runs.vector_run import vector_fingerprint

        embedder = Embedder.open(self.model(files=files_for(self.options.dtype)), self.options)
        fingerprint = {**vector_fingerprint(embedder), "precision": self.precision}
        return ReadyJob(embedder, fingerprint, embedder.max_length)

    def make(
        self, embedder: Embedder, reader: Reader, output: Path, manifest_entries: ManifestEntries
    ) -> None:
        """Write the vectors of a shard and their manifest."""
        from bertcli.runs.vector_run import VectorRun, VectorTarget

        target = VectorTarget(
            output,
            self.file_format,
            self.precision,
            resume=not self.overwrite,
            overwrite=self.overwrite,
        )
        VectorRun(embedder, reader, target, manifest_entries).execute()


@dataclass(frozen=True)
class TokenizeJob(ShardJobBase):
    """Compute token ids of texts."""

    layout: Layout
    file_format: str
    extra: tuple[str, ...] = ()
    parse_special: bool = True
    window: int = RECORDS_PER_WINDOW  # number of records that are padded together

    def open(self) -> ReadyJob:
        """Load the tokenizer."""
        folder = self.model(files=TOKENIZER_FILES)
        tokenizer = Tokenizer.load(folder, parse_special=self.parse_special)
        fingerprint = {
            "model": folder.name,
            "tokenizer": tokenizer_digests(folder.encoder),
            "layout": asdict(self.layout),
            "extra": self.extra,
            "parse_special": self.parse_special,
        }
        return ReadyJob(tokenizer, fingerprint, tokenizer.truncated_length(self.layout))

    def make(
        self, tokenizer: Tokenizer, reader: Reader, output: Path, manifest_entries: ManifestEntries
    ) -> None:
        """Write the token ids of a shard and their manifest."""
        token_output = TokenOutput(self.layout, self.extra, self.file_format)
        run = token_output.run(reader, tokenizer, self.window)
        files = OutputFiles(output)
        with files.locked():
            # If the run is killed after the output was renamed, this manifest identifies it.
            with (
                files.new_output(json_text(manifest_entries)) as raw,
                compressing(output, raw) as file,
                writer_of(token_output.writer, to_file=True)(file) as write,
            ):
                token_output.write(run, run, write)
            write_json_atomically(
                files.manifest,
                {
                    **manifest_entries,
                    "bertcli": __version__,
                    "output": output.name,
                    "format": self.file_format,
                    "counts": asdict(run.tally) | {"skipped": reader.skipped},
                    "rows": run.tally.records,
                    "sha256": sha256(output),
                },
            )


ShardJob = EmbedJob | TokenizeJob


# --- which files ---


def plan_shards(source: Input, output: str, file_format: str) -> list[Shard]:
    """Return the shards of the patterns of a source: one output file per input file, in order.

    Outputs keep the folder structure of the input. Raises UsageError for input that is not files,
    and InputError for patterns that match nothing or several inputs with the same output.
    """
    if source.texts or "-" in source.paths:
        raise UsageError(
            f"{option('engine', 'ray')} reads files only", "give folders, globs or files with -i"
        )
    if source.offline and any(path.startswith(HUB_SCHEME) for path in source.paths):
        raise UsageError(
            f"{option('engine', 'ray')} reads {HUB_SCHEME} from the hub, not from a cache",
            f"leave out {option('offline')}, or {option('engine', 'ray')}",
        )
    files = {  # without duplicates: each path of a host once
        (pattern.partition("://")[2].partition("/")[0], path): (pattern, path)
        for pattern in source.paths
        for path in list_files(pattern)
        if path in pattern or is_data(public_name(pattern, path), source, glob=has_magic(pattern))
    }
    if not files:
        raise no_data(public(", ".join(source.paths)), source)
    names = [public_name(*address) for address in files.values()]
    base = os.path.commonpath([os.path.dirname(file) for file in names])
    folder = output.rstrip("/")
    shards: dict[str, Shard] = {}  # output -> its shard
    for file, address in zip(names, files.values(), strict=True):
        name = os.path.relpath(file, base)
        for suffixes in (COMPRESSED_SUFFIXES, INPUT_SUFFIXES):
            stem, suffix = os.path.splitext(name)
            if suffix.lower() in suffixes:
                name = stem
        shard = Shard(file, f"{folder}/{name}.{file_format}", *address)
        earlier = shards.setdefault(shard.output, shard)
        if earlier is not shard:
            raise InputError(
                f"{earlier.source} and {file} would both be written to {name}",
                "rename one of them",
            )
    if is_local(folder):
        folders = {local_path(output).parent for output in shards}
        outputs = chain.from_iterable(output_folder.glob("*") for output_folder in folders)
        refuse_inputs(map(local_path, names), [local_path(folder), *outputs])
    return [*shards.values()]


# --- the workers ---

RETRIES = 3  # maximum retries of a shard whose worker died


@dataclass(frozen=True)
class ShardRun:
    """Shards to process with a pool of workers on the connected cluster."""

    job: ShardJob
    shards: Sequence[Shard]
    pool: Pool

    def execute(self, show: Show = show_nothing) -> list[ShardResult]:
        """Process the shards and return their results.

        A worker processes one shard at a time, and is replaced if it dies. Raises BertcliError as
        soon as a worker does; completed shards stay, and the next run continues.
        """
        import ray
        from ray.util import ActorPool

        resources: dict[str, Any] = {"num_cpus": self.pool.cpus, "num_gpus": self.pool.gpus}
        actor: Any = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(ShardWorker)
        worker_pool = ActorPool(
            [actor.remote(self.job) for _ in range(min(self.pool.workers or 1, len(self.shards)))]
        )
        for shard in self.shards:
            worker_pool.submit(lambda worker, shard: worker.make.remote(shard), shard)
        results: list[ShardResult] = []
        try:
            while worker_pool.has_next():
                show(Advance(len(results), "shards", len(results) / len(self.shards)))
                results.append(worker_pool.get_next_unordered())
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
        return results


# --- results ---

MANIFEST_NAME = "manifest.json"


def total_counts(results: Sequence[ShardResult]) -> TokenCounts:
    """Return the summed counts of all shards."""
    tally = TokenCounts()
    for result in results:
        tally.merge(result.tally)
    return tally


def write_manifest(folder: str, results: Sequence[ShardResult]) -> None:
    """Write the manifest of the run next to its shards, sorted by output name."""
    base = folder.rstrip("/")
    ordered = sorted(results, key=lambda result: result.shard.output)
    value = {
        "bertcli": __version__,
        "by": ordered[0].fingerprint,
        "counts": asdict(total_counts(results))
        | {"skipped": sum(result.skipped for result in results)},
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
        write_json_atomically(local_path(base) / MANIFEST_NAME, value)
        return
    with filesystem(f"{base}/{MANIFEST_NAME}") as (fs, path):
        fs.pipe_file(path, json_text(value))


def summary_line(results: Sequence[ShardResult], seconds: float) -> str:
    """Return a line with the amount of work done and its speed."""
    new = [result for result in results if not result.was_complete]
    tally = total_counts(new)
    return (
        f"{len(new)} of {len(results)} shards made, {len(results) - len(new)} already done: "
        f"{tally.records:,} texts, {tally.tokens:,} tokens in {seconds:.1f} s"
    )


# --- the cluster ---

TIMEOUT_SECONDS = 10.0  # for a cluster's answer
MAX_CPUS = 4  # default CPUs of a worker: small models gain little from more


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
        capacities = [  # of each node: its CPUs, and the number of workers that its GPUs allow
            (int(node.get("CPU", 0)), int(node.get("GPU", 0) // gpus) if gpus else 1)
            for node in nodes
        ]
        shares = (
            node_cpus // workers for node_cpus, workers in capacities if node_cpus and workers
        )
        cpus = self.cpus or max(1, min([MAX_CPUS, *shares]))
        room = sum(
            min(node_cpus // cpus, workers) if gpus else node_cpus // cpus
            for node_cpus, workers in capacities
        )
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
            address_parts = urlsplit(address if "://" in address else f"//{address}")
            if (
                address not in ("local", "auto") and address_parts.hostname
            ):  # Ray retries for minutes
                host = (address_parts.hostname, address_parts.port or 10001)
                socket.create_connection(host, TIMEOUT_SECONDS).close()
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
