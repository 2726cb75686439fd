"""The road beside the model: `bertcli embed` with a model that computes next to nothing.

    python benchmarks/host.py [--texts 100000] [--repeats 3] [--json FILE]

The model has one layer of width 32 and random weights, the tokenizer is that of the default model.
Each command runs with a tenth of the texts and with all of them, in turn: what is in both, the
start, cancels out of the CPU time of a text, and the memory of both shows whether it grows. The
model alone is run by transformers, on batches of one length, and shows what is left to it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from corpus import Corpus
from exported import apart, random_null
from measure import environment, say
from report import Table, markdown

from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

FORMATS = ("npy", "npz", "safetensors", "jsonl", "csv", "parquet")
WHOLE, PART = "all", "a tenth"
ALONE = """
import sys, torch
from transformers import BertModel
torch.set_num_threads(1)
model = BertModel.from_pretrained(sys.argv[1]).eval()
ids = torch.randint(1000, 20000, (256, int(sys.argv[3])))
with torch.inference_mode():
    for _ in range(int(sys.argv[2]) // 256):
        model(ids)
"""


# Linux counts for a process what its parent had when it was started: a small one starts it.
LAUNCHER = """
import os, subprocess, sys
nowhere = subprocess.DEVNULL
running = subprocess.Popen(sys.argv[1:], stdout=nowhere, stderr=nowhere)
_, status, used = os.wait4(running.pid, 0)
running.returncode = os.waitstatus_to_exitcode(status)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(running.returncode)
"""


def measured(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its CPU seconds and the most memory that it had, in MB."""
    launched = [sys.executable, "-c", LAUNCHER, *command]
    found = subprocess.run(launched, check=True, capture_output=True, env=environment(1))
    seconds, most = map(float, found.stdout.split())
    return seconds, most / (1e6 if sys.platform == "darwin" else 1e3)


def commands(model: Path, folder: Path, sizes: dict[str, int], length: int) -> dict[str, dict]:
    """Return, by what it is, the command for each number of texts."""
    found: dict[str, dict] = {}
    for name, texts in sizes.items():
        source = str(folder / f"{name}.txt")
        alone = [sys.executable, "-c", ALONE, str(model), str(texts), str(length)]
        found.setdefault("the model alone", {})[name] = alone
        for form in FORMATS:
            given = ("-q", "--overwrite", "--device", "cpu", "--threads", "1", "-m", str(model))
            line = [sys.executable, "-m", "bertcli", "embed", *given, "-i", source]
            found.setdefault(form, {})[name] = [*line, "-o", str(folder / f"x.{form}")]
    return found


def run(folder: Path, texts: int, repeats: int, scale: int = 10) -> tuple[Table, dict]:
    """Measure every format, with so many texts and with a tenth of them."""
    default = find_model(DEFAULT_MODEL, files=MODEL_FILES).path
    model = folder / "null"
    apart(random_null, model, default)
    made = Corpus(default, 256).short(texts)
    sizes = {PART: texts // scale, WHOLE: texts}
    for name, count in sizes.items():
        (folder / f"{name}.txt").write_text("\n".join(made.texts[:count]) + "\n", "utf-8")
    lines = commands(model, folder, sizes, round(made.tokens / texts))
    times: dict[str, list[float]] = {name: [] for name in lines}
    memory: dict[str, dict[str, float]] = {name: {} for name in lines}
    for turn in range(repeats):
        say(f"round {turn + 1}")
        for name, both in lines.items():
            found = {size: measured(line) for size, line in both.items()}
            times[name].append((found[WHOLE][0] - found[PART][0]) / (texts - texts // scale))
            for size, (_, most) in found.items():
                memory[name][size] = max(most, memory[name].get(size, 0))
    each = {name: statistics.median(some) for name, some in times.items()}
    record = {
        name: {"microseconds": 1e6 * seconds, "megabytes": memory[name]}
        for name, seconds in each.items()
    }
    rows = [
        (name, 1e6 * seconds, 1 / seconds, seconds / each["npy"], *memory[name].values())
        for name, seconds in each.items()
    ]
    heads = ("", "CPU µs a text", "texts/s a core", "npy = 1")
    heads = (*heads, *(f"MB, {count:,} texts" for count in sizes.values()))
    return Table("embed with a null model, one thread", heads, rows), record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, record = run(Path(folder), given.texts, given.repeats)
    print(markdown(table))
    if given.json:
        given.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
