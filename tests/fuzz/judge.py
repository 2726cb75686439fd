"""One case in this process: run its commands, and say what is wrong with what they did."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import traceback
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from front import Result, call

from . import folders, inputs, learning, states
from .grammar import Command

KINDS = {
    "folder": folders.build,
    "input": inputs.build,
    "example": learning.build,
    "state": states.build,
}
PREFIXES = ("error: ", "hint: ", "note: ", "warning: ")
OPTION = re.compile(r"(?<![\w-])--?[a-z]")
PANIC = re.compile(r"\n?thread .* panicked at .*\n.*\n(note: .*\n)?")
GROWTH = 700 << 20  # bytes
LONG = 1500  # characters of a message
PACKAGE = str(Path(__file__).parents[2] / "bertcli")


class Fault(NamedTuple):
    """What is wrong: a short name under which faults are gathered, and the details."""

    name: str
    details: str
    command: str


ENDS = ("", ".manifest.json", ".index.jsonl", ".terms.npz")  # of what an output may be


def run_case(case: str, sound: Path, place: Path, errors: Path | None = None) -> Fault | None:
    """Make a case in an empty folder and run it; ``errors`` is where fd 2 goes, if anywhere."""
    kind, _, seed = case.partition(":")
    back = Path.cwd()
    os.chdir(place)
    try:
        for command in KINDS[kind](int(seed), sound, place):
            if fault := judge(command, place, errors):
                return fault
            if command.after:
                command.after(place)
    except Exception as failed:  # no fault of the commands
        return Fault(f"the fuzzer itself, {where(failed)}", traceback.format_exc()[-6000:], case)
    finally:
        os.chdir(back)
    return None


def judge(command: Command, place: Path, errors: Path | None) -> Fault | None:
    """Run a command and return the first thing that is wrong."""
    argv, before = {*command.argv}, snapshot(place)
    written = errors.stat().st_size if errors else 0
    growth = peak_since()
    try:
        done = call(*command.argv, stdin=command.stdin, **command.env)
    except BaseException as failed:  # of any kind: none shall leave `main`
        return Fault(where(failed), traceback.format_exc()[-6000:], shown(command))
    more = (errors.read_bytes()[written:] if errors else b"").decode(errors="replace")
    if "error: the tokenizer failed: " in done.err:
        more = PANIC.sub("", more)  # what a library in Rust says of itself
    done = done._replace(err=done.err + more)
    after = snapshot(place)
    problems = (
        *code_problems(done, silent={"-q", "skip"} <= argv or "--verify" in argv),
        *message_problems(done),
        *output_problems(command, done, place),
        *disk_problems(command, done, before, after),
    )
    grown = growth()
    if grown > GROWTH:
        problems = (*problems, f"grew by {grown >> 20} MB")
    for problem in problems:
        details = f"{problem}\nexit code {done.code}\nstderr: {done.err[:3000]!r}"
        name = re.sub(r"\d+ MB", "N MB", problem).partition(": ")[0]
        return Fault(f"{name} [{command.argv[0]}]", details, shown(command))
    return None


def code_problems(done: Result, silent: bool) -> Iterator[str]:
    """Say whether an exit code is one of those that are documented, and its message fits."""
    if done.code not in (0, 1, 2):
        yield f"exit code {done.code}"
    explained = re.search(r"^error: |skipped", done.err, re.MULTILINE)
    if done.code and not explained and not silent:
        yield "failed without an error"
    if done.code == 0 and "error: " in done.err:
        yield "an error and exit code 0"
    if done.code == 2 and not OPTION.search(done.err):
        yield f"a usage error without an option: {done.err!r}"


def message_problems(done: Result) -> Iterator[str]:
    """Say what stands on stderr that should not."""
    for line in filter(None, done.err.split("\n")):
        if not line.startswith(PREFIXES):
            yield f"a line on stderr: {line[:300]!r}"
        if len(line) > LONG:
            yield f"a message of thousands of characters: {line[:300]!r}"
        bad = {sign for sign in line if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")}
        if bad:
            yield f"control characters on stderr: {sorted(bad)!r} in {line[:300]!r}"


def output_problems(command: Command, done: Result, place: Path) -> Iterator[str]:
    """Say what is wrong with the data, on stdout and in a file."""
    if done.code == 2 and done.stdout:
        yield "data beside a usage error"
    plain = "-f" not in command.argv and command.argv[0] not in ("inspect", "decode")
    if "--count" in command.argv:
        yield from count_problems(command, done) if plain else ()
    elif done.stdout and (plain or "--json" in command.argv):
        yield from json_problems("stdout", done.stdout)
    path = place / command.output
    if done.code or "-o" not in command.argv or "-f" in command.argv or not path.is_file():
        return
    if path.suffix in (".jsonl", ".ndjson"):
        yield from json_problems(path.name, path.read_bytes())
    elif path.suffix == ".npy" and path.stat().st_size < 10 << 20:
        import numpy as np

        if np.load(path, allow_pickle=False).dtype.kind not in "fiu":
            yield "an .npy without numbers"


def count_problems(command: Command, done: Result) -> Iterator[str]:
    """Say which line is not the id of a text, if it has one, its tokens, and fields it keeps."""
    fields = r"(\t.*)?" if "--keep-fields" in command.argv else ""
    for line in done.stdout.decode(errors="replace").split("\n")[:-1]:
        if not re.fullmatch(rf"([^\t]*\t)?\d+{fields}", line):
            yield f"a line of --count is no number: {line[:300]!r}"
            return


def json_problems(name: str, data: bytes) -> Iterator[str]:
    """Say which line is not an object of strict JSON."""
    try:
        lines = data.decode().split("\n")[:-1]
    except UnicodeDecodeError as bad:
        yield f"{name} is not UTF-8: {bad}"
        return
    for line in lines:
        try:
            value = strict(line)
        except (ValueError, RecursionError) as bad:
            yield f"{name} is not strict JSON: {bad}, in {line[:300]!r}"
            return
        if not isinstance(value, dict):
            yield f"{name} has a line that is no object: {line[:300]!r}"


def strict(text: str) -> Any:
    """Parse JSON as the standard has it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"a key twice: {[key for key, _ in pairs]}")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(f"the constant {name}")

    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)


