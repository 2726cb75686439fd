"""Ray Data: a pool of workers over shards, one each, replaced when they die."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, UsageError, counted
from bertcli.files.paths import public
from bertcli.files.versions import __version__, install_command
from bertcli.ray import locations
from bertcli.ray.shards import Shard
from bertcli.ray.worker import Done, ShardJob, ShardWorker
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.run_folder import json_text, put_json

if TYPE_CHECKING:
    import numpy as np

    Batch = dict[str, np.ndarray]


PAUSE = 0.5  # seconds between looks at how far the workers are


@dataclass
class RayProgress:
    """Progress of a run: the shards that are done, and what is known of those in progress."""

    shards: int
    done: list[Done] = field(default_factory=list)
    under_way: dict[str, TokenCounts] = field(default_factory=dict)  # by the shard's output

    @property
    def new(self) -> list[Done]:
        """The shards that this run made."""
        return [done for done in self.done if not done.passed_over]

    @property
    def begun(self) -> bool:
        """Whether a worker has started."""
        return bool(self.done or self.under_way)

    def count(self, name: str) -> int:
        """Return the records or tokens so far, of this run."""
        finished = {done.shard.output for done in self.done}
        tallies = [tally for out, tally in self.under_way.items() if out not in finished]
        completed = sum(done.counts[name] for done in self.new)
        return completed + sum(int(getattr(tally, name)) for tally in tallies)


Watch = Callable[[RayProgress], None]


class Meter:
    """Progress of the workers: an actor of its own, so that workers never wait."""

    def __init__(self) -> None:
        self.shards: dict[str, TokenCounts] = {}

    def seen(self, output: str, tally: TokenCounts) -> None:
        """Store the progress of a shard."""
        self.shards[output] = tally

    def all(self) -> dict[str, TokenCounts]:
        """Return the progress of every shard that was started."""
        return self.shards


class RayWorker:
    """A Worker as Ray Data calls it: a batch is one shard; errors travel as rows."""

    def __init__(self, job: ShardJob, meter: Any) -> None:
        import os

        import ray

        node = ray.get_runtime_context().get_node_id()[:8]
        name = f"{os.getpid()} on {ray.util.get_node_ip_address()} ({node})"

        self.worker = ShardWorker(job, name, lambda *seen: meter.seen.remote(*seen))

    def __call__(self, batch: Batch) -> dict[str, list[bytes]]:
        """Make the one shard of a batch."""
        shard = Shard(str(batch["source"][0]), str(batch["output"][0]))
        self.worker.seen(shard.output, TokenCounts())
        try:
            result: Done | BertcliError = self.worker.make(shard)
        except BertcliError as error:
            result = error
        return {"result": [pickle.dumps(result)]}


def run(job: ShardJob, shards: Sequence[Shard], pool: Pool, watch: Watch) -> list[Done]:
    """Make the shards on the cluster that is joined; ``watch`` gets the progress, in one thread.

    Raises BertcliError as soon as a worker does: what is done stays, and the next run goes on.
    """
    import ray

    meter = ray.remote(num_cpus=0)(Meter).remote()
    progress = RayProgress(len(shards))
    with _looking(meter, progress, watch):
        try:
            for result in _results(job, shards, pool, meter):
                if isinstance(result, BertcliError):
                    raise result
                progress.done.append(result)
        except ray.exceptions.RayError as failed:
            raise _explained(failed) from None
    return progress.done


def _results(
    job: ShardJob, shards: Sequence[Shard], pool: Pool, meter: Any
) -> Iterator[Done | BertcliError]:
    """Yield the result of every shard, as soon as it is done."""
    import logging

    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its progress is shown as ours
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.from_items(
        [shard._asdict() for shard in shards], override_num_blocks=len(shards)
    )
    results = rows.map_batches(
        RayWorker,
        fn_constructor_args=(job, meter),
        batch_size=1,
        # A second shard would wait at a busy worker while another has nothing to do.
        compute=ray.data.ActorPoolStrategy(size=pool.workers, max_tasks_in_flight_per_actor=1),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )
    for row in results.iter_rows():
        yield pickle.loads(row["result"])


@contextmanager
def _looking(meter: Any, progress: RayProgress, watch: Watch) -> Iterator[None]:
    """Poll the progress of the shards."""
    import ray

    over = threading.Event()

    def look() -> None:
        while not over.wait(PAUSE):
            progress.under_way = ray.get(meter.all.remote())
            watch(progress)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
