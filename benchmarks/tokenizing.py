"""Times `bertcli tokenize` against its peers, whole processes side by side, as ratios.

    python benchmarks/tokenizing.py [TEXT_FILE] [--repeats 3] [--json out.json]

Without a file it makes about 10 MB of English-like lines, 10 MB in twelve scripts, and a text five
times as large, which is worth the start of several processes. All commands run on the same two
cores, where the system lets us choose, and in turn (A B C A B C ...), so that a machine whose speed
drifts does not favour one of them. The figures are medians; read the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from bertcli.hub import DEFAULT_MODEL, find_model

FOLDER = find_model(DEFAULT_MODEL).path
LOAD = f"""
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file({str(FOLDER / "tokenizer.json")!r})
tokenizer.no_truncation()
tokenizer.no_padding()
"""
ONE_TOKENIZERS = LOAD + "print(tokenizer.encode('I love NLP!').ids)"
ONE_TRANSFORMERS = f"""
from transformers import AutoTokenizer
print(AutoTokenizer.from_pretrained({str(FOLDER)!r})("I love NLP!").input_ids)
"""
ALL_LINES = """
import sys
lines = open(sys.argv[1], encoding="utf-8").read().split("\\n")
for start in range(0, len(lines), 1024):
    found = {call}
"""
ALL_TOKENIZERS = LOAD + ALL_LINES.format(
    call="tokenizer.encode_batch_fast(lines[start : start + 1024])"
)
ALL_TRANSFORMERS = f"""
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(FOLDER)!r}, model_max_length=10**9)
lines = open(sys.argv[1], encoding="utf-8").read().split("\\n")
for start in range(0, len(lines), 1024):
    batch = tokenizer(lines[start : start + 1024])
    for row in zip(*batch.values()):
        print(json.dumps(dict(zip(batch.keys(), row))))
"""


def python(code: str, *rest: str) -> list[str]:
    return [sys.executable, "-c", code, *rest]


def bertcli(*rest: str) -> list[str]:
    return [sys.executable, "-m", "bertcli", "tokenize", *rest]


def measure(commands: dict[str, list[str]], repeats: int) -> dict[str, dict[str, float]]:
    """Return the median wall seconds of each command and its ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for turn in range(repeats + 1):  # the first turn warms the disk cache
        for name, command in commands.items():
            start = time.perf_counter()
            with open(os.devnull, "wb") as nowhere:
                subprocess.run(command, check=True, stdout=nowhere, stderr=nowhere, env=environment)
            if turn:
                times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(found) for name, found in times.items()}
    first = next(iter(median.values()))
    return {name: {"seconds": t, "ratio": t / first} for name, t in median.items()}


