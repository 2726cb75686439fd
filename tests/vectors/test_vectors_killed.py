"""A run that is killed anywhere and resumed gives the bytes of one that was not."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import bertcli
from bertcli.errors import OutputError
from bertcli.files import lock
from bertcli.vectors import formats, journal, rows, spool
from bertcli.vectors import output as sink
from bertcli.vectors.output import Target, open_vectors

WATCHED = {module.__file__ for module in (formats, journal, lock, rows, sink, spool)}
ROWS = 3
VECTORS = np.random.default_rng(1).standard_normal((ROWS, 3)).astype(np.float32)
COUNTS = [2, 0, 1]  # rows of each record, where one may have several
NAMES = {"out", "out.manifest.json"}


def run(folder, form, precision, **options):
    """A command that takes two records at a time, wherever it begins."""
    many = options.get("many", False)
    with open_vectors(Target(folder / "out", form, precision, **options), {"model": "m"}) as sink:
        if sink.done:
            return
        start = sink.state["read"] if sink.state else 0
        for at in range(start, ROWS, 2):
            metas = [{"id": i, "n_tokens": i} for i in range(at, min(at + 2, ROWS))]
            if options.get("ids"):  # the first two records have none
                sink.write(
                    [{"id": i} if i > 1 else {} for i in range(at, at + len(metas))],
                    VECTORS[at : at + 2],
                )
            elif many:
                rows = slice(sum(COUNTS[:at]), sum(COUNTS[: at + 2]))
                sink.write(metas, VECTORS[rows], COUNTS[at : at + 2])
            else:
                sink.write(metas, VECTORS[at : at + 2])
            sink.commit({"read": at + len(metas)})
        sink.finish({"records": ROWS})


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def states_seen(folder, work):
    """Do the work; return each content of the folder that a kill between two lines would leave."""
    seen, before = {}, None

    def look(frame, event, arg):
        nonlocal before
        if frame.f_code.co_filename not in WATCHED:
            return None
        stats = [(one.name, os.stat(one)) for one in os.scandir(folder)]
        now = sorted((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
        if now != before:
            before, found = now, contents(folder)
            seen[tuple(sorted(found.items()))] = found
        return look

    outer = sys.gettrace()
    sys.settrace(look)
    try:
        work()
    finally:
        sys.settrace(outer)
    return seen


def restored(folder, state):
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in state.items():
        (folder / name).write_bytes(data)


def again(folder, form, precision, **options):
    """What a user does after a kill: resume, or overwrite where the old output is all there is."""
    try:
        run(folder, form, precision, resume=True, **options)
    except OutputError as refused:
        assert "overwrite" in refused.hint
        assert "out.journal.json" not in contents(folder)
        assert (folder / "out").read_bytes() == b"old"
        run(folder, form, precision, overwrite=True, **options)


@pytest.mark.parametrize(
    ("form", "precision", "old", "kind"),
    [
        ("npy", "float32", False, "one"),
        ("npy", "float32", True, "one"),
        ("npy", "int8", False, "one"),
        ("jsonl", "float32", False, "one"),
        ("jsonl", "float32", True, "one"),
        ("parquet", "float32", False, "one"),
        ("npz", "float16", True, "one"),
        ("safetensors", "ubinary", False, "one"),
        ("csv", "uint8", True, "one"),
        ("npy", "float32", True, "many"),
        ("safetensors", "int8", False, "many"),
        ("parquet", "float16", False, "many"),
        ("npy", "float32", True, "ids"),
        ("npz", "float32", False, "ids"),
        ("safetensors", "int8", False, "ids"),
    ],
)
def test_every_line_is_a_place_to_be_killed(tmp_path, form, precision, old, kind, monkeypatch):
    """Also while resuming: all states that any number of kills can lead to are tried."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # a kill loses nothing that was written
    options = {} if kind == "one" else {kind: True}
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", form, precision, **options)
    whole = contents(tmp_path / "whole")
    folder = tmp_path / "work"
    folder.mkdir()
    start = {"out": b"old", "out.manifest.json": b"{}", "out.index.jsonl": b"old"} if old else {}
    restored(folder, start)
    waiting = states_seen(folder, lambda: run(folder, form, precision, overwrite=old, **options))
    assert contents(folder) == whole
    tried = set(waiting)
    while waiting:
        _, state = waiting.popitem()
        restored(folder, state)
        found = states_seen(folder, lambda: again(folder, form, precision, **options))
        assert contents(folder) == whole
        waiting |= {key: value for key, value in found.items() if key not in tried}
        tried |= set(found)
    assert len(tried) > 25


def leave(folder, form):
    """Leave what an interrupted run does, with two rows committed."""
    with open_vectors(Target(folder / "out", form), {"model": "m"}) as sink:
        sink.write([{"id": i, "n_tokens": i} for i in range(2)], VECTORS[:2])
        sink.commit({"read": 2})


