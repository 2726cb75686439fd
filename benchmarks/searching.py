"""What searches, near-duplicates and updates cost: `python benchmarks/searching.py TEXTS.txt`.

TEXTS.txt has one text a line, real ones, for recall; vectors of speed are made. Commands are timed
as processes, in turn, and their ratio to a one-text `embed` is what counts on a busy machine.
Needs OpenVINO, GNU time, and 4 GB of disk in --folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WIDTH, ROUNDS = 384, 5
ENGINE = ("--backend", "openvino", "-q")


def timed(*argv: object) -> tuple[float, float, float, str]:
    """Return wall seconds, CPU seconds and megabytes of a command, and what it wrote."""
    command = ["/usr/bin/time", "-f", "%e %U %S %M", sys.executable, "-m", "bertcli"]
    done = subprocess.run([*command, *map(str, argv)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    wall, user, system, kilobytes = map(float, done.stderr.splitlines()[-1].split())
    return wall, user + system, kilobytes / 1e3, done.stdout


def in_turn(**commands: tuple[object, ...]) -> None:
    """Print the medians of some commands, and their ratio to the first."""
    seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, argv in commands.items():
            seen[name].append(timed(*argv)[:3])
    base = None
    for name, rows in seen.items():
        wall, cpu, size = (statistics.median(row[at] for row in rows) for at in range(3))
        base = base or (wall, cpu)
        print(
            f"{name:28} {wall:6.2f} s  {cpu:6.2f} s CPU  {size:6.0f} MB  "
            f"ratio {wall / base[0]:.2f} ({cpu / base[1]:.2f} of CPU)"
        )


def made_vectors(path: Path, vectors: np.ndarray, precision: str) -> Path:
    """Write vectors beside a manifest of the default model, as if it had made them."""
    timed("embed", "one", "two", "-o", path, "--precision", precision, *ENGINE)
    np.save(path, vectors)
    manifest_path = Path(f"{path}.manifest.json")
    manifest = json.loads(manifest_path.read_text("utf-8"))
    with path.open("rb") as file:
        manifest["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    manifest_path.write_text(json.dumps(manifest), "utf-8")
    return path


def speed(folder: Path) -> None:
    """Search 1,000,000 vectors, and 10,000,000 of bits."""
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((1_000_000, WIDTH), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = made_vectors(folder / "stored.npy", vectors, "float32")
    bits = draw.integers(0, 256, (10_000_000, WIDTH // 8), np.uint8)
    packed = made_vectors(folder / "packed.npy", bits, "ubinary")
    search = ("similar", "hello world", *ENGINE, "--vectors")
    many = {}
    for count in (32, 1000):
        queries = folder / f"{count}.txt"
        queries.write_text("".join(f"query number {n}\n" for n in range(count)), "utf-8")
        many[f"queries_{count}"] = ("similar", "-i", queries, *ENGINE, "--vectors", stored)
    in_turn(
        one_text=("embed", "hello world", *ENGINE),
        million=(*search, stored),
        **many,
        ten_million_of_bits=(*search, packed),
    )


def recall(folder: Path, texts: Path) -> None:
    """Print how many of the ten nearest of 200 texts are found with fewer bits."""
    lines = texts.read_text("utf-8").splitlines()
    random.Random(0).shuffle(lines)
    (folder / "queries.txt").write_text("".join(line + "\n" for line in lines[:200]), "utf-8")
    (folder / "corpus.txt").write_text("".join(line + "\n" for line in lines[200:]), "utf-8")
    exact = None
    for precision in ("float32", "int8", "binary"):
        out = folder / f"corpus.{precision}.npy"
        timed("embed", "-i", folder / "corpus.txt", "-o", out, "--precision", precision, *ENGINE)
        rows = timed("similar", "-i", folder / "queries.txt", "--vectors", out, *ENGINE)[3]
        found = [{hit["row"] for hit in json.loads(row)["hits"]} for row in rows.splitlines()]
        exact = exact or found
        same = [len(one & other) / 10 for one, other in zip(exact, found, strict=True)]
        print(f"recall@10 of {precision:8} {statistics.mean(same):.4f}, {len(lines) - 200:,} texts")


def duplicates(folder: Path) -> None:
    """Find known copies among 100,000 made vectors, whose texts are their numbers."""
    draw = np.random.default_rng(1)
    vectors = draw.normal(size=(100_000, WIDTH))
    copies = draw.permutation(100_000)[:4000].reshape(2, 2000)
    vectors[copies[1]] = vectors[copies[0]] + 0.1 * draw.normal(size=(2000, WIDTH))
    path = made_vectors(folder / "copies.npy", vectors.astype(np.float32), "float32")
    (folder / "copies.txt").write_text("".join(f"{row}\n" for row in range(100_000)))
    Path(f"{path}.manifest.json").unlink()  # of other texts
    argv = ("duplicates", folder / "copies.txt", "--vectors", path, *ENGINE)
    wall, cpu, size, rows = timed(*argv)
    groups = {frozenset([one["keep"], *one["rows"]]) for one in map(json.loads, rows.splitlines())}
    known = {frozenset(pair) for pair in copies.T.tolist()}
    print(
        f"duplicates of 100,000: {wall:.1f} s, {cpu:.1f} s CPU, {size:.0f} MB; "
        f"{len(known & groups):,} of {len(known):,} found, {len(groups - known)} invented"
    )


def update(folder: Path, texts: Path) -> None:
    """Change 100 of many texts."""
    lines = texts.read_text("utf-8").splitlines()[:20_000]
    source, out, few = folder / "many.txt", folder / "many.npy", folder / "few.txt"
    source.write_text("".join(line + "\n" for line in lines), "utf-8")
    timed("embed", "-i", source, "-o", out, "--update", *ENGINE)
    changed = [f"{line} ?" for line in lines[:100]]
    few.write_text("".join(line + "\n" for line in changed), "utf-8")
    source.write_text("".join(line + "\n" for line in changed + lines[100:]), "utf-8")
    wall, cpu, *_ = timed("embed", "-i", source, "-o", out, "--update", *ENGINE)
    alone = timed("embed", "-i", few, "-o", folder / "few.npy", *ENGINE)
    print(
        f"100 changed of {len(lines):,}: {wall:.1f} s, {cpu:.1f} s CPU; "
        f"100 texts alone: {alone[0]:.1f} s, {alone[1]:.1f} s CPU"
    )


def main() -> None:
    """Measure everything, in a folder that is removed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--folder", type=Path, help="where files are made")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        speed(folder)
        duplicates(folder)
        update(folder, given.texts)
        recall(folder, given.texts)


if __name__ == "__main__":
    main()
