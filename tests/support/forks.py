"""Run and kill commands in forks of a process that has imported everything, for quick starts."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from front import PACKAGE, environment

SERVER = """if True:
    import json, os, signal, sys, torch, rich.console
    import bertcli.training.run, bertcli.cli.commands.train
    import bertcli.training.fine_tuning
    import torch._dynamo
    from bertcli.cli.app import main
    os.fsync = lambda file: None  # what a killed process has written is there
    CHANGES = ("os.rename", "os.remove", "os.truncate", "os.chmod", "os.mkdir")

    def arm(calls):
        def hook(event, given):
            nonlocal calls
            writes = event == "open" and isinstance(given[2], int) and given[2] & 3
            if writes or event in CHANGES:
                calls -= 1
                if not calls:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    print("ready", flush=True)
    for line in sys.stdin:
        argv, *environments = json.loads(line)
        children = []
        for environment in environments:
            children.append(os.fork())
            if not children[-1]:
                signal.alarm(120)  # seconds, against hanging only
                os.environ.update(environment)
                if calls := environment.get("CALLS"):  # killed before so many that change a file
                    arm(int(calls))
                if path := environment.get("STDERR"):  # what they say is appended to this file
                    os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
                os._exit(main(argv))
        print(json.dumps(children), flush=True)
        sys.stdin.readline()  # until then their numbers are their own
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)
"""


class Forks:
    """Starts commands and kills them."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self.server = server

    def run(self, argv: list[Any]) -> int:
        """Run a command to its end and return the exit code."""
        (code,) = self.together(argv, [{}])
        return code

    def together(
        self,
        argv: list[Any],
        environments: list[dict[str, str]],
        kill_after: float | None = None,
    ) -> list[int]:
        """Run a command in each of these environments concurrently; return the exit codes."""
        words = [str(word) for word in argv]
        self.server.stdin.write(json.dumps([words, *environments]) + "\n")
        children = json.loads(self.server.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            for child in children:
                os.kill(child, signal.SIGKILL)
        self.server.stdin.write("wait\n")
        return json.loads(self.server.stdout.readline())

    def check(
        self,
        argv: Callable[[Path], list[Any]],
        result: Callable[[Path], Any],
        place: Path,
        kills: int,
    ) -> None:
        """Kill a run at ``kills`` random instants, in as many runs as needed, and check its result.

        A run is killed after a time, or before a system call that changes a file, so that the
        short phases at its end are tested as well. Each run, resumed to the end, must have the
        same result as an uninterrupted one.
        """
        began = time.monotonic()
        assert self.run(argv(place / "whole")) == 0
        seconds, whole = time.monotonic() - began, result(place / "whole")
        choose, killed, runs = random.Random(4), 0, 0
        while killed < kills:
            out = place / f"out{runs}"
            calls = {"CALLS": str(choose.randint(1, 99))} if choose.random() < 0.5 else {}
            after = None if calls else choose.random() * seconds
            (code,) = self.together(argv(out), [calls], after)
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            if code == 0:
                assert result(out) == whole
                runs, seconds = runs + 1, seconds / 2  # it ended before the kill: kill earlier
        assert self.run(argv(out)) == 0
        assert result(out) == whole


def as_torchrun(count: int) -> list[dict[str, str]]:
    """Return the environments that torchrun sets for processes of one training run."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


@contextmanager
def forks() -> Iterator[Forks]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment({"PYTHONPATH": str(PACKAGE)}),
        text=True,
        bufsize=1,
    ) as running:
        assert running.stdout.readline() == "ready\n"
        yield Forks(running)
        running.stdin.close()
