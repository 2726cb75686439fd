"""The section for a GPU: bert-base with random weights, and the default model."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace

from contestants import bertcli, products, sentence_transformers
from corpus import Corpus
from exported import apart, random_base
from measure import Arena
from report import Table
from sections import Section, Setting, embed

LENGTHS = {16: 32_000, 64: 8_000, 512: 1_000}  # tokens of texts, and how many of these


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
    """Ours in bfloat16 against sentence-transformers in float16, with the rates of products."""
    place = setting.arena.place
    base = place.work / "bert-base-random"
    if not base.exists():
        apart(random_base, base, place.model)
    contestants = (
        replace(bertcli("bertcli bfloat16", "bfloat16"), device=device),
        sentence_transformers("float16", device),
        products("bfloat16", device),
    )
    tables: list[Table] = []
    record = {}
    for name, folder in (("bert-base", base), ("default model", place.model)):
        corpus = Corpus(folder, max(LENGTHS))
        sets = [corpus.exact(size, setting.count(count)) for size, count in LENGTHS.items()]
        sets.append(corpus.made("mixed to 512", setting.count(4000), any_length))
        own = replace(place, model=folder, max_length=max(LENGTHS))
        with Arena(own, setting.arena.repeats) as arena:
            raced = replace(setting, arena=arena, corpus=corpus, given=sets)
            section = embed(replace(raced, contestants=contestants))
        left = {f"{one}, {name}, {device}": why for one, why in arena.left.items()}
        setting.arena.left.update(left)
        titled = (table._replace(title=f"{name}, {table.title}") for table in section.tables)
        tables += titled
        record[name] = section.record
    return Section(tables, record)
