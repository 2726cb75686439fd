"""A run that is killed anywhere and resumed gives the bytes of one that was not."""

import os
import shutil
import sys

import numpy as np
import pytest
from front import contents
from vector_sink import fields_of, open_vectors

from bertcli.embedding import embed_run
from bertcli.errors import OutputError
from bertcli.formats import vector_writer
from bertcli.io import publish
from bertcli.runs import run_folder, vector_run
from bertcli.runs.run_folder import OutputState
from bertcli.runs.vector_run import VectorTarget

WATCHED = {
    module.__file__ for module in (publish, embed_run, vector_writer, run_folder, vector_run)
}
ROWS = 3
VECTORS = np.random.default_rng(1).standard_normal((ROWS, 3)).astype(np.float32)
COUNTS = [2, 0, 1]  # rows of each record, where one may have several
NAMES = {"out", "out.manifest.json"}


def run(folder, form, precision, *, ids=False, **options):
    """A command that takes two records at a time, wherever it begins."""
    many = options.get("has_several_rows", False)
    with open_vectors(
        VectorTarget(folder / "out", form, precision, **options), {"model": "m"}
    ) as sink:
        if sink.output_state is OutputState.COMPLETE:
            return
        start = sink.state["read"] if sink.state else 0
        for at in range(start, ROWS, 2):
            metas = [{"id": i, "n_tokens": i} for i in range(at, min(at + 2, ROWS))]
            if ids:  # the first two records have none
                metas = [{"id": i} if i > 1 else {} for i in range(at, at + len(metas))]
                sink.write(fields_of(metas), VECTORS[at : at + 2])
            elif many:
                rows = slice(sum(COUNTS[:at]), sum(COUNTS[: at + 2]))
                sink.write(fields_of(metas, COUNTS[at : at + 2]), VECTORS[rows])
            else:
                sink.write(fields_of(metas), VECTORS[at : at + 2])
            sink.commit({"read": at + len(metas)})
        sink.finish({"records": ROWS})


def stats_of(folder):
    """What changes when a file of a folder does, fast: every line of the code is a time to look."""
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from stats_of(entry)
        else:
            stat = entry.stat()
            yield entry.path, stat.st_ino, stat.st_size, stat.st_mtime_ns


def states_seen(folder, work):
    """Do the work; return each content of the folder that a kill between two lines would leave."""
    seen, before = {}, None

    def look(frame, event, arg):
        nonlocal before
        if frame.f_code.co_filename not in WATCHED:
            return None
        now = sorted(stats_of(folder))
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
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def again(folder, form, precision, **options):
    """What a user does after a kill: resume, or overwrite where the old output is all there is."""
    try:
        run(folder, form, precision, resume=True, **options)
    except OutputError as refused:
        assert "overwrite" in refused.hint
        assert "out.run/journal" not in contents(folder)
        assert (folder / "out").read_bytes() == b"old"
        run(folder, form, precision, overwrite=True, **options)


@pytest.mark.parametrize(
    ("form", "precision", "old", "kind"),
    [
        ("npy", "float32", True, "one"),
        ("jsonl", "float32", True, "one"),
        ("safetensors", "int8", False, "has_several_rows"),
        ("parquet", "float16", False, "has_several_rows"),
        ("npz", "float32", False, "ids"),
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
    start = {
        "out": b"old",
        "out.manifest.json": b'{"fingerprint": {}}',
        "out.index.jsonl": b'{"row": 0, "id": "old"}',
    }
    start = start if old else {}
    restored(folder, start)
    waiting = states_seen(folder, lambda: run(folder, form, precision, overwrite=old, **options))
    assert contents(folder) == whole
    assert not old or all("out" in state for state in waiting.values())  # no reader misses it
    tried = set(waiting)
    while waiting:
        _, state = waiting.popitem()
        restored(folder, state)
        found = states_seen(folder, lambda: again(folder, form, precision, **options))
        assert contents(folder) == whole
        waiting |= {key: value for key, value in found.items() if key not in tried}
        tried |= set(found)
    assert len(tried) > 20


@pytest.mark.parametrize("form", ["npy", "jsonl", "parquet"])
def test_data_is_on_the_disk_before_what_speaks_of_it(tmp_path, form, monkeypatch):
    """For a power cut, which may lose all that was not synced."""
    synced, fsync, replace = {}, os.fsync, os.replace

    def note(file):
        fsync(file)
        stat = os.fstat(file)
        synced[stat.st_ino] = stat.st_size

    def check(source, to):
        data = [
            path
            for path in (tmp_path / "out.run").iterdir()
            if path.name not in ("saving", "bertcli.lock")
        ]
        for path in (source, *data):
            assert synced.get(os.stat(path).st_ino) == os.stat(path).st_size, path
        replace(source, to)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", check)
    run(tmp_path, form, "float32")
    assert contents(tmp_path).keys() - {"out.index.jsonl"} == NAMES
    assert os.name != "posix" or os.stat(tmp_path).st_ino in synced


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
