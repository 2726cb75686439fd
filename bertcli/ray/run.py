"""A run on a cluster: the shards that are planned, the workers that make them, and what they did.

A shard is an input file and its output file. A worker has one at a time, and is replaced when it
dies.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, InputError, OutputError, UsageError, counted
from bertcli.files.paths import beside, public, refuse_inputs
from bertcli.files.streams import PACKED
from bertcli.files.versions import __version__, install_command
from bertcli.ray.locations import is_local, listed, local_path, named, write
from bertcli.ray.worker import DEAD, Done, Shard, ShardJob, ShardWorker
from bertcli.records.source import FORMATS, Source, is_data, is_glob, no_data
from bertcli.vectors.run_folder import RunFiles, json_text, put_json

# --- which files ---

SCHEMAS = 1000  # Parquet files whose fields are compared before anything starts


def plan(source: Source, output: str, form: str) -> list[Shard]:
    """Return the shards of a source's patterns: one file out, in the same order, for each one in.

    What a folder holds keeps its place in it. Raises InputError for patterns that name nothing, or
    files that do not go together.
    """
    if source.texts or "-" in source.paths:
        raise UsageError("--engine ray reads files only", "give folders, globs or files with -i")
    listing = [(place, pattern) for pattern in source.paths for place in listed(pattern)]
    files = list(
        dict.fromkeys(
            place
            for place, pattern in listing
            if place == pattern or is_data(named(place), source, glob=is_glob(pattern))
        )
    )
    if not files:
        raise no_data(public(", ".join(source.paths)), len(listing), source)
    shown = [named(file) for file in files]
    _alike(shown, source)
    names = _names(shown)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        same = [file for file, name in zip(shown, names, strict=True) if name == twice[0]]
        raise InputError(
            f"{' and '.join(same)} would both be written to {twice[0]}", "rename one of them"
        )
    folder = output.rstrip("/")
    shards = [
        Shard(file, f"{folder}/{name}.{form}") for file, name in zip(files, names, strict=True)
    ]
    if is_local(folder):
        place, own = local_path(folder), []
        for out in (local_path(shard.output) for shard in shards):
            own += [out, *RunFiles(out).own, beside(out, DEAD)]
        sources = [local_path(shard.source) for shard in shards if is_local(shard.source)]
        refuse_inputs(sources, [place, place / "manifest.json", *own])
    return shards


def refuse_unwritable(folder: str) -> None:
    """Raise OutputError where the folder of the outputs is one of this machine that cannot be."""
    path = local_path(folder)
    above = next((part for part in (path, *path.parents) if part.exists()), path)
    if is_local(folder) and not (above.is_dir() and os.access(above, os.W_OK)):
        reason = "Permission denied" if above.is_dir() else "Not a directory"
        raise OutputError(f"{path}: cannot be written: {reason}", "give another folder with -o")


def _without(name: str, suffixes: Collection[str]) -> str:
    """Return a name without a suffix that is one of these."""
    path = PurePosixPath(name)
    return str(path.with_suffix("") if path.suffix.lower() in suffixes else path)


def _names(files: Sequence[str]) -> list[str]:
    """Return the name of each file below what all have in common, without its suffixes."""
    parents = [str(PurePosixPath(file).parent) for file in files]
    base = os.path.commonpath(parents) if len(set(parents)) > 1 else parents[0]
    inner = [os.path.relpath(file, base) for file in (str(PurePosixPath(file)) for file in files)]
    return [_without(_without(name, PACKED), FORMATS) for name in inner]


def _alike(files: Sequence[str], source: Source) -> None:
    """Raise InputError unless all files have one format and, in Parquet, the fields that are read.

    A long run should not find this out at its last file.
    """
    formats = {source.format_of(file): file for file in reversed(files)}
    if len(formats) > 1:
        examples = " and ".join(f"{form} ({file})" for form, file in sorted(formats.items()))
        raise InputError(
            f"the files have several formats: {examples}", "select one format with a glob"
        )
    if "parquet" not in formats:
        return
    from bertcli.files.parquet import opened

    name = source.text_field or "text"
    kinds: dict[str, tuple[str, str]] = {}  # of the text field -> (file, fields)
    for file in list(filter(is_local, files))[:SCHEMAS]:
        with opened(str(local_path(file)), file) as table:
            kind = table.kinds.get(name, "no field")
            kinds.setdefault(kind, (file, ", ".join(table.names)))
    if len(kinds) > 1:
        differing = "; ".join(
            f"{kind} in {file} (of {names})" for kind, (file, names) in kinds.items()
        )
        raise InputError(f"{name!r} differs between the files: {differing}", "use a run for each")


# --- the workers ---

PAUSE = 0.5  # seconds between looks at how far the workers are
RETRIES = 3  # of a shard whose worker has died


@dataclass
class RayProgress:
    """How far a run is: the shards that are done, and whether a worker has started."""

    shards: int
    done: list[Done] = field(default_factory=list)
    begun: bool = False

    @property
    def new(self) -> list[Done]:
        """The shards that this run made."""
        return [done for done in self.done if not done.passed_over]


class RayWorker:
    """A worker as an actor: errors of ours travel as results."""

    def __init__(self, job: ShardJob) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()[:8]
        name = f"{os.getpid()} on {ray.util.get_node_ip_address()} ({node})"
        self.worker = ShardWorker(job, name)

    def make(self, shard: Shard) -> Done | BertcliError:
        """Make a shard."""
        try:
            return self.worker.make(shard)
        except BertcliError as error:
            return error


def run(job: ShardJob, shards: Sequence[Shard], pool: Pool) -> Iterator[RayProgress]:
    """Make the shards on the cluster that is joined, and yield the progress, again and again.

    A worker has one shard at a time, and is replaced when it dies. Raises BertcliError as soon as a
    worker does: what is done stays, and the next run goes on.
    """
    import ray
    from ray.util import ActorPool

    resources: dict[str, Any] = {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
    actor: Any = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(RayWorker)
    workers = [actor.remote(job) for _ in range(min(pool.workers or 1, len(shards)))]
    starts = [worker.__ray_ready__.remote() for worker in workers]
    busy, progress = ActorPool(workers), RayProgress(len(shards))
    for shard in shards:
        busy.submit(lambda worker, shard: worker.make.remote(shard), shard)
    try:
        while busy.has_next():
            with suppress(TimeoutError):
                result = busy.get_next_unordered(timeout=PAUSE)
                if isinstance(result, BertcliError):
                    raise result
                progress.done.append(result)
            progress.begun = bool(ray.wait(starts, timeout=0)[0])
            yield progress
    except ray.exceptions.RayError as failed:
        raise _explained(failed) from None


def _explained(failed: Exception) -> Exception:
    """Return an error for people where the cluster, not our code, is at fault."""
    text = str(failed)
    if "No module named 'bertcli'" in text:
        return BertcliError(
            "bertcli is not installed on the workers of this cluster",
            "install the same version on every node",
        )
    if type(failed).__name__ in ("RayActorError", "ActorDiedError", "NodeDiedError"):
        return BertcliError(
            f"workers keep dying: {text.strip().split(chr(10))[0]}",
            "if memory is short, decrease --workers; the same command continues this run",
        )
    return failed


# --- what they did ---

NAME = "manifest.json"


def totals(done: Sequence[Done]) -> Counter[str]:
    """Return the counts of all shards together; of ``longest``, the largest."""
    counts = Counter[str]()
    for shard in done:
        counts.update(shard.counts)
    counts["longest"] = max((shard.counts["longest"] for shard in done), default=0)
    return counts


def put_manifest(folder: str, done: Sequence[Done]) -> None:
    """Write the manifest of a whole run beside its shards, in the order of their names."""
    base = folder.rstrip("/")
    ordered = sorted(done, key=lambda result: result.shard.output)
    value = {
        "bertcli": __version__,
        "by": ordered[0].by,
        "counts": dict(totals(done)),
        "shards": [
            {
                "source": public(named(result.shard.source)),
                "output": result.shard.output.removeprefix(base + "/"),
                "records": result.counts["records"],
                "sha256": result.sha256,
            }
            for result in ordered
        ],
    }
    if is_local(base):
        put_json(local_path(base) / NAME, value)
        return
    write(f"{base}/{NAME}", json_text(value))


def told(done: Sequence[Done], seconds: float) -> Iterator[str]:
    """Describe how much was done, how fast, and by which worker."""
    new = [result for result in done if not result.passed_over]
    counts = totals(new)
    passed = f", {len(done) - len(new)} already done" if len(new) < len(done) else ""
    yield f"{len(new)} of {len(done)} shards made{passed}: {_rates(counts, seconds)}"
    for worker in sorted({result.worker for result in new}):
        mine = [result for result in new if result.worker == worker]
        busy = sum(result.seconds for result in mine)
        shards = counted(len(mine), "shard")
        yield f"worker {worker}: {shards}, {_rates(totals(mine), busy)}"


def _rates(counts: Counter[str], seconds: float) -> str:
    seconds = max(seconds, 1e-9)
    records, tokens = counts["records"], counts["tokens"]
    return (
        f"{counted(records, 'text')}, {counted(tokens, 'token')} in {seconds:.1f} s "
        f"({records / seconds:,.0f} texts/s, {tokens / seconds:,.0f} tokens/s)"
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
            gpus = 1.0 if sum(node.get("GPU", 0) for node in nodes) else 0.0
        if gpus:
            nodes = [node for node in nodes if node.get("GPU", 0) >= gpus]
            if not nodes:
                raise UsageError(
                    f"--gpus-per-worker {gpus:g}: no node of this cluster has that many",
                    "use --gpus-per-worker 0 to compute on CPUs",
                )
        cpus = self.cpus or _share(nodes, gpus)
        room = sum(_fits(node, cpus, gpus) for node in nodes)
        if not room or (self.workers or 0) > room:
            have = " + ".join(f"{node.get('CPU', 0):g}" for node in nodes)
            raise UsageError(
                f"--workers {self.workers or 1} with --cpus-per-worker {cpus} does not fit on this "
                f"cluster, whose nodes have {have} CPUs",
                "decrease --workers or --cpus-per-worker",
            )
        return Pool(self.workers or room, cpus, gpus)


def _share(nodes: list[dict[str, float]], gpus: float) -> int:
    """Return the CPUs of a worker that leave none of a node's GPUs, or CPUs, idle."""
    smallest = min(int(node.get("CPU", 1)) for node in nodes)
    if gpus:
        most = max(node["GPU"] // gpus for node in nodes)
        return max(1, min(MOST_CPUS, int(smallest // most)))
    return max(1, min(MOST_CPUS, smallest))


def _fits(node: dict[str, float], cpus: int, gpus: float) -> int:
    by_cpu = int(node.get("CPU", 0) // cpus)
    return min(by_cpu, int(node.get("GPU", 0) // gpus)) if gpus else by_cpu


@contextmanager
def connected(address: str | None) -> Iterator[list[dict[str, float]]]:
    """Join the cluster at an address, or start one on this machine; yield its nodes' resources.

    ``auto`` is the cluster that runs here; without an address, RAY_ADDRESS is followed. Raises
    BertcliError when there is none, or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise BertcliError("--engine ray needs Ray", install_command("ray"))
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what matters reaches us as errors
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _reachable(address)
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        quiet["include_dashboard"] = False
    # Ray prints to stdout, at any log level, that a worker died and its task will be retried.
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            with _silence():
                ray.init(address, **quiet)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as failed:
            raise _unreachable(address, str(failed)) from None
        try:
            yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
        finally:
            ray.shutdown()


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what Ray's core writes to stderr while it starts, which no log level turns off."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


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
