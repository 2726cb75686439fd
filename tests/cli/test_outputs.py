"""`-o FILE` of every command: one writer at a time, nothing lost, the same file with --resume."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from front import (
    STRUCK,
    TINY,
    bad,
    call,
    contents,
    environment,
    good,
    json_in,
    jsonl,
    left_in,
    start,
    struck,
    until,
)
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("usual_engine")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("".join(f"i love nlp {n}\n" for n in range(3000)))
    (tmp_path / "few.txt").write_text("i love nlp\nhello world\n")
    return tmp_path


TOKENIZE = ("tokenize", "-q", "-m", TINY)
EMBED = ("embed", "-q", "-m", TINY)


# --- one process at a time ----------------------------------------------------------------------

# The command line, stopped by itself before it calls a method, until it is continued or killed.
STOPPED = """
import os, signal, sys
from bertcli.__main__ import run
from bertcli.io.output_files import OutputFiles
from bertcli.runs.run_folder import RunWriter

owner, name = globals()[sys.argv[1]], sys.argv[2]
del sys.argv[1:3]
method, calls = getattr(owner, name), []

def stopping(*given, **named):
    if not calls:
        os.kill(os.getpid(), signal.SIGSTOP)
    calls.append(name)
    return method(*given, **named)

setattr(owner, name, stopping)
run()
"""


def stopped(method, *argv):
    """Start a command that stops before it calls a method, and wait for that."""
    running = subprocess.Popen(
        [sys.executable, "-c", STOPPED, *method.split("."), *map(str, argv)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until(lambda: os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT))
    return running


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows stops no process")
@pytest.mark.parametrize("first", [(), ("--resume",)])
@pytest.mark.parametrize("second", [(), ("--overwrite",), ("--resume",)])
def test_an_output_that_a_living_process_writes_is_refused(first, second, folder):
    argv = (*TOKENIZE, "-i", "texts.txt", "-o", "out.csv")
    running = stopped("OutputFiles.publish", *argv, *first)
    try:
        assert "another bertcli is writing it" in bad(*argv, *second).error
        running.send_signal(signal.SIGCONT)
        assert running.wait(60) == 0, running.stderr.read()
    finally:
        running.kill()
        running.communicate()
    good(*argv[:-1], "alone.csv")
    assert (folder / "out.csv").read_bytes() == (folder / "alone.csv").read_bytes()
    assert "out.csv.run" not in left_in(folder)


def test_resume_and_overwrite_side_by_side_leave_a_manifest_of_the_output(folder):
    for _ in range(3):
        each = [
            start(*TOKENIZE, "-i", "few.txt", "-o", "o.jsonl", option)
            for option in ("--resume", "--overwrite") * 3
        ]
        for running in each:
            running.communicate()
        manifest = folder / "o.jsonl.manifest.json"
        if manifest.exists():
            done = good(*TOKENIZE, "-i", "few.txt", "-o", "o.jsonl", "--resume")
            assert done.code == 0
        assert left_in(folder).count("o.jsonl.run") == 0


# --- what is not ours ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [TOKENIZE, (*TOKENIZE, "--resume"), EMBED, (*EMBED, "--overwrite")]
)
@pytest.mark.parametrize(
    "names",
    [
        ("out.jsonl.run/journal",),
        ("out.jsonl.run/index", "out.jsonl.run/vectors", "out.jsonl.run/whole"),
        ("out.jsonl.run",),
        ("out.jsonl.lock",),
    ],
)
def test_files_of_others_beside_an_output_are_kept(command, names, folder):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    before = contents(folder)
    done = call(*command, "-i", "few.txt", "-o", "out.jsonl")
    if names == ("out.jsonl.lock",):  # a name that is none of ours
        assert done.code == 0
    else:
        assert "was not made by bertcli" in done.error
    assert before.items() <= contents(folder).items()


@pytest.mark.parametrize("end", [".manifest.json", ".index.jsonl"])
def test_a_manifest_or_index_of_others_is_refused_or_left_alone(end, folder):
    mine = folder / f"out.npy{end}"
    mine.write_text('{"mine": 1}\n')
    for option in ((), ("--overwrite",), ("--resume",), ("--update",)):
        done = bad(*EMBED, "-i", "few.txt", "-o", "out.npy", *option)
        assert f"out.npy{end}" in done.error
        assert mine.read_text() == '{"mine": 1}\n'
        assert not (folder / "out.npy").exists()
    mine.rename(folder / f"out.jsonl{end}")  # which a plain run does not write
    good(*TOKENIZE, "-i", "few.txt", "-o", "out.jsonl")
    good(*TOKENIZE, "-i", "few.txt", "-o", "out.jsonl", "--overwrite")
    assert (folder / f"out.jsonl{end}").read_text() == '{"mine": 1}\n'


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
@pytest.mark.parametrize("name", ["out.npy.run", "out.npy.manifest.json", "out.npy.index.jsonl"])
def test_a_pipe_with_the_name_of_a_side_file_is_refused_at_once(name, folder):
    os.mkfifo(name)
    assert name in bad(*EMBED, "-i", "few.txt", "-o", "out.npy").error


# --- what is beside an output describes it ------------------------------------------------------


def test_a_plain_run_removes_the_manifest_of_the_output_that_it_replaces(folder):
    good(*TOKENIZE, "-i", "texts.txt", "-o", "o.jsonl", "--resume")
    assert (folder / "o.jsonl.manifest.json").exists()
    good(*TOKENIZE, "-i", "few.txt", "-o", "o.jsonl", "--overwrite")
    assert left_in(folder) == ["few.txt", "o.jsonl", "texts.txt"]


def test_an_interrupted_run_is_kept_until_another_replaces_its_output(folder):
    argv = (*TOKENIZE, "-i", "texts.txt", "-o", "o.jsonl")
    assert struck("SIGKILL", *argv, "--resume", journals=1) == -9
    bad(*TOKENIZE, "-i", "nowhere.txt", "-o", "o.jsonl", "--overwrite")
    good(*argv, "--resume")


def test_vectors_that_are_complete_are_rid_of_what_a_kill_left(folder):
    argv = ("similar", "-q", "-m", TINY, "love", "--corpus", "few.txt", "--vectors", "v.npy")
    first = good(*argv)
    names = left_in(folder)
    (folder / "v.npy.run").mkdir()
    for name in ("bertcli.lock", "vectors", "fields"):  # the journal is removed before them
        (folder / "v.npy.run" / name).touch()
    assert good(*argv).out == first.out
    assert left_in(folder) == names


# --- an update ----------------------------------------------------------------------------------


def test_an_update_of_a_missing_output_starts_over(folder):
    argv = (*EMBED, "-i", "few.txt", "-o", "o.npy", "--update")
    good(*argv)
    expected = contents(folder)
    (folder / "o.npy").unlink()
    good(*argv)
    assert contents(folder) == expected


def test_an_update_killed_at_any_rename_goes_on_and_readers_find_a_file(folder):
    argv = (*EMBED, "-i", "few.txt", "-o", "o.npy", "--update")
    good(*argv)
    (folder / "few.txt").write_text("hello world\nanother\n")
    shutil.copytree(folder, folder / "before")
    good(*argv)
    whole = {name: data for name, data in contents(folder).items() if "/" not in name}
    for calls in range(1, 40):
        shutil.copytree(folder / "before", folder / "now")
        code = subprocess.run(
            [sys.executable, "-c", KILLED, str(calls), *map(str, argv)],
            cwd=folder / "now",
            env=environment(),
        ).returncode
        assert np.load(folder / "now" / "o.npy").shape == (2, 32)
        os.chdir(folder / "now")
        if calls % 2:  # the same command, or another
            good(*argv)
        else:
            (folder / "now" / "few.txt").write_text("love\n")
            good(*argv)
            (folder / "now" / "few.txt").write_text("hello world\nanother\n")
            good(*argv)
        assert contents(folder / "now") == whole
        shutil.rmtree(folder / "now")
        if code == 0:
            break
    assert code == 0 and calls > 5


# Killed before so many calls that rename or remove a file.
KILLED = """
import os, signal, sys
left = int(sys.argv.pop(1))

