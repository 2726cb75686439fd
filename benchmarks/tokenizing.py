"""Times `bertcli tokenize` against its peers, whole processes side by side, as ratios.

    python benchmarks/tokenizing.py [TEXT_FILE] [--megabytes 100] [--words FILE ...] [--repeats 3]
                                    [--json out.json]

Without a file it makes English lines, of the words of given files or of made-up ones, and lines in
twelve scripts. tokenizers gets a twentieth of them, as it takes minutes for all; its seconds are
given for the whole, its start counted once. All commands run on the same two cores, where the
system lets us choose, and in turn (A B C A B C ...), so that a machine whose speed drifts does not
favour one of them. The figures are medians; read the ratios, not the seconds. Where others use the
machine, the CPU seconds say more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

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
print(AutoTokenizer.from_pretrained({str(FOLDER)!r})('I love NLP!').input_ids)
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
ALL_NANOTOKEN = (
    """
import sys
import nanotoken
"""
    + LOAD
    + """
tokenizer = nanotoken.WordPieceTokenizer.from_json(tokenizer.to_str())
"""
    + ALL_LINES.format(call="tokenizer.encode_batch(lines[start : start + 1024], parallel=False)")
)
ALL_ARRAYS = f"""
import sys
from bertcli.records.reader import Reader
from bertcli.records.input import Input
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.run import TokenizeRun
from bertcli.tokenizing.tokenizer import Tokenizer
reader = Reader(Input.of(paths=(sys.argv[1],)))
for batch in TokenizeRun(reader, Tokenizer.load({str(FOLDER)!r}), Layout()):
    found = batch.ids, batch.offsets
"""
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
    """Return the medians of what `timed` gives, and their ratios to those of the first."""
    return medians(timed(commands, repeats))


def timed(commands: dict[str, list[str]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each run of each command, by the clock and of CPUs."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for turn in range(repeats + 1):  # the first turn warms the disk cache
        for name, command in commands.items():
            start, before = time.perf_counter(), os.times()
            with open(os.devnull, "wb") as nowhere:
                subprocess.run(command, check=True, stdout=nowhere, stderr=nowhere, env=environment)
            after = os.times()
            cpu = after.children_user + after.children_system
            cpu -= before.children_user + before.children_system
            if turn:
                times[name].append((time.perf_counter() - start, cpu))
    return times


def medians(times: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Return the medians, and their ratios to those of the first."""
    median = {
        name: [statistics.median(column) for column in zip(*found, strict=True)]
        for name, found in times.items()
    }
    first = next(iter(median.values()))
    return {
        name: {"seconds": wall, "ratio": wall / first[0], "cpu": cpu, "cpu ratio": cpu / first[1]}
        for name, (wall, cpu) in median.items()
    }


def make_text(path: Path, size: int, words_of: Sequence[Path]) -> None:
    """Write seeded lines of words as frequent as in some files, a hundredth of them altered."""
    if not words_of:
        return make_up_text(path, size)
    dice = random.Random(3)
    lines = [line.split() for one in words_of for line in one.read_text("utf-8").split("\n")]
    words = [word for line in lines for word in line]

    def word(given: str) -> str:
        chosen = dice.choice(words) if dice.random() < 0.5 else given
        return chosen if dice.random() > 0.01 else chosen[:3] + dice.choice(words)[2:]

    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            made = [" ".join(map(word, dice.choice(lines))) for _ in range(1000)]
            file.write("\n".join(made) + "\n")
    return None


def make_up_text(path: Path, size: int) -> None:
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


def make_multilingual(path: Path, size: int) -> None:
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


