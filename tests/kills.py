"""Kills of `bertcli embed` at random instants: `python -m tests.kills --count 200`.

Each run of a format is killed with SIGKILL and resumed until it ends, again and again, until so
many kills have struck. Whatever ended must have the bytes of a run that nothing happened to, in the
output, the index and the manifest, and nothing else may be left over.

A kill strikes after a random time, or before a random call of the system that writes, renames,
truncates or removes a file, so that the short moments at the end of a run are struck as well. The
runs are forks of one process that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TINY = ROOT / "samples" / "tiny-bert"
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {  # suffix and options
    "npy": ("npy", ()),
    "npy int8": ("npy", ("--precision", "int8")),
    "npz": ("npz", ()),
    "safetensors": ("safetensors", ()),
    "parquet": ("parquet", ("--keep-fields", "tag")),
    "jsonl": ("jsonl", ("--keep-fields", "tag")),
    "csv": ("csv", ()),
    "tokens npy": ("npy", ("--token-vectors",)),
    "words parquet": ("parquet", ("--word-vectors", "mean")),
    "chunks npy": ("npy", ("--on-truncate", "chunk", "--max-length", "8", "--overlap", "2")),
    "chunks jsonl": ("jsonl", ("--on-truncate", "chunk", "--max-length", "8")),
    "update npy": ("npy", ("--update",)),
    "update parquet": ("parquet", ("--update", "--precision", "float16")),
    "empty": ("npy", ()),
}
STRIKES = ("open", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.mkdir")
RECORDS = 240


class Harness:
    """Runs of one kind in a folder, and the kills that strike them."""

    def __init__(self, folder: Path, kind: str, choose: random.Random) -> None:
        self.folder, self.choose, self.said = folder, choose, folder / "said"
        suffix, options = KINDS[kind]
        self.suffix, self.ended, self.longest = suffix, 0, 0.1
        self.killed: Counter[str] = Counter()
        source = folder / "texts.jsonl"
        source.write_text("" if kind == "empty" else "".join(_lines(choose)))
        self.argv = ["embed", "-q", "-m", str(TINY), "-i", str(source), "--device", "cpu"]
        self.argv += ["--threads", "1", "--window", "20", *options]
        for name in ("old", "whole"):
            (folder / name).mkdir()
        self.updates, text = "--update" in options, source.read_text()
        if self.updates:  # of an output of half of the texts, and others
            lines = text.splitlines(keepends=True)
            source.write_text("".join(lines[::2] + [*_lines(random.Random(0))][:20]))
            assert self._run(folder / "old" / f"out.{suffix}", 0, None) == 0
            source.write_text(text)
        assert self._run(folder / "whole" / f"out.{suffix}", 0, None) == 0
        self.whole = _contents(folder / "whole")
        self.calls = int(self.said.read_text())

    def once(self) -> None:
        """Kill and resume a fresh run until it ends, and look at what it left."""
        place = self.folder / str(self.ended)
        place.mkdir()
        overwrite = self.choose.random() < 0.3  # an output that is there already is replaced
        if self.updates:
            shutil.copytree(self.folder / "old", place, dirs_exist_ok=True)
        elif overwrite:
            for name in self.whole:
                (place / name).write_text("old")
        out, more = place / f"out.{self.suffix}", ["--overwrite"] if overwrite else ["--resume"]
        more = [] if self.updates else more
        while (code := self._struck(out, more)) != 0:
            assert code == -signal.SIGKILL, (code, self.said.read_text(), _sizes(place))
            begun = any(name.endswith(".run/journal") for name in _contents(place))
            old = out.exists() and out.read_bytes() == b"old"
            again = ["--overwrite"] if old and not begun else ["--resume"]
            more = [] if self.updates else again
        assert _contents(place) == self.whole, _sizes(place)
        self.ended += 1
        for path in place.iterdir():
            path.unlink()

    def _struck(self, out: Path, more: list[str]) -> int:
        """Run on, and be killed after a time or before a call; the last of many tries is left."""
        if self.choose.random() < 0.5:
            code = self._run(out, 0, self.choose.random() * self.longest, *more)
            self.killed["time"] += code != 0
        else:
            code = self._run(out, self.choose.randint(1, 2 * self.calls), None, *more)
            self.killed["call"] += code != 0
        return code

    def _run(self, out: Path, call: int, seconds: float | None, *more: str) -> int:
        """Return the exit code of a run that is killed after a time, or before a call."""
        from bertcli.cli.app import main

        began = time.monotonic()
        child = os.fork()
        if not child:
            code = 3
            try:
                with open(self.said, "w") as said, redirect_stderr(said):
                    count = _arm(call)
                    code = main([*self.argv, "-o", str(out), *more])
                    if not code:
                        said.write(str(count()))
            finally:
                os._exit(code)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            self.longest = max(self.longest, time.monotonic() - began)
        return code


def _arm(call: int) -> Callable[[], int]:
    """Kill this process before so many calls that change a file, 0 is never; return what counts."""
    seen = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in STRIKES and not (event == "open" and not _writes(given)):
            seen += 1
            if seen == call:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: seen


def _writes(given: tuple[Any, ...]) -> bool:
    flags = given[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _lines(choose: random.Random) -> Iterator[str]:
    words = ["the", "quick", "brown", "fox", "paris", "is", "nlp", "a", "b", "c", "1", "2", "3"]
    for number in range(RECORDS):
        text = " ".join(choose.choices(words, k=choose.randint(1, 12)))
        own = {"id": f"r{number}"} if number > RECORDS // 3 else {}
        yield json.dumps({**own, "text": text, "tag": number % 3}) + "\n"


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _sizes(folder: Path) -> dict[str, int]:
    return {name: len(data) for name, data in _contents(folder).items()}


def strike(count: int, seed: int, kinds: list[str]) -> Counter[str]:
    """Kill runs of these kinds so often; return the kills and the runs that ended."""
    import pyarrow.parquet  # noqa: F401

    choose, found = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        runs = {}
        for kind in kinds:
            place = Path(folder, kind.replace(" ", "-"))
            place.mkdir()
            runs[kind] = Harness(place, kind, choose)
        while sum(sum(one.killed.values()) for one in runs.values()) < count:
            for one in runs.values():
                one.once()
        for kind, one in runs.items():
            found.update({kind: sum(one.killed.values()), "runs": one.ended, **one.killed})
    return found


def main() -> None:
    """Read the options, kill, and say how often."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=200, help="kills")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--kind", action="append", choices=list(KINDS))
    given = options.parse_args()
    found = strike(given.count, given.seed, given.kind or list(KINDS))
    kills = found.pop("time") + found.pop("call")
    print(f"seed {given.seed}: {kills} kills, {found.pop('runs')} runs ended in the same bytes")
    print(", ".join(f"{kind} {number}" for kind, number in found.items()))


if __name__ == "__main__":
    main()
