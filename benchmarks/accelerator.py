"""The section for a GPU: bert-base with random weights, 512 tokens."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace

from contestants import bertcli, products, sentence_transformers
from corpus import Corpus
from exported import apart, random_base
from measure import Arena
from sections import Section, Setting, embed

LENGTH = 512


def present() -> bool:
    """Whether there is a CUDA device, found without importing torch."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    return subprocess.run([program, "-L"], capture_output=True).stdout.startswith(b"GPU")


def any_length(draw: random.Random) -> int:
    """Draw a number of words, as many short texts as long ones on a log scale."""
    return round(2 ** draw.uniform(2, 9))


def gpu(setting: Setting, device: str = "cuda") -> Section:
    """Ours in bfloat16 against sentence-transformers in float16, with the rates of both."""
    place = setting.arena.place
    folder = place.work / "bert-base-random"
    if not folder.exists():
        apart(random_base, folder, place.model)
    corpus = Corpus(folder, LENGTH)
    contestants = (
        replace(bertcli("bertcli bfloat16", "bfloat16"), device=device),
        sentence_transformers("float16", device),
        sentence_transformers("bfloat16", device),
        products("bfloat16", device),
        products("float16", device),
    )
    sets = [
        corpus.exact(LENGTH, setting.count(4000)),
        corpus.made("mixed to 512", setting.count(8000), any_length),
    ]
    own = replace(place, model=folder, max_length=LENGTH)
    with Arena(own, setting.arena.repeats) as arena:
        found = replace(setting, arena=arena, corpus=corpus, given=sets)
        section = embed(replace(found, contestants=contestants))
    setting.arena.left.update({f"{name}, {device}": why for name, why in arena.left.items()})
    return section
