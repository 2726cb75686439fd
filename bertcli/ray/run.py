"""A cluster, and a pool of workers over shards, one each, replaced when they die."""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, UsageError, counted
from bertcli.files.paths import public
from bertcli.files.versions import __version__, install_command
from bertcli.ray import locations
from bertcli.ray.shards import Shard
from bertcli.ray.worker import Done, ShardJob, ShardWorker
from bertcli.vectors.run_folder import json_text, put_json

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


def run(
    job: ShardJob, shards: Sequence[Shard], pool: Pool, watch: Callable[[RayProgress], None]
) -> list[Done]:
    """Make the shards on the cluster that is joined; ``watch`` gets the progress.

    A worker has one shard at a time, and is replaced when it dies. Raises BertcliError as soon as a
    worker does: what is done stays, and the next run goes on.
    """
    import ray

    resources: dict[str, Any] = {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
    actor: Any = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **resources)(RayWorker)
    workers = [actor.remote(job) for _ in range(min(pool.workers or 1, len(shards)))]
    busy = {worker.__ray_ready__.remote(): worker for worker in workers}
    waiting, progress = list(reversed(shards)), RayProgress(len(shards))
    try:
        while busy:
            ready, _ = ray.wait([*busy], timeout=PAUSE)
            for task in ready:
                worker, result = busy.pop(task), ray.get(task)
                progress.begun = True
                if isinstance(result, BertcliError):
                    raise result
                if isinstance(result, Done):
                    progress.done.append(result)
                if waiting:
                    busy[worker.make.remote(waiting.pop())] = worker
            watch(progress)
    except ray.exceptions.RayError as failed:
        raise _explained(failed) from None
    return progress.done


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
                "source": public(locations.named(result.shard.source)),
                "output": result.shard.output.removeprefix(base + "/"),
                "records": result.counts["records"],
                "sha256": result.sha256,
            }
            for result in ordered
        ],
    }
    if locations.is_local(base):
        put_json(locations.local_path(base) / NAME, value)
        return
    locations.write(f"{base}/{NAME}", json_text(value))


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
