"""Times `bertcli serve` against its peers: requests a second and latencies, at 1, 8 and 32 clients.

    pip install -c constraints.txt ".[serve]"
    python benchmarks/serve.py [--clients 1,8,32] [--seconds 10] [--rounds 3] [--peers PYTHON]

Peers run in the Python of another environment, since they need other versions of what we use:

    python -m venv peers && peers/bin/pip install fastapi uvicorn sentence-transformers
    peers/bin/pip install 'infinity-emb[torch,optimum,server]' 'transformers<5'

Whoever is not installed there is left out. Each server is a process of its own that runs alone; in
a round they take turns. A request has one text of 2 to 40 words. Each client sends its requests one
after another on a connection that it keeps. Read the ratios, not the seconds; where other processes
need the machine, read those of CPU time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from corpus import Corpus
from machine import about

from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

OURS = "bertcli serve"
REFERENCE = "FastAPI and sentence-transformers"
FASTAPI = """
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()


class Request(BaseModel):
    input: str | list[str]


@app.get("/health")
def health():
    return {}


@app.post("/v1/embeddings")
def embeddings(request: Request):
    texts = [request.input] if isinstance(request.input, str) else request.input
    vectors = model.encode(texts)
    data = [{"index": i, "embedding": vector.tolist()} for i, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": sys.argv[1]}


uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
"""


class Peer(NamedTuple):
    """A server: its name, the package that has to be installed, and its command line."""

    name: str
    package: str
    command: Sequence[str]  # {model} and {port} stand for their values
    path: str = "/v1/embeddings"


OURS_COMMAND = ("-m", "bertcli", "serve", "-q", "-m", "{model}", "--port", "{port}")
INFINITY = ("-c", "from infinity_emb.cli import cli; cli()", "v2", "--model-id", "{model}")
INFINITY += ("--port", "{port}", "--device", "cpu", "--no-bettertransformer")
PEERS = (
    Peer(REFERENCE, "fastapi", ("-c", FASTAPI, "{model}", "{port}")),
    Peer("infinity, torch", "infinity_emb", (*INFINITY, "--engine", "torch"), "/embeddings"),
    Peer("infinity, optimum", "infinity_emb", (*INFINITY, "--engine", "optimum"), "/embeddings"),
)


class Load(NamedTuple):
    """What a number of clients measured."""

    rate: float  # requests a second
    p50: float  # milliseconds
    p99: float
    cpu: float  # milliseconds of CPU time of the server for a request; nan where unknown

    @property
    def shown(self) -> str:
        times = f"p50 {self.p50:.0f}, p99 {self.p99:.0f}, CPU {self.cpu:.1f} ms"
        return f"{self.rate:.0f}/s, {times}"


class EndedError(Exception):
    """A server has ended by itself."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def has(python: str, package: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
    return subprocess.run([python, "-c", code]).returncode == 0


@contextmanager
def running(python: str, peer: Peer, model: str) -> Iterator[tuple[int, int]]:
    """Start a server, wait until it answers, and yield its port and its process id."""
    port = free_port()
    command = [word.replace("{model}", model).replace("{port}", str(port)) for word in peer.command]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [python, *command], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            for _ in range(600):
                time.sleep(0.2)
                if process.poll() is not None:
                    log.seek(0)
                    raise EndedError(f"{peer.name}: {log.read().decode()[-500:]}")
                try:
                    ask(http.client.HTTPConnection("127.0.0.1", port), peer.path, "ready?")
                    break
                except OSError:
                    continue
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def ask(connection: http.client.HTTPConnection, path: str, text: str) -> None:
    body = json.dumps({"input": [text]}).encode()
    connection.request("POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {content[:300]!r}")


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has used, on Linux; elsewhere nan."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(
    port: int, process: int, path: str, texts: Sequence[str], clients: int, seconds: float
) -> Load:
    """Return the rate and the latencies of clients that send one request after another."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    def client(seed: int) -> None:
        chosen = random.Random(seed)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            ask(connection, path, chosen.choice(texts))
            times.append(time.perf_counter() - start)
        connection.close()

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(clients)]
    used = cpu_seconds(process)
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - begin
    percentiles = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
    cpu = 1000 * (cpu_seconds(process) - used) / len(times)
    return Load(len(times) / spent, 1000 * percentiles[49], 1000 * percentiles[98], cpu)


def measured(
    python: str, peer: Peer, model: str, texts: Sequence[str], counts: Sequence[int], seconds: float
) -> dict[int, Load]:
    """Return what each number of clients measures on a new server."""
    with running(python, peer, model) as (port, process):
        load(port, process, peer.path, texts, max(counts), min(2.0, seconds))  # warm
        return {count: load(port, process, peer.path, texts, count, seconds) for count in counts}


def table(loads: dict[str, dict[int, list[Load]]], counts: Sequence[int]) -> str:
    """Return the medians of the ratios to the reference, round by round, as Markdown."""
    reference = REFERENCE if REFERENCE in loads else OURS
    lines = [f"| x {reference} | {' | '.join(f'{count} clients' for count in counts)} |"]
    lines.append("|---" * (len(counts) + 1) + "|")
    for name, of_peer in loads.items():
        cells = []
        for count in counts:
            pairs = [*zip(of_peer[count], loads[reference][count], strict=True)]
            rate = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
            p50 = statistics.median(ours.p50 for ours, _ in pairs)
            p99 = statistics.median(ours.p99 for ours, _ in pairs)
            cpu = statistics.median(theirs.cpu / ours.cpu for ours, theirs in pairs)
            cells.append(f"{rate:.2f} (CPU {cpu:.2f}; p50 {p50:.0f}, p99 {p99:.0f} ms)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    summary, _, rest = __doc__.partition("\n")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=rest, formatter_class=raw)
    parser.add_argument("--clients", default="1,8,32", help="numbers of clients")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a folder with onnx/ for optimum")
    parser.add_argument("--peers", default=sys.executable, help="the Python of the peers")
    parser.add_argument("--output", type=Path, help="file of the figures, JSON")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    chosen = options(argv)
    counts = [int(count) for count in chosen.clients.split(",")]
    model = str(find_model(chosen.model, files=MODEL_FILES).path)
    corpus = Corpus(Path(model), 256)
    texts = corpus.made("requests", 500, lambda draw: draw.randint(2, 40)).texts
    peers = [(sys.executable, Peer(OURS, "uvicorn", OURS_COMMAND))]
    peers += [(chosen.peers, peer) for peer in PEERS if has(chosen.peers, peer.package)]
    loads: dict[str, dict[int, list[Load]]] = {peer.name: {} for _, peer in peers}
    for number in range(chosen.rounds):
        for python, peer in peers:
            if peer.name not in loads:
                continue
            try:
                found = measured(python, peer, model, texts, counts, chosen.seconds)
            except EndedError as ended:
                print(f"left out: {ended}", flush=True)
                del loads[peer.name]
                continue
            for count, one in found.items():
                loads[peer.name].setdefault(count, []).append(one)
                print(f"round {number + 1}: {peer.name}, {count} clients: {one.shown}", flush=True)
    print(table(loads, counts))
    if chosen.output:
        chosen.output.write_text(json.dumps({"machine": about(), "loads": loads}, indent=2))


if __name__ == "__main__":
    main()