@pytest.mark.parametrize("form", ["npy", "jsonl"])
def test_killed_while_overwriting_the_rest_of_a_run(tmp_path, form):
    for name in ("whole", "work"):
        (tmp_path / name).mkdir()
    run(tmp_path / "whole", form, "float32")
    folder = tmp_path / "work"
    leave(folder, form)
    for state in states_seen(folder, lambda: run(folder, form, "float32", overwrite=True)).values():
        restored(folder, state)
        run(folder, form, "float32", resume=True)
        assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("form", ["npy", "jsonl", "parquet"])
def test_data_is_on_the_disk_before_what_speaks_of_it(tmp_path, form, monkeypatch):
    """For a power cut, which may lose all that was not synced."""
    synced, fsync, replace = {}, os.fsync, os.replace

    def note(file):
        fsync(file)
        stat = os.fstat(file)
        synced[stat.st_ino] = stat.st_size

    def check(source, to):
        data = [path for path in tmp_path.iterdir() if ".partial" in path.name]
        for path in (source, *data):
            assert synced.get(os.stat(path).st_ino) == os.stat(path).st_size, path
        replace(source, to)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", check)
    run(tmp_path, form, "float32")
    assert contents(tmp_path).keys() == NAMES
    assert os.name != "posix" or os.stat(tmp_path).st_ino in synced


@pytest.mark.parametrize("form", ["npy", "jsonl"])
def test_bytes_that_no_journal_speaks_of_are_cut_off(tmp_path, form):
    """A kill in the middle of a write, or before the journal."""
    for name in ("whole", "work"):
        (tmp_path / name).mkdir()
    run(tmp_path / "whole", form, "float32")
    folder = tmp_path / "work"
    leave(folder, form)
    for name in contents(folder):
        if "partial" in name:
            with (folder / name).open("ab") as file:
                file.write(b'{"id":')
    (folder / "out.journal.json.tmp").write_bytes(b'{"ro')
    run(folder, form, "float32", resume=True)
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("form", ["npy", "jsonl", "parquet"])
def test_every_call_of_the_system_may_fail(tmp_path, form, call, monkeypatch):
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", form, "float32")
    real = getattr(os, call)
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        left = number

        def failing(*args):
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(28, "No space left on device")
            return real(*args)

        monkeypatch.setattr(os, call, failing)
        try:
            run(folder, form, "float32")
        except OutputError as failed:
            assert str(failed) == f"{folder / 'out'}: cannot be written: No space left on device"
        monkeypatch.setattr(os, call, real)
        run(folder, form, "float32", resume=True)
        assert contents(folder) == contents(tmp_path / "whole")
        if left >= 0:
            break
    assert 4 < number < 99


PRODUCER = """if True:
    import sys, pathlib, numpy as np
    from bertcli.vectors.output import *
    import bertcli.vectors.formats, bertcli.hub, hashlib
    if sys.argv[2] == "parquet":
        import pyarrow.parquet
    path, form = pathlib.Path(sys.argv[1]), sys.argv[2]
    table = np.random.default_rng(2).standard_normal((3000, 64)).astype(np.float32)
    print("ready", flush=True)
    with open_vectors(Target(path, form, resume=True), {"model": "m"}) as sink:
        if not sink.done:
            for at in range(sink.state or 0, 3000, 150):
                metas = [{"id": i, "n_tokens": i % 9} for i in range(at, at + 150)]
                sink.write(metas, table[at : at + 150])
                sink.commit(at + 150)
            sink.finish({})
    print("done", flush=True)
"""


def start(path, form):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(bertcli.__file__))}
    process = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(path), form], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows kills in another way")
@pytest.mark.parametrize(("form", "kills"), [("npy", 7), ("jsonl", 5), ("parquet", 5)])
def test_killed_at_random_instants(tmp_path, form, kills):
    """As many kills as that, in as many runs as it takes; each run that ends gives the bytes."""
    began = time.monotonic()
    with start(tmp_path / "whole", form) as process:
        assert process.stdout.readline() == b"done\n"
    seconds = time.monotonic() - began
    whole, choose, killed, run_number = (tmp_path / "whole").read_bytes(), random.Random(3), 0, 0
    while killed < kills:
        path = tmp_path / f"out{run_number}"
        with start(path, form) as process:
            time.sleep(choose.random() ** 2 * seconds / 2)
            process.kill()
            ended = process.stdout.readline() == b"done\n"
        killed += not ended
        if ended:
            assert path.read_bytes() == whole
            run_number += 1
    with start(path, form) as process:
        assert process.stdout.readline() == b"done\n"
    assert path.read_bytes() == whole
    assert not list(tmp_path.glob("*partial*")) + list(tmp_path.glob("*journal*"))