def disk_problems(
    command: Command, done: Result, before: dict[str, Any], after: dict[str, Any]
) -> Iterator[str]:
    """Say which files were changed, or left, that should not be."""
    out = command.output
    # Through a link its target is written, and what stands beside that.
    outs = (out, os.path.relpath(os.path.realpath(out))) if out else ()
    long = out[:150] if len(out) > 200 else None  # names beside it are cut
    own = (*outs, long) if long else outs
    others = {path: was for path, was in before.items() if not path.startswith(own)}
    if lost := [path for path in others if path not in after]:
        yield f"files are gone: {lost}"
    for path, was in others.items():
        if path in after and after[path] != was:
            yield f"a file was changed: {path}"
    new = sorted(set(after) - set(before))
    whole = {f"{name}{end}" for name in outs for end in ENDS}
    allowed = {f"{name}.run" for name in outs} if done.code else whole
    if done.code and ({"--on-error", "--tolerance"} & {*command.argv} or "kept in" in done.err):
        allowed |= whole  # exit code 1 when any was skipped; vectors stay where a map fails
    if command.argv[0] == "train":
        allowed |= {out}  # a run that began is there to be resumed
    left = [path for path in new if path.split("/")[0] not in allowed]
    left = [path for path in left if long is None or not path.startswith(long)]
    if left:
        yield f"new files were left: {left}"


def snapshot(place: Path) -> dict[str, Any]:
    """Return what is under a folder: kinds, and hashes of the files that are not large."""
    contents: dict[str, Any] = {}
    for folder, names, files in os.walk(place):
        for name in (*names, *files):
            path = Path(folder, name)
            about = path.lstat()
            kind: Any = stat.S_IFMT(about.st_mode)
            if stat.S_ISREG(about.st_mode):
                small = about.st_size < 1 << 20
                kind = hashlib.sha256(path.read_bytes()).digest() if small else about.st_mtime_ns
            contents[str(path.relative_to(place))] = kind
    return contents


def where(failed: BaseException) -> str:
    """Return an exception with the last line of ours that it went through."""
    frames = traceback.extract_tb(failed.__traceback__)
    last = [*frames[-1:], *(frame for frame in frames if frame.filename.startswith(PACKAGE))][-1]
    place = last.filename.removeprefix(PACKAGE).lstrip("/")
    return f"{type(failed).__name__} at {place}:{last.name}: {last.line}"


def shown(command: Command) -> str:
    """Return a command for a shell."""
    words = "".join(f" {shlex.quote(word[:200])}" for word in command.argv)
    return f"bertcli{words}" + (f" < stdin ({len(command.stdin)} bytes)" if command.stdin else "")


def peak_since() -> Any:
    """Begin to watch memory; the function that is returned says by how many bytes it grew."""
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        return lambda: 0

    def size(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read_text())[1]) << 10

    start = size("VmRSS")
    return lambda: size("VmHWM") - start


def emptied(place: Path) -> Path:
    """Return a folder with nothing in it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def serve(sound: Path, place: Path, errors: Path) -> None:
    """Run the cases that stdin names, a line each, and answer each with a line of JSON."""
    import faulthandler

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = open(errors, "ab", buffering=0)  # noqa: SIM115 - for as long as this process lives
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    stacks = open(f"{errors}.stacks", "a")  # noqa: SIM115
    import torch

    torch.set_num_threads(1)
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    for line in sys.stdin:
        fault = run_case(line.strip(), sound, emptied(place), errors)
        answers.write(json.dumps(fault) + "\n")


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
