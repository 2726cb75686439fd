"""What `--engine ray` costs beside the local engine, and what each stage of a run costs.

    python benchmarks/distributed.py [--texts 20000] [--repeats 3] [--json out.json]

Both engines embed the same texts with the same number of threads, in turn (A B A B ...). What it
takes to start is measured with a handful of texts and taken off. The stages are measured alone, in
one process; from them follows what GPUs of a given speed need in cores and bandwidth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARDS, FEW = 4, 8
WORDS = Path(__file__).parents[1] / "samples" / "texts.txt"
GPU_TEXTS = 20_000  # texts a second of a GPU that the table assumes; give --gpu-texts for yours


def make_texts(folder: Path, count: int) -> list[Path]:
    """Write sentences of 3 to 12 words into shards: with little to compute, the rest shows."""
    random.seed(7)
    words = WORDS.read_text("utf-8").split()
    folder.mkdir()
    paths = [folder / f"part-{number}.txt" for number in range(SHARDS)]
    for path in paths:
        lines = (
            " ".join(random.choices(words, k=random.randint(3, 12))) for _ in range(count // SHARDS)
        )
        path.write_text("\n".join(lines) + "\n", "utf-8")
    return paths


def embed(paths: list[Path], *options: str) -> float:
    """Return the seconds of one command."""
    files = [part for path in paths for part in ("-i", str(path))]
    begun = time.perf_counter()
    command = [sys.executable, "-m", "bertcli", "embed", "-q", "--overwrite", *files, *options]
    subprocess.run(command, check=True)
    return time.perf_counter() - begun


def engines(folder: Path, count: int, repeats: int, threads: int) -> dict[str, float]:
    """Return the medians of both engines, start and work apart, and their ratio."""
    many, few = make_texts(folder / "many", count), make_texts(folder / "few", FEW)
    each = {
        "local": ("--threads", str(threads), "-o", str(folder / "local.npy")),
        "ray": (
            *("--engine", "ray", "--workers", "1", "--cpus-per-worker", str(threads)),
            *("-f", "npy", "-o", str(folder / "ray")),
        ),
    }
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, options in each.items():
            start = embed(few, *options)
            found.setdefault(f"{name} start", []).append(start)
            found.setdefault(f"{name} work", []).append(embed(many, *options) - start)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    ratios = [b / a for a, b in zip(found["local work"], found["ray work"], strict=True)]
    return medians | {"ray / local, after start": statistics.median(ratios)}


def stages(path: Path, threads: int) -> dict[str, float]:
    """Return the seconds a text takes in each stage, and the bytes that come and go."""
    from bertcli.embedding.pooling import EmbeddedBlock
    from bertcli.embedding.record_embedder import EmbedOptions, RecordEmbedder
    from bertcli.engines.torch_engine import use_threads
    from bertcli.model_folder.files import MODEL_FILES
    from bertcli.model_folder.find import find_model
    from bertcli.model_folder.hub_cache import DEFAULT_MODEL
    from bertcli.records.input import Input
    from bertcli.records.reader import Reader

    use_threads(threads)
    embedder = RecordEmbedder.open(find_model(DEFAULT_MODEL, files=MODEL_FILES), EmbedOptions())
    source = Input.of(paths=(str(path),))
    clock = [time.perf_counter()]
    records = sum(len(block) for block in Reader(source).blocks())
    clock.append(time.perf_counter())
    encoded = list(embedder.run(Reader(source)))
    clock.append(time.perf_counter())
    parts = [part for batch in encoded for part in embedder.embed_window(batch)]
    windows = [part for part in parts if isinstance(part, EmbeddedBlock)]
    clock.append(time.perf_counter())
    _written(windows)  # the first time loads what a worker loads once
    write, written = _written(windows)
    read, both, compute = (b - a for a, b in itertools.pairwise(clock))
    return {
        "read": read / records,
        "tokenize": max(0.0, both - read) / records,
        "compute": compute / records,
        "write": write / records,
        "bytes in": path.stat().st_size / records,
        "bytes out": written / records,
    }


def _written(windows: Sequence[Any]) -> tuple[float, int]:
    """Write embedded windows as Parquet; return the seconds, and the bytes of the file."""
    from bertcli.runs.embedded_rows import fields_of_block
    from bertcli.runs.identity import Inputs
    from bertcli.runs.vector_run import VectorTarget

    with tempfile.TemporaryDirectory() as folder:
        target = VectorTarget(Path(folder) / "out.parquet", "parquet")
        begun = time.perf_counter()
        with target.opened({}, Inputs()) as sink:
            for window in windows:
                sink.write(fields_of_block(window), window.stacked)
                sink.commit({})
            sink.finish({})
        return time.perf_counter() - begun, target.path.stat().st_size


def scaling(costs: dict[str, float], gpu_texts: float) -> list[str]:
    """Return a table: what 1, 8 and 64 GPUs need when a core does all that is not compute."""
    rest = costs["read"] + costs["tokenize"] + costs["write"]
    rows = ["| GPUs | texts/s | cores beside them | MB/s in | MB/s out |", "|---|---|---|---|---|"]
    for gpus in (1, 8, 64):
        rate = gpus * gpu_texts
        rows.append(
            f"| {gpus} | {rate:,.0f} | {rate * rest:.1f} | {rate * costs['bytes in'] / 1e6:.1f} "
            f"| {rate * costs['bytes out'] / 1e6:.1f} |"
        )
    one = 1 / (costs["read"] + costs["tokenize"] + costs["write"])
    rows.append("")
    rows.append(f"The Python of one worker does {one:,.0f} texts/s: a faster GPU waits for it.")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpu-texts", type=float, default=GPU_TEXTS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = engines(Path(folder), given.texts, given.repeats, given.threads)
        costs = stages(Path(folder) / "many" / "part-0.txt", given.threads)
    for name, value in found.items():
        print(f"{name:26} {value:8.2f}")
    for name, value in costs.items():
        print(
            f"{name:26} {value * 1e6:8.1f} us a text"
            if "bytes" not in name
            else f"{name:26} {value:8.1f} a text"
        )
    print("\n".join(scaling(costs, given.gpu_texts)))
    if given.json:
        given.json.write_text(json.dumps({"engines": found, "stages": costs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
