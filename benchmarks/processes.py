"""Whole processes: how soon the first vector is there, and a file of texts to a file of vectors."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from measure import environment, say
from report import Table
from sections import Section, Setting

ONE_THEIRS = """
import sys
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(sys.argv[1], device="cpu").encode(sys.argv[2:]).tolist())
"""
FILE_THEIRS = """
import sys
import numpy
import torch
from sentence_transformers import SentenceTransformer
model, texts, vectors, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
with open(texts, encoding="utf-8") as file:
    lines = file.read().splitlines()
numpy.save(vectors, SentenceTransformer(model, device="cpu").encode(lines))
"""


def start(setting: Setting) -> Section:
    """One text in a fresh process."""
    place, text = setting.arena.place, "I love NLP!"
    ours = ("embed", "-q", "-m", str(place.model), "--device", "cpu", text)
    commands = {
        "python": python("pass"),
        "python, import torch": python("import torch"),
        'bertcli embed "I love NLP!"': bertcli(*ours),
        "sentence-transformers, one text": python(ONE_THEIRS, str(place.model), text),
    }
    return section("a fresh process", setting, commands)


def whole(setting: Setting) -> Section:
    """A file of short texts in, a file of vectors out."""
    place, texts = setting.arena.place, setting.corpus.short(setting.count(500), "whole").texts
    source, target = place.work / "whole.txt", place.work / "whole.npy"
    source.write_text("\n".join(texts) + "\n", "utf-8")
    ends = ("-i", str(source), "-o", str(target))
    ours = ("embed", "-q", "--overwrite", "-m", str(place.model), "--device", "cpu", *ends)
    counted = ("--threads", str(place.threads))
    theirs = (str(place.model), str(source), str(target), str(place.threads))
    commands = {
        "bertcli embed -i texts.txt -o x.npy": bertcli(*ours, *counted),
        "the same with sentence-transformers": python(FILE_THEIRS, *theirs),
    }
    return section(f"{len(texts):,} short texts, file to file", setting, commands)


def section(title: str, setting: Setting, commands: Mapping[str, Sequence[str]]) -> Section:
    if find_spec("sentence_transformers") is None:
        commands = {name: line for name, line in commands.items() if "sentence" not in name}
    times = timed(commands, setting)
    ours = next(times[name] for name in times if name.startswith("bertcli"))
    lines = [(name, seconds, seconds / ours) for name, seconds in times.items()]
    return Section([Table(title, ("", "seconds", "ratio"), lines)], times)


def timed(commands: Mapping[str, Sequence[str]], setting: Setting) -> dict[str, float]:
    """Return the median wall seconds of commands run in turn, after a turn to fill the caches."""
    place, seconds = setting.arena.place, {name: [] for name in commands}
    log = Path(place.work, "process.txt")
    for turn in range(setting.arena.repeats + 1):
        say(f"processes, round {turn}")
        for name, command in commands.items():
            begin = time.perf_counter()
            with log.open("wb") as to:
                env = environment(place.threads)
                subprocess.run(command, check=True, stdout=to, stderr=to, env=env)
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in seconds.items()}


def python(code: str, *rest: str) -> list[str]:
    return [sys.executable, "-c", code, *rest]


def bertcli(*rest: str) -> list[str]:
    return [sys.executable, "-m", "bertcli", *rest]
