"""Contestants in their own processes, run in turn: A B C A B C ...

So a machine whose speed drifts favours nobody, and no contestant's threads or memory are in the way
of another's. One that is not running waits for a line; REST seconds pass before each run, in which
the threads of the last one stop spinning.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from contestants import Contestant, hindrance
from corpus import TextSet
from engines import Place

HERE = Path(__file__).parent
REST = 0.3


class Left(Exception):
    """A contestant that cannot take part, and why."""


@dataclass(frozen=True)
class Result:
    """One contestant on one set."""

    name: str
    precision: str
    ours: bool
    seconds: list[float]
    megabytes: float  # the most memory of its process so far
    batch: int  # the batch size that was fastest; 0 where there is no choice
    vectors: Path

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Child:
    """The process of one contestant."""

    def __init__(self, contestant: Contestant, place: Place, number: int) -> None:
        self.contestant = contestant
        self.folder = place.work / f"child-{number}"
        self.folder.mkdir(exist_ok=True)
        self.log = self.folder / "stderr.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "child.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(contestant.threads or place.threads),
            )
        given = {name: str(getattr(place, name)) for name in ("model", "work")}
        self.loading = self.ask("load", contestant=asdict(contestant), place=asdict(place) | given)[
            "seconds"
        ]

    def ask(self, do: str, **message: Any) -> dict[str, Any]:
        """Send a line and return the answer. Raises Left when the process ended instead."""
        try:
            print(json.dumps({"do": do, **message}), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            lines = self.log.read_text("utf-8", "replace").strip().splitlines()
            raise Left(lines[-1][:200] if lines else f"ended with {self.process.returncode}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def environment(threads: int) -> dict[str, str]:
    """Return what a contestant finds: so many threads everywhere, and no network."""
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    paths = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": paths}
    return os.environ | dict.fromkeys(counts, str(threads)) | offline


@dataclass
class Arena:
    """Starts contestants when they are first needed and keeps them until the end."""

    place: Place
    repeats: int
    forced: bool = False  # whether those take part that are known to be slow here
    left: dict[str, str] = field(default_factory=dict)  # who is left out, and why
    children: dict[str, Child] = field(default_factory=dict)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self.children.values():
            child.close()

    def race(
        self, contestants: Sequence[Contestant], sets: Iterable[TextSet], repeats: int | None = None
    ) -> dict[str, list[Result]]:
        """Return, by the names of the sets, how long each contestant took in each round.

        Without repeats it is the run that else only warms up: enough for sets that take minutes.
        """
        rounds = self.repeats if repeats is None else repeats
        files = {texts.name: self._written(texts) for texts in sets}
        here = [one.name for one in contestants if self._child(one)]
        runs = [run for name in here for run in self._warmed(name, files)]
        for turn in range(rounds):
            say(f"round {turn + 1}")
            for child, file, result in runs:
                if result.name in self.children:
                    time.sleep(REST)
                    self._timed(child, file, result)
        done = [(file, result) for _, file, result in runs if result.name in self.children]
        for _, result in done:
            result.seconds[:] = result.seconds[1:] or result.seconds
        return {
            name: [result for path, result in done if path == file] for name, file in files.items()
        }

    def _timed(self, child: Child, file: Path, result: Result) -> None:
        try:
            result.seconds.append(child.ask("run", name=str(file))["seconds"])
        except Left as reason:
            self._drop(result.name, reason)

    def _drop(self, name: str, reason: Left) -> None:
        self.left[name] = str(reason)
        self.children.pop(name, None)
        say(f"left out: {name}: {reason}")

    def _child(self, contestant: Contestant) -> Child | None:
        name = contestant.name
        if name not in self.children and name not in self.left:
            say(f"loading {name}")
            try:
                if reason := hindrance(contestant, forced=self.forced):
                    raise Left(reason)
                self.children[name] = Child(contestant, self.place, len(self.children))
            except Left as reason:
                self._drop(name, reason)
        return self.children.get(name)

    def _warmed(self, name: str, files: dict[str, Path]) -> Iterable[tuple[Child, Path, Result]]:
        """Run each set once, which also chooses the batch size and keeps the vectors."""
        child, found = self.children[name], []
        say(f"warming {name}")
        for file in files.values():
            save = child.folder / f"{file.stem}.npy"
            try:
                warm = child.ask("warm", name=str(file), save=str(save))
            except Left as reason:
                self._drop(name, reason)
                return []
            one = child.contestant
            about = (name, one.precision, one.ours, [warm["seconds"]])
            result = Result(*about, warm["megabytes"], warm["batch"], save)
            found.append((child, file, result))
        return found

    def _written(self, texts: TextSet) -> Path:
        path = self.place.work / f"set {texts.name}.json"
        path.write_text(json.dumps(texts.texts), "utf-8")
        return path


def cosines(found: Path, reference: Path) -> tuple[float, float]:
    """Return the worst and the mean cosine of the vectors in two files, row by row."""
    ours, theirs = (np.load(path).astype("float64") for path in (found, reference))
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    each = np.einsum("nd,nd->n", ours, theirs) / lengths
    return float(each.min()), float(each.mean())


def say(message: str) -> None:
    """Show what is going on."""
    print(message, file=sys.stderr, flush=True)
