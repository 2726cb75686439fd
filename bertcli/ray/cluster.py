"""A Ray cluster: joining or starting it, and the workers that fit on it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, UsageError
from bertcli.files.versions import install_command

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
