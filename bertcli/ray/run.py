"""A run on a cluster: the shards that are planned, the workers that make them, and what they did.

A shard is an input file and its output file. A worker has one at a time, and is replaced when it
dies.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from glob import has_magic
from importlib.util import find_spec
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, InputError, UsageError
from bertcli.files.paths import public, refuse_inputs
from bertcli.files.streams import PACKED
from bertcli.files.versions import __version__, install_command
from bertcli.inference.progress import Advance
from bertcli.ray.locations import is_local, listed, local_path, named, write
from bertcli.ray.worker import Done, Shard, ShardJob, ShardWorker
from bertcli.records.source import FORMATS, Source, is_data, no_data
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.run_folder import json_text, put_json

# --- which files ---


def plan(source: Source, output: str, form: str) -> list[Shard]:
    """Return the shards of a source's patterns: one file out, in the same order, for each one in.

    What a folder holds keeps its place in it. Raises InputError for patterns that name nothing, or
    files with one output.
    """
    if source.texts or "-" in source.paths:
        raise UsageError("--engine ray reads files only", "give folders, globs or files with -i")
    listing = [(place, pattern) for pattern in source.paths for place in listed(pattern)]
    files = dict.fromkeys(
        place
        for place, pattern in listing
        if place == pattern or is_data(named(place), source, glob=has_magic(pattern))
    )
    if not files:
        raise no_data(public(", ".join(source.paths)), source)
    base = os.path.commonpath([os.path.dirname(named(file)) for file in files])
    folder = output.rstrip("/")
    sources: dict[str, str] = {}  # of each output
    for file in files:
        name = os.path.relpath(named(file), base)
        for suffixes in (PACKED, FORMATS):
            stem, suffix = os.path.splitext(name)
            name = stem if suffix.lower() in suffixes else name
        other = sources.setdefault(f"{folder}/{name}.{form}", file)
        if other != file:
            raise InputError(
                f"{named(other)} and {named(file)} would both be written to {name}",
                "rename one of them",
            )
    if is_local(folder):
        places = {local_path(place).parent for place in sources}
        own = chain.from_iterable(place.glob("*") for place in places)
        refuse_inputs(map(local_path, files), [local_path(folder), *own])
    return [Shard(file, place) for place, file in sources.items()]


# --- the workers ---

RETRIES = 3  # of a shard whose worker has died


def run(job: ShardJob, shards: Sequence[Shard], pool: Pool, done: list[Done]) -> Iterator[Advance]:
    """Make the shards on the cluster that is joined, and gather what was ``done``.

    A worker has one shard at a time, and is replaced when it dies. Raises BertcliError as soon as a
    worker does: what is done stays, and the next run goes on.
    """
    import ray
    from ray.util import ActorPool

    resources: dict[str, Any] = {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
    actor: Any = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(ShardWorker)
    busy = ActorPool([actor.remote(job) for _ in range(min(pool.workers or 1, len(shards)))])
    for shard in shards:
        busy.submit(lambda worker, shard: worker.make.remote(shard), shard)
    try:
        while busy.has_next():
            yield Advance(len(done), "shards", len(done) / len(shards))
            done.append(busy.get_next_unordered())
    except ray.exceptions.RayError as failed:
        cause = getattr(failed, "cause", failed)
        if isinstance(cause, BertcliError):
            raise cause from None
        reason = str(cause).strip().split("\n")[0]
        raise BertcliError(
            f"a worker failed: {reason}",
            "every node needs this version of bertcli; if memory is short, decrease --workers; the "
            "same command continues this run",
        ) from failed


# --- what they did ---

NAME = "manifest.json"


def totals(done: Sequence[Done]) -> TokenCounts:
    """Return the counts of all shards together."""
    tally = TokenCounts()
    for shard in done:
        tally.merge(shard.tally)
    return tally


def put_manifest(folder: str, done: Sequence[Done]) -> None:
    """Write the manifest of a whole run beside its shards, in the order of their names."""
    base = folder.rstrip("/")
    ordered = sorted(done, key=lambda result: result.shard.output)
    value = {
        "bertcli": __version__,
        "by": ordered[0].by,
        "counts": asdict(totals(done)) | {"skipped": sum(result.skipped for result in done)},
        "shards": [
            {
                "source": public(named(result.shard.source)),
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
    write(f"{base}/{NAME}", json_text(value))


def told(done: Sequence[Done], seconds: float) -> str:
    """Describe how much was done, and how fast."""
    new = [result for result in done if not result.passed_over]
    tally = totals(new)
    return (
        f"{len(new)} of {len(done)} shards made, {len(done) - len(new)} already done: "
        f"{tally.records:,} texts, {tally.tokens:,} tokens in {seconds:.1f} s"
    )


# --- the cluster ---

PATIENCE = 10.0  # seconds that a cluster may take to answer
MOST_CPUS = 4  # of a worker, unless asked for: small models gain little from more


@dataclass(frozen=True)
class Pool:
    """How many workers there are, and the resources of each. None: decided by the cluster."""

    workers: int | None = None
    cpus: int | None = None
    gpus: float | None = None

    def on(self, nodes: list[dict[str, float]]) -> Pool:
        """Return the pool that fits on nodes of these resources: one worker a GPU, or 4 CPUs.

        Raises UsageError when what is asked for is not there: Ray would wait for it for ever.
        """
        gpus = self.gpus
        if gpus is None:
            gpus = 1.0 if any(node.get("GPU") for node in nodes) else 0.0
        room_of = [int(node.get("GPU", 0) // gpus) if gpus else 1 for node in nodes]
        cores = [int(node.get("CPU", 0)) for node in nodes]
        places = [(have, most) for have, most in zip(cores, room_of, strict=True) if most]
        cpus = self.cpus or max(1, min([MOST_CPUS, *(have // most for have, most in places)]))
        room = sum(min(have // cpus, most) if gpus else have // cpus for have, most in places)
        if not room or (self.workers or 0) > room:
            raise UsageError(
                f"the cluster has no room for {self.workers or 1} workers of {cpus} CPUs and "
                f"{gpus:g} GPUs each",
                "decrease --workers, --cpus-per-worker or --gpus-per-worker; see ray status",
            )
        return Pool(self.workers or room, cpus, gpus)


@contextmanager
def connected(address: str | None) -> Iterator[list[dict[str, float]]]:
    """Join the cluster at an address, or start one on this machine; yield its nodes' resources.

    ``auto`` is the cluster that runs here; without an address, RAY_ADDRESS is followed. Raises
    BertcliError when there is none, or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise BertcliError("--engine ray needs Ray", install_command("ray"))
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _reachable(address)
    import ray

    # Ray prints to stdout, at any log level, that a worker died and its task will be retried.
    with redirect_stdout(sys.stderr):
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as failed:
            raise _unreachable(address, str(failed)) from None
        try:
            yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
        finally:
            ray.shutdown()


def _reachable(address: str) -> None:
    """Raise BertcliError when nothing listens there: Ray itself would retry for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if address in ("local", "auto") or not parts.hostname:
        return
    try:
        port = parts.port or 10001
        socket.create_connection((parts.hostname, port), PATIENCE).close()
    except (OSError, ValueError) as failed:
        raise _unreachable(address, str(failed)) from None


def _unreachable(address: str, reason: str) -> BertcliError:
    first = reason.strip().split("\n")[0]
    return BertcliError(
        f"no Ray cluster at {address}: {first}",
        "start one with ray start --head, or leave out --ray-address to use this machine only",
    )