def hook(event, given):
    global left
    if event in ("os.rename", "os.remove", "os.rmdir") and "o.npy" in str(given[0]):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
from bertcli.__main__ import run
run()
"""


# --- what a run depends on ----------------------------------------------------------------------


def changed_labels(model):
    config = json_in(model / "config.json")
    config["id2label"] = {"0": "other", "1": "more"}
    (model / "config.json").write_text(json.dumps(config))


def test_a_changed_config_is_noticed_by_every_command(folder, models):
    model = folder / "model"
    shutil.copytree(models("BertForSequenceClassification"), model)
    argv = ("classify", "-q", "-m", model, "-i", "texts.txt", "-o", "o.jsonl", "--resume")
    assert struck("SIGKILL", *argv, journals=1) == -9
    changed_labels(model)
    assert "settings.config.json was" in bad(*argv).error
    good(*argv[:-1], "--overwrite")
    good(*argv[:-1], "--overwrite")
    shutil.rmtree(folder / "model")
    shutil.copytree(models("BertForSequenceClassification"), model)
    (folder / "o.jsonl").unlink()
    good(*argv)
    changed_labels(model)
    assert "settings.config.json was" in bad(*argv).error  # of a complete file as well


def test_vectors_without_a_manifest_are_an_input(folder):
    good(*EMBED, "-i", "few.txt", "-o", "v.npy", "--no-manifest")
    argv = ("similar", "-q", "-m", TINY, "love", "--corpus", "few.txt", "--vectors", "v.npy")
    argv += ("-o", "hits.jsonl", "--resume")
    call(*argv)
    np.save("v.npy", np.load("v.npy")[::-1])
    assert "inputs.v.npy was" in bad(*argv).error


def test_weights_that_change_during_a_run_stop_it(folder):
    """Written in place, as `cp` does: the mapped weights are others from then on."""
    model = folder / "model"
    shutil.copytree(TINY, model)
    weights = model / "model.safetensors"
    other = bytearray(weights.read_bytes())
    other[-4000:] = bytes(4000)
    argv = (*EMBED[:2], "-m", model, "-i", "texts.txt", "-o", "o.npy")
    running = stopped("RunWriter.commit", *argv)
    weights.write_bytes(other)
    running.send_signal(signal.SIGCONT)
    _, err = running.communicate()
    assert running.returncode == 1
    assert b"model.safetensors: was changed while it was in use" in err and b"Traceback" not in err
    assert not (folder / "o.npy").exists()


def test_weights_that_become_shorter_during_a_run_end_it_with_a_message(folder):
    model = folder / "model"
    shutil.copytree(TINY, model)
    running = stopped("RunWriter.commit", *EMBED[:2], "-m", model, "-i", "texts.txt", "-o", "o.npy")
    os.truncate(model / "model.safetensors", 100)
    running.send_signal(signal.SIGCONT)
    _, err = running.communicate()
    assert running.returncode == 1
    assert err.decode().startswith("error: ") and len(err.splitlines()) <= 2, err


# --- what is committed --------------------------------------------------------------------------


def test_a_run_commits_early_and_says_what_is_kept(folder):
    argv = (*EMBED[:1], "-m", TINY, "-i", "texts.txt", "-o", "o.npy")
    assert struck("SIGKILL", *argv, journals=2) == -9
    assert json_in(folder / "o.npy.run/journal")["records"] < 200  # of 3,000
    program = [sys.executable, "-c", STRUCK, "2", "SIGINT", *map(str, argv), "--resume"]
    done = subprocess.run(program, env=environment(), capture_output=True)
    assert done.returncode == 130
    kept = json_in(folder / "o.npy.run/journal")["records"]
    (said,) = re.findall(rb"interrupted; (\d+) records are kept; continue with", done.stderr)
    assert 0 < int(said) <= kept  # it was struck within a commit
    good(*argv, "-q", "--resume")


def test_nothing_is_said_to_be_kept_where_nothing_is(folder):
    """Of a pipe no rows are committed."""
    running = start(*TOKENIZE[:1], "-m", TINY, "-o", "o.jsonl", "--resume")
    running.stdin.write(b"love\n" * 10)
    running.stdin.flush()
    until(lambda: (folder / "o.jsonl.run").exists())
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()
    assert b"starts over" in err and b"kept" not in err
    assert running.returncode == 130
    assert left_in(folder) == ["few.txt", "texts.txt"]


# --- the same file with and without --resume ----------------------------------------------------

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text("aé\"',\n ", max_size=4),
    st.lists(st.integers(0, 9), max_size=2),
)
IDS = st.one_of(st.none(), st.integers(0, 9), st.just("x"))
RECORDS = st.fixed_dictionaries(
    {"text": st.sampled_from(["love", "hello world", ""])},
    optional={
        "id": st.one_of(st.none(), st.integers(0, 9), st.just("x")),
        "a": VALUES,
        "b": VALUES,
    },
)


@given(early=st.lists(RECORDS, max_size=4), late=st.lists(RECORDS, max_size=4))
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "jsonl.gz", "tsv"])
def test_the_same_file_with_and_without_resume(suffix, early, late, folder):
    """Also where fields or ids come late, or are null."""
    rows = [*early, *[{"text": "love"}] * (5000 if late else 0), *late]
    (folder / "r.jsonl").write_text(jsonl(rows))
    argv = (*TOKENIZE, "-i", "r.jsonl", "--keep-fields", "--overwrite", "-o")
    plain = call(*argv, f"a.{suffix}")
    argv = (*argv[:-2], "--resume", "-o")
    (folder / f"b.{suffix}").unlink(missing_ok=True)
    resumed = call(*argv, f"b.{suffix}")
    assert (plain.code, plain.err.replace("a.", "b.")) == (resumed.code, resumed.err)
    if plain.code == 0:
        one, other = ((folder / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert one == other
    else:
        assert suffix == "tsv"  # which cannot hold line ends
        shutil.rmtree(folder / "b.tsv.run", ignore_errors=True)


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_columns_have_one_order_on_stdout_and_in_files(tmp_path, form):
    """Of hits and groups, whose id is not their first column."""
    (tmp_path / "t.csv").write_text("id,text\na,the cat\nb,the cat\n")
    argv = ("-m", TINY, "-q")
    hits = ("similar", "cat", "--corpus", tmp_path / "t.csv", *argv)
    groups = ("duplicates", tmp_path / "t.csv", *argv)
    good(*hits, "-o", tmp_path / f"hits.{form}")
    good(*groups, "-o", tmp_path / "o.csv", "--groups", tmp_path / f"groups.{form}")
    assert (tmp_path / f"hits.{form}").read_bytes() == good(*hits, "-f", form).stdout
    assert (tmp_path / f"groups.{form}").read_bytes() == good(*groups, "-f", form).stdout
    if form == "csv":
        header = (tmp_path / "groups.csv").read_text().splitlines()[0]
        assert header == "keep,keep_id,row,id,score,text"
