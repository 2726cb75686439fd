"""Times `bertcli embed` against its peers, with the machine's ceiling, and writes a report.

    pip install -c constraints.txt ".[torch]" -r benchmarks/requirements.txt
    python benchmarks/embedding.py [--texts FILE ...] [--only embed,start] [--repeats 3]

Whoever is installed takes part: bertcli in each number format, sentence-transformers, ONNX Runtime,
CTranslate2, OpenVINO. The sections:

    embed    all of them on short, long and mixed texts (corpus.py), cosines, share of the ceiling
    lengths  throughput against the length of the texts
    choices  bertcli: lower layers
    size     time a text and memory for 1,000 and 10,000 texts (--large: 100,000)
    threads  one thread, two, ... (--threads is the most)
    start    one text in a fresh process
    whole    a file of texts to a file of vectors
    gpu      bert-base with random weights, and the model, on a CUDA device

OUTPUT gets embedding.md, embedding.json, pictures (with matplotlib) and models/, the exported
models, which the next run takes again. What counts is the whole call from texts to vectors, the
model loaded. "x" is the speed against sentence-transformers float32, round by round; read the
ratios, not the seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import accelerator
import processes
import sections
from contestants import CPU, chosen
from corpus import Corpus
from engines import Place
from machine import about, cores
from measure import Arena, say
from plots import draw
from report import document, markdown, write

from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

SECTIONS: dict[str, Callable[[sections.Setting], sections.Section]] = {
    "embed": sections.embed,
    "lengths": sections.lengths,
    "choices": sections.choices,
    "size": sections.size,
    "threads": sections.threads,
    "start": processes.start,
    "whole": processes.whole,
    "gpu": accelerator.gpu,
}


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    summary, _, rest = __doc__.partition("\n")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=rest, formatter_class=raw)
    add = parser.add_argument
    add("--texts", nargs="+", type=Path, default=[], help="one text a line; each file is a set")
    add("--only", default="", help="sections, separated by commas; default all")
    add("--contestants", default="", help="parts of names, separated by commas; default all")
    add("--model", default=DEFAULT_MODEL)
    add("--max-length", type=int, default=256, help="tokens that texts are cut to")
    add("--repeats", type=int, default=3)
    add("--threads", type=int, default=cores())
    add("--scale", type=float, default=1.0, help="of the number of texts in all sets")
    add("--slow", action="store_true", help="bfloat16 also where the CPU has no such arithmetic")
    add("--large", action="store_true", help="size: 100,000 texts as well")
    add("--output", type=Path, default=Path("benchmark-results"))
    found = parser.parse_args(argv)
    unknown = set(split(found.only)) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    return found


def split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def main(argv: Sequence[str] | None = None) -> None:
    given = options(argv)
    work = (given.output / "models").absolute()
    work.mkdir(parents=True, exist_ok=True)
    folder = find_model(given.model, files=MODEL_FILES).path
    corpus = Corpus(folder, given.max_length)
    place = Place(folder, work, given.max_length, given.threads)
    found, left = {}, {}
    for name in split(given.only) or SECTIONS:
        if name == "gpu" and not accelerator.present():
            left["section gpu"] = "no CUDA device"
            continue
        say(f"section {name}")
        with Arena(place, given.repeats, forced=given.slow, left=left) as arena:
            setting = sections.Setting(
                arena,
                corpus,
                chosen(CPU, split(given.contestants)),
                [corpus.read(path) for path in given.texts],
                given.scale,
                given.large,
            )
            found[name] = SECTIONS[name](setting)
        for table in found[name].tables:
            print(markdown(table), end="\n\n", flush=True)
    results = {"machine": about(), "settings": {k: str(v) for k, v in vars(given).items()}}
    results |= {"left_out": left} | {name: one.record for name, one in found.items()}
    text = document(results["machine"], left, {name: one.tables for name, one in found.items()})
    write(given.output, text, results)
    for file in draw(results, given.output):
        say(f"drawn: {file}")


if __name__ == "__main__":
    main()
