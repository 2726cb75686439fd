"""Whole processes: how soon the first vector is there, and a file of texts to a file of vectors."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from contestants import hindrance
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
FILE_PEER = """
import json
import sys
sys.path.insert(0, sys.argv[1])
import numpy
from pathlib import Path
from contestants import Contestant
from engines import Place, load
contestant, place, texts, vectors = map(json.loads, sys.argv[2:])
place |= {"model": Path(place["model"]), "work": Path(place["work"])}
loaded = load(Contestant(**contestant), Place(**place))
lines = Path(texts).read_text("utf-8").splitlines()
numpy.save(vectors, loaded.run(lines, loaded.sizes[len(loaded.sizes) // 2]))
"""
BARE = """
import sys
from tokenizers import Tokenizer
print(Tokenizer.from_file(sys.argv[1]).encode(sys.argv[2]).ids)
"""


def start(setting: Setting) -> Section:
    """One text in a fresh process."""
    place, text = setting.arena.place, "I love NLP!"
    ours = ("embed", "-q", "-m", str(place.model), "--device", "cpu", text)
    commands = {
        "python": python("pass"),
        "python, tokenizer.json": python(BARE, str(place.model / "tokenizer.json"), text),
        "python, import torch": python("import torch"),
        "bertcli tokenize 'I love NLP!'": bertcli("tokenize", text),
        "bertcli embed 'I love NLP!'": bertcli(*ours),
        "the same, --backend torch": bertcli(*ours, "--backend", "torch"),
        "sentence-transformers, one text": python(ONE_THEIRS, str(place.model), text),
    }
    return section("a fresh process", setting, commands)


def whole(setting: Setting) -> Section:
    """A file of mixed texts in, a file of vectors out; peers with a usual batch size."""
    place, count = setting.arena.place, setting.count(1600)
    texts = setting.corpus.mixed(count).texts
    source, target = place.work / "whole.txt", place.work / "whole.npy"
    source.write_text("\n".join(texts) + "\n", "utf-8")
    ends = ("-i", str(source), "-o", str(target))
    ours = ("embed", "-q", "--overwrite", "-m", str(place.model), "--device", "cpu", *ends)
    counted = ("--threads", str(place.threads))
    theirs = (str(place.model), str(source), str(target), str(place.threads))
    commands = {
        "bertcli embed -i texts.txt -o x.npy": bertcli(*ours, *counted),
        "the same, --backend torch": bertcli(*ours, *counted, "--backend", "torch"),
        "the same with sentence-transformers": python(FILE_THEIRS, *theirs),
    }
    given = {"max_length": place.max_length, "threads": place.threads}
    given |= {"model": str(place.model), "work": str(place.work)}
    here = str(Path(__file__).parent)
    for one in setting.contestants:
        peer = not (one.ours or one.ceiling or one.kind == "sentence_transformers")
        if peer and one.precision == "float32" and not hindrance(one):
            told = (asdict(one), given, str(source), str(target))
            commands[f"the same with {one.name}"] = python(FILE_PEER, here, *map(json.dumps, told))
    return section(f"{len(texts):,} mixed texts, file to file", setting, commands)


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
