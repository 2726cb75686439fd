"""Many cases in processes that may hang, crash or be killed: the parent notes it and goes on."""

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from .folders import make_sound
from .judge import Fault

ROOT = Path(__file__).parents[2]
RECYCLE = 400  # cases of a process; then a fresh one, so that what one leaves does not add up
SECONDS = 20.0  # of computing, that a case may take
PATIENCE = 6  # times as long may it take by the clock


class Child:
    """A process that runs cases, one after the other."""

    def __init__(self, sound: Path, work: Path, number: int, seconds: float) -> None:
        self.sound, self.work, self.seconds = sound, work / f"child-{number}", seconds
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.place, self.errors = self.work / "case", self.work / "stderr"
        self.running: subprocess.Popen[str] | None = None
        self.case, self.since, self.used, self.count = "", 0.0, 0.0, 0

    def give(self, case: str) -> None:
        """Begin with a case."""
        if self.running and (self.count >= RECYCLE or self.running.poll() is not None):
            self.stop()
        if self.running is None:
            self.errors.write_bytes(b"")
            self.errors.with_name("stderr.stacks").write_bytes(b"")
            paths = [str(self.sound), str(self.place), str(self.errors)]
            self.running = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.judge", *paths],
                cwd=ROOT,
                env=os.environ
                | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "RUST_BACKTRACE": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.count = 0
        assert self.running.stdin
        self.running.stdin.write(f"{case}\n")
        self.running.stdin.flush()
        extra = 0 if self.count else 20  # it imports torch before it begins
        self.since, self.used = time.monotonic() + extra, self.cpu_seconds() + extra
        self.case, self.count = case, self.count + 1

    def cpu_seconds(self) -> float:
        """Return the time that the process has computed."""
        assert self.running
        try:
            after_name = Path(f"/proc/{self.running.pid}/stat").read_text().rpartition(")")[2]
        except OSError:  # it has ended, or this is no Linux
            return 0.0
        return sum(map(int, after_name.split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def answer(self) -> tuple[str, Fault | None]:
        """Return the case that is done; the process may have died of it."""
        assert self.running and self.running.stdout
        case, self.case = self.case, ""
        line = self.running.stdout.readline()
        if line:
            found = json.loads(line)
            return case, Fault(*found) if found else None
        code = self.running.wait()
        self.stop()
        return case, Fault(f"the process died, {code}", self.stacks(), case)

    def overdue(self) -> tuple[str, Fault] | None:
        """Return the case that takes too long, if it does, and end its process.

        On a busy machine what computes takes longer, and what waits may wait for the others.
        """
        waited, computed = time.monotonic() - self.since, self.cpu_seconds() - self.used
        if not self.case or (computed <= self.seconds and waited <= PATIENCE * self.seconds):
            return None
        assert self.running
        case, self.case = self.case, ""
        self.running.send_signal(signal.SIGUSR1)  # it writes where it is
        time.sleep(1)
        stacks = self.stacks()
        self.stop()
        ours = re.findall(r'File ".*?/bertcli/(\S+)", line (\d+) in (\S+)', stacks)
        at = ":".join(ours[0]) if ours else "somewhere"
        return case, Fault(f"longer than {self.seconds:g} s at {at}", stacks, case)

    def stacks(self) -> str:
        """Return where it was when its time was over, or when it crashed."""
        return self.errors.with_name("stderr.stacks").read_text()[-6000:]

    def stop(self) -> None:
        """End the process."""
        if self.running:
            with self.running:  # closes the pipes, and waits
                self.running.kill()
            self.running = None


class Pool:
    """Runs cases and counts faults; those found are kept with their files."""

    def __init__(self, work: Path, jobs: int = 1, seconds: float = SECONDS) -> None:
        self.work, self.sound = work, work / "sound"
        self.faults: dict[str, list[tuple[str, Fault]]] = {}
        self.done: Counter[str] = Counter()
        if not self.sound.exists():
            make_sound(self.sound)
        self.children = [Child(self.sound, work, at, seconds) for at in range(jobs)]

    def run(self, cases: Iterator[str], until: float = float("inf")) -> Iterator[tuple[str, Fault]]:
        """Run cases until there are none, or the time is over; yield what is wrong."""
        idle, more = list(self.children), True
        while True:
            while more and idle:
                case = next(cases, None) if time.monotonic() < until else None
                if case is None:
                    more = False
                else:
                    idle.pop().give(case)
            busy = [child for child in self.children if child.case]
            if not busy:
                return
            ready, _, _ = select.select([child.running.stdout for child in busy], [], [], 1)
            for child in busy:
                found = child.answer() if child.running.stdout in ready else child.overdue()
                if found is None:
                    continue
                idle.append(child)
                self.done[found[0].partition(":")[0]] += 1
                if found[1]:
                    self.keep(child, *found)
                    yield found

    def keep(self, child: Child, case: str, fault: Fault) -> None:
        """Note a fault; the files of the first ones of a kind stay."""
        same = self.faults.setdefault(fault.name, [])
        same.append((case, fault))
        if len(same) <= 2:
            place = self.work / "faults" / case.replace(":", "-")
            shutil.rmtree(place, ignore_errors=True)
            place.parent.mkdir(exist_ok=True)
            os.replace(child.place, place)
            (place / "FAULT.txt").write_text(
                f"{fault.name}\n{fault.command}\n{fault.details}\n", errors="backslashreplace"
            )

    def close(self) -> None:
        """End all processes."""
        for child in self.children:
            child.stop()


def cases(seed: int, wanted: Mapping[str, float]) -> Iterator[str]:
    """Yield cases of all kinds, mixed, as many of each as are wanted."""
    dice, left = random.Random(seed), dict(wanted)
    number = dict.fromkeys(left, seed * 1_000_000)
    while any(left.values()):
        kind = dice.choices([*left], [*(min(many, 1e9) for many in left.values())])[0]
        left[kind] -= 1
        yield f"{kind}:{number[kind]}"
        number[kind] += 1
