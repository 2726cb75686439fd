"""A contestant's own process: obeys one JSON line at a time, answers with one.

    {"do": "load", "contestant": {...}, "place": {...}}   -> {"seconds"}
    {"do": "warm", "name": FILE, "save": FILE}            -> {"seconds", "batch", "megabytes"}
    {"do": "run", "name": FILE}                           -> {"seconds"}

A file of a set is a JSON list of texts. The batch size is the fastest, the memory the most so far.
Whatever goes wrong is the last line of stderr, and the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SAMPLE = 2000  # texts at most, and a third at most, that the batch size is chosen with


class Runner:
    """Holds the contestant and the texts between the lines."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        self.batch: dict[str, int] = {}

    def load(self, contestant: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
        from contestants import Contestant
        from engines import Place, load

        start = time.perf_counter()
        place |= {"model": Path(place["model"]), "work": Path(place["work"])}
        self.loaded = load(Contestant(**contestant), Place(**place))
        return {"seconds": time.perf_counter() - start}

    def warm(self, name: str, save: str) -> dict[str, Any]:
        """Run a set once, with its best batch size from here on, and keep the vectors."""
        import numpy as np

        texts = self.texts[name] = json.loads(Path(name).read_text("utf-8"))
        sizes, self.batch[name] = self.loaded.sizes, self.loaded.sizes[0]
        if len(sizes) > 1:
            sample = texts[:: max(3, len(texts) // SAMPLE)]
            self.loaded.run(sample, sizes[0])
            self.batch[name] = min(sizes, key=lambda size: self._seconds(sample, size))
        start = time.perf_counter()
        vectors = self.loaded.run(texts, self.batch[name])
        seconds = time.perf_counter() - start
        np.save(save, vectors)
        return {"seconds": seconds, "batch": self.batch[name], "megabytes": peak()}

    def run(self, name: str) -> dict[str, Any]:
        """Time a set."""
        return {"seconds": self._seconds(self.texts[name], self.batch[name])}

    def _seconds(self, texts: list[str], size: int) -> float:
        start = time.perf_counter()
        self.loaded.run(texts, size)
        return time.perf_counter() - start


def peak() -> float:
    """Return the most memory that this process has had, in MB; nan where nobody says."""
    try:
        import resource
    except ImportError:
        return float("nan")
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    runner = Runner()
    for line in sys.stdin:
        message = json.loads(line)
        answer = getattr(runner, message.pop("do"))(**message)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