def make_text(path: Path, size: int = 10_000_000) -> None:
    """Write seeded lines: ASCII words with a long tail, and a few lines in other scripts."""
    random.seed(7)
    samples = Path(__file__).parents[1] / "samples" / "texts.txt"
    others = samples.read_text("utf-8").splitlines()
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(random.choices(letters, k=random.randint(1, 11))) for _ in range(30_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            for _ in range(200):
                line = " ".join(random.choices(words, weights, k=random.randint(3, 30)))
                file.write(f"{line.capitalize()}.\n")
            file.write(random.choice(others) + "\n")


SPACED = {  # ranges of letters, of languages that put blanks between words
    "Russian": [(0x430, 0x44F)],
    "Greek": [(0x3B1, 0x3C9)],
    "Arabic": [(0x627, 0x64A)],
    "Hebrew": [(0x5D0, 0x5EA)],
    "Hindi": [(0x905, 0x939), (0x93E, 0x94D)],
    "Korean": [(0xAC00, 0xB3A3)],
    "Vietnamese": [(0x61, 0x7A), (0x1EA0, 0x1EF9)],
    "German": [(0x61, 0x7A), (0x61, 0x7A), (0xE4, 0xFC)],
    "English": [(0x61, 0x7A)],
}
UNSPACED = {
    "Chinese": [(0x4E00, 0x59FF)],
    "Japanese": [(0x3041, 0x3093), (0x30A1, 0x30F3), (0x4E00, 0x55FF)],
    "Thai": [(0xE01, 0xE2E), (0xE30, 0xE3A), (0xE40, 0xE4D)],
}


def make_multilingual(path: Path, size: int = 10_000_000) -> None:
    """Write seeded lines of made-up words in many scripts, the frequent ones frequent."""
    dice = random.Random(11)
    words = {}
    for name, ranges in (SPACED | UNSPACED).items():
        letters = [chr(code) for low, high in ranges for code in range(low, high + 1)]
        longest = 9 if name in SPACED else 3
        words[name] = [
            "".join(dice.choices(letters, k=dice.randint(1, longest))) for _ in range(20_000)
        ]
    weights = [1 / rank for rank in range(1, 20_001)]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            for name, known in words.items():
                for _ in range(50):
                    some = dice.choices(known, weights, k=dice.randint(5, 25))
                    gap, end = (" ", ".") if name in SPACED else ("", "。")
                    file.write(gap.join(some) + end + "\n")


def repeat(path: Path, copy: Path, times: int) -> None:
    """Write a file several times over."""
    data = path.read_bytes()
    with copy.open("wb") as file:
        for _ in range(times):
            file.write(data)


def on_two_cores() -> None:
    """Keep this process and all it starts to two cores, so that figures can be compared."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def table(title: str, results: dict[str, dict[str, float]]) -> str:
    rows = [f"| {name} | {r['seconds']:.3f} | {r['ratio']:.2f} |" for name, r in results.items()]
    return "\n".join([f"| {title} | seconds (median) | ratio |", "|---|---|---|", *rows])


def through(text: Path, repeats: int, *, transformers: bool) -> dict[str, dict[str, float]]:
    """Time a file of lines: the first is what the others are measured by."""
    commands = {
        "tokenizers: encode_batch_fast, ids thrown away": python(ALL_TOKENIZERS, str(text)),
        "bertcli tokenize to JSONL": bertcli("-q", "-i", str(text)),
        "the same in one process": bertcli("-q", "-i", str(text), "--workers", "0"),
        "bertcli tokenize --count": bertcli("-q", "-i", str(text), "--count"),
    }
    if transformers:
        commands["transformers: fast tokenizer, json.dumps"] = python(ALL_TRANSFORMERS, str(text))
    return measure(commands, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_two_cores()
    one_text = {
        "tokenizers: load, one text": python(ONE_TOKENIZERS),
        'bertcli tokenize "I love NLP!"': bertcli("I love NLP!"),
        "transformers: load, one text": python(ONE_TRANSFORMERS),
    }
    results: dict[str, dict[str, dict[str, float]]] = {}

    def keep(title: str, found: dict[str, dict[str, float]]) -> None:
        results[title] = found
        print(table(title, found), end="\n\n", flush=True)

    keep("start, one text", measure(one_text, options.repeats))
    with tempfile.TemporaryDirectory() as folder:
        texts = {"lines": options.text} if options.text else make_texts(Path(folder))
        for name, text in texts.items():
            title = f"{text.stat().st_size / 1e6:.1f} MB: {name}"
            transformers = not name.startswith("5 x")
            keep(title, through(text, options.repeats, transformers=transformers))
    if options.json:
        packages = ("bertcli", "tokenizers", "transformers", "typer")
        about = {
            "machine": f"{platform.machine()}, 2 of {os.cpu_count()} cores",
            "python": platform.python_version(),
            "versions": {name: version(name) for name in packages},
        }
        options.json.write_text(json.dumps(about | results, indent=2))


def make_texts(folder: Path) -> dict[str, Path]:
    """Write the texts to measure with."""
    english, multilingual = folder / "english.txt", folder / "multilingual.txt"
    make_text(english)
    make_multilingual(multilingual)
    repeat(english, folder / "large.txt", 5)
    return {
        "English": english,
        "twelve scripts": multilingual,
        "5 x English": folder / "large.txt",
    }


if __name__ == "__main__":
    main()