def head(path: Path, part: Path, share: int) -> None:
    """Write the first of so many shares of the lines of a file."""
    lines = path.read_bytes().split(b"\n")
    part.write_bytes(b"\n".join(lines[: max(1, len(lines) // share)]))


def on_two_cores() -> None:
    """Keep this process and all it starts to two cores, so that figures can be compared."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def table(title: str, results: dict[str, dict[str, float]]) -> str:
    names = ("seconds", "ratio", "cpu", "cpu ratio")
    rows = [
        f"| {name} | " + " | ".join(f"{found[key]:.3f}" for key in names) + " |"
        for name, found in results.items()
    ]
    return "\n".join([f"| {title} | {' | '.join(names)} |", "|---|---|---|---|---|", *rows])


def through(text: Path, repeats: int, share: int) -> dict[str, dict[str, float]]:
    """Time a file of lines: the first is what the others are measured by."""
    part, nothing, out = text.with_suffix(".part"), text.with_suffix(".empty"), text.parent
    head(text, part, share)
    nothing.touch()

    def to(name: str, *rest: str) -> list[str]:
        return bertcli("-q", "-i", str(text), "-o", str(out / name), "--overwrite", *rest)

    slow = {
        "tokenizers: encode_batch_fast, ids thrown away": ALL_TOKENIZERS,
        "transformers: fast tokenizer, json.dumps": ALL_TRANSFORMERS,
    }
    starts = {f"{name} (start)": python(code, str(nothing)) for name, code in slow.items()}
    times = timed(
        {
            **{name: python(code, str(part)) for name, code in slow.items()},
            **starts,
            "nanotoken: ids thrown away": python(ALL_NANOTOKEN, str(text)),
            "bertcli: arrays thrown away": python(ALL_ARRAYS, str(text)),
            "bertcli tokenize --ragged -o x.npz": to("x.npz", "--ragged"),
            "bertcli tokenize -o x.parquet": to("x.parquet"),
            "bertcli tokenize -o x.jsonl": to("x.jsonl"),
            "bertcli tokenize --count": bertcli("-q", "-i", str(text), "--count"),
        },
        repeats,
    )
    for name, start in zip(slow, starts, strict=True):
        times[name] = [
            (share * (wall - start_wall) + start_wall, share * (cpu - start_cpu) + start_cpu)
            for (wall, cpu), (start_wall, start_cpu) in zip(
                times[name], times.pop(start), strict=True
            )
        ]
    return medians(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--words", nargs="*", type=Path, default=[])
    parser.add_argument("--share", type=int, default=20, help="of the text for tokenizers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_two_cores()
    one_text = {
        "tokenizers: load, one text": python(ONE_TOKENIZERS),
        "bertcli tokenize 'I love NLP!'": bertcli("I love NLP!"),
        "transformers: load, one text": python(ONE_TRANSFORMERS),
    }
    results: dict[str, dict[str, dict[str, float]]] = {}

    def keep(title: str, found: dict[str, dict[str, float]]) -> None:
        results[title] = found
        print(table(title, found), end="\n\n", flush=True)

    keep("start, one text", measure(one_text, options.repeats))
    with tempfile.TemporaryDirectory() as folder:
        if options.text:
            texts = {"lines": Path(folder, "lines.txt")}
            shutil.copy(options.text, texts["lines"])
        else:
            texts = make_texts(Path(folder), options.megabytes * 10**6, options.words)
        for name, text in texts.items():
            title = f"{text.stat().st_size / 1e6:.1f} MB: {name}"
            keep(title, through(text, options.repeats, options.share))
    if options.json:
        packages = ("bertcli", "nanotoken", "tokenizers", "transformers", "typer")
        about = {
            "machine": f"{platform.machine()}, 2 of {os.cpu_count()} cores",
            "python": platform.python_version(),
            "versions": {name: version(name) for name in packages},
        }
        options.json.write_text(json.dumps(about | results, indent=2))


def make_texts(folder: Path, size: int, words_of: Sequence[Path]) -> dict[str, Path]:
    """Write the texts to measure with."""
    english, multilingual = folder / "english.txt", folder / "multilingual.txt"
    make_text(english, size, words_of)
    make_multilingual(multilingual, size)
    return {"English": english, "twelve scripts": multilingual}


if __name__ == "__main__":
    main()
