"""`--engine ray` on a real cluster of two nodes, beside the local engine."""

import gzip
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from front import (
    call,
    environment,
    json_in,
    jsonl,
    on_torch,
    rows_in,
    start,
)
from fsspec import AbstractFileSystem, register_implementation

from bertcli.errors import InputError, OutputError, UsageError
from bertcli.model_folder.find import find_model
from bertcli.ray.run import EmbedJob, Pool, Shard, ShardWorker, TokenizeJob, plan_shards
from bertcli.records.input import Input
from bertcli.tokenizing.batch import Layout
from bertcli.versions import install_command

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "samples" / "tiny-bert")
FIND = partial(find_model, TINY)
DEADLINE = 480  # seconds, against hanging only: a cluster starts slowly on a busy machine
TEXTS = (ROOT / "samples" / "texts.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def cluster():
    """The address of two nodes of one CPU each, on this machine."""
    pytest.importorskip("ray")
    code = (
        "import ray, sys\n"
        "from ray.cluster_utils import Cluster\n"
        "nodes = Cluster(initialize_head=True, head_node_args={'num_cpus': 1})\n"
        "nodes.add_node(num_cpus=1)\n"
        "nodes.wait_for_nodes()\n"
        "print(nodes.address, flush=True)\n"
        "sys.stdin.read()\n"
        "nodes.shutdown()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}),
    )
    lines = iter(process.stdout.readline, "")
    yield next(line.strip() for line in lines if line[0].isdigit())
    process.communicate()


@pytest.fixture
def shards(tmp_path):
    """Four files of different lengths, one compressed, one in a folder below."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    for number in range(3):
        lines = [{"id": f"{number}-{i}", "text": t} for i, t in enumerate(TEXTS * (number + 1))]
        (folder / f"part-{number}.jsonl").write_text(jsonl(lines))
    last = jsonl({"id": i, "text": text} for i, text in enumerate(TEXTS))
    with gzip.open(folder / "sub" / "part-3.jsonl.gz", "wt") as file:
        file.write(last)
    return folder


def run(*argv):
    process = start(*argv, text=True)
    out, err = process.communicate(timeout=DEADLINE)
    assert out == ""
    return process.returncode, err


@pytest.mark.ray
@pytest.mark.slow
def test_shards_are_those_of_the_local_engine_and_are_made_once(cluster, shards, tmp_path):
    out = tmp_path / "out"
    common = ("--engine", "ray", "--ray-address", cluster, "-o", out, "-f", "jsonl")
    command = ("embed", "-m", TINY, "-i", shards, *common, "--backend", "auto")
    code, err = run(*command)
    assert code == 0, err
    assert "4 of 4 shards made" in err

    for source in (*shards.glob("*.jsonl"), *shards.glob("sub/*.gz")):
        made = out / source.relative_to(shards).with_name(f"{source.name.split('.')[0]}.jsonl")
        local = call("embed", "-m", TINY, "-i", source, "-f", "jsonl", "--backend", "auto")
        found, expected = rows_in(made), local.rows
        assert [row["id"] for row in found] == [row["id"] for row in expected]
        vectors = (np.array([row["embedding"] for row in some]) for some in (found, expected))
        assert np.abs(next(vectors) - next(vectors)).max() < 1e-6
    manifest = json_in(out / "manifest.json")
    assert manifest["counts"]["records"] == 7 * len(TEXTS)
    assert [shard["records"] for shard in manifest["shards"]] == [
        len(TEXTS) * times for times in (1, 2, 3, 1)
    ]

    before = {path: path.stat().st_mtime_ns for path in out.rglob("part-*.jsonl")}
    (out / "part-1.jsonl").unlink()
    (out / "part-1.jsonl.manifest.json").unlink()
    code, err = run(*command)
    assert "1 of 4 shards made, 3 already done" in err
    after = {path: path.stat().st_mtime_ns for path in out.rglob("part-*.jsonl")}
    assert [path.name for path in before if before[path] != after[path]] == ["part-1.jsonl"]


def shard_of(source, output):
    return Shard(source, output, source, source)


def worker(pooling, texts):
    """One worker, in this process."""
    source = Input.of(paths=(str(texts),), on_error="skip")
    return ShardWorker(EmbedJob(FIND, source, on_torch(pooling=pooling), "npy"))


def test_a_shard_is_made_once_and_never_by_other_options(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"id": "x", "text": "one"}\n{"text": 2}\n{"id": "y", "text": "three"}\n')
    shard = shard_of(str(source), str(tmp_path / "out" / "a.npy"))
    done = worker("mean", source).make(shard)
    assert (done.was_complete, done.skipped) == (False, 1)
    assert len(np.load(shard.output)) == 2
    index = rows_in(Path(f"{shard.output}.index.jsonl"))
    assert [row["id"] for row in index] == ["x", "y"]
    assert "a.jsonl:2" in rows_in(Path(f"{shard.output}.errors.jsonl"))[0]["error"]
    assert worker("mean", source).make(shard).was_complete
    with pytest.raises(OutputError, match='pooling was "mean", now "max"'):
        worker("max", source).make(shard)
    with source.open("a") as file:
        file.write('{"text": "four"}\n')
    with pytest.raises(OutputError, match=r"source\.bytes was \d+, now \d+"):
        worker("mean", source).make(shard)


def test_a_source_of_the_same_size_and_time_is_not_the_same(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("one\ntwo\n")
    shard = shard_of(str(source), str(tmp_path / "out" / "a.npy"))
    worker("mean", source).make(shard)
    time = source.stat().st_mtime_ns
    source.write_text("one\nten\n")
    os.utime(source, ns=(time, time))
    with pytest.raises(OutputError, match=r'source\.sha256 was "\w+'):
        worker("mean", source).make(shard)


@pytest.mark.parametrize("form", ["jsonl", "npy", "parquet", "csv"])
def test_an_empty_shard_is_made_once(tmp_path, form):
    source = tmp_path / "a.txt"
    source.touch()
    shard = shard_of(str(source), str(tmp_path / "out" / f"a.{form}"))
    job = EmbedJob(FIND, Input.of(paths=(str(source),)), on_torch(), form)
    done = ShardWorker(job).make(shard)
    assert Path(shard.output).exists() and done.sha256
    assert done.tally.records == 0
    assert ShardWorker(job).make(shard).was_complete


def jobs(source):
    return (
        EmbedJob(FIND, source, on_torch(), "jsonl"),
        TokenizeJob(FIND, source, Layout(), "jsonl"),
    )


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("where", ["here", "memory"])
def test_an_output_that_nothing_says_who_made_is_refused(tmp_path, at, where):
    from fsspec import filesystem

    source = tmp_path / "a.txt"
    source.write_text("one\n")
    fs = filesystem("file" if where == "here" else where)
    place = f"{tmp_path}/out/a.jsonl" if where == "here" else f"/precious{at}/a.jsonl"
    shard = shard_of(str(source), place if where == "here" else f"memory:/{place}")
    job = jobs(Input.of(paths=(str(source),)))[at]
    fs.pipe(place, b"precious\n") if where == "memory" else _written(Path(place), "precious\n")
    with pytest.raises(OutputError, match="already exists, but has no manifest to resume from"):
        ShardWorker(job).make(shard)
    assert fs.cat_file(place) == b"precious\n"
    assert len(fs.ls(place.rpartition("/")[0])) == 1
    done = ShardWorker(replace(job, overwrite=True)).make(shard)
    assert hashlib.sha256(fs.cat_file(place)).hexdigest() == done.sha256
    assert ShardWorker(job).make(shard).was_complete


def _written(path, text):
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize("at", [0, 1])
def test_a_shard_that_was_killed_before_its_manifest_is_made_again(tmp_path, at):
    source, out = tmp_path / "a.txt", tmp_path / "out" / "a.jsonl"
    source.write_text("one\n")
    shard, job = shard_of(str(source), str(out)), jobs(Input.of(paths=(str(source),)))[at]
    where = ("bertcli.io.output_files.sync_folder", "bertcli.ray.run.write_json_atomically")[at]
    with (
        mock.patch(where, side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        ShardWorker(job).make(shard)
    assert out.exists()
    assert not ShardWorker(job).make(shard).was_complete
    assert ShardWorker(job).make(shard).was_complete


def test_skipped_records_are_told_by_the_run_that_ends_a_killed_one(tmp_path):
    """It reads them again; what other texts had skipped goes."""
    source, shard = tmp_path / "a.jsonl", shard_of(f"{tmp_path}/a.jsonl", f"{tmp_path}/out/a.npy")
    source.write_text('{"text": "one"}\n{"text": 2}\n')
    letters = Path(f"{shard.output}.errors.jsonl")
    struck = mock.patch("bertcli.io.output_files.sync_folder", side_effect=KeyboardInterrupt)
    with struck, pytest.raises(KeyboardInterrupt):
        worker("mean", source).make(shard)
    whole = letters.read_bytes()
    done = worker("mean", source).make(shard)
    assert (done.was_complete, done.skipped) == (False, 1)
    assert letters.read_bytes() == whole and whole.count(b"\n") == 1
    source.write_text('{"text": "one"}\n')
    again = worker("mean", source)
    again.job = replace(again.job, overwrite=True)
    assert again.make(shard).skipped == 0 and not letters.exists()


def test_a_shard_that_cannot_be_read_leaves_nothing(tmp_path):
    source, out = tmp_path / "a.jsonl", tmp_path / "out" / "a.jsonl"
    source.write_text("{")
    for job in jobs(Input.of(paths=(str(source),))):
        with pytest.raises(InputError):
            ShardWorker(job).make(shard_of(str(source), str(out)))
        assert not [*out.parent.iterdir()]


def test_sources_are_never_written(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one"}\n')
    for command in ("embed", "tokenize"):
        done = call(
            *(command, "-m", TINY, "--engine", "ray", "-i", source),
            *("-o", tmp_path, "-f", "jsonl", "--overwrite"),
        )
        assert done.code == 1
        assert f"the input {source} would be overwritten" in done.error
    (tmp_path / "a.npy.errors.jsonl").write_bytes(source.read_bytes())
    paths = (str(source), str(tmp_path / "a.npy.errors.jsonl"))
    with pytest.raises(OutputError, match="would be overwritten"):
        plan_shards(Input.of(paths=paths), str(tmp_path), "npy")


def test_shards_come_and_go_through_file_systems_that_are_elsewhere(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/in/a.txt", b"one\ntwo\n")
    (shard,) = plan_shards(Input.of(paths=("memory://in/*.txt",)), "memory://out", "npy")
    maker = worker("mean", "ignored")
    assert maker.make(shard).tally.records == 2
    assert sorted(name.rsplit("/", 1)[1] for name in memory.find("/out")) == [
        "a.npy",
        "a.npy.manifest.json",
    ]
    assert maker.make(shard).was_complete


@pytest.mark.parametrize(
    "pattern",
    [
        "s3://KEY:SE%2FCRET@bucket/in/*.jsonl?region=x&access_key=TOKEN",
        "s3://KEY:SE%2FCRET@bucket/in/?region=x&access_key=TOKEN",
        "s3://KEY:SE%2FCRET@bucket?access_key=TOKEN",
        "s3://KEY:SE%2FCRET@bucket/in/a.jsonl?access_key=TOKEN",
    ],
)
def test_what_opens_a_store_stays_with_its_files_and_is_shown_nowhere(tmp_path, pattern):
    import fsspec

    memory, opened = fsspec.filesystem("memory"), []
    memory.pipe("/bucket/in/a.jsonl", b'{"text":"one"}\n{"text":2}\n')

    def file_system(place):
        opened.append(place)
        return memory, "/" + place.partition("@")[2].partition("?")[0].rstrip("/")

    with mock.patch("bertcli.formats.parquet.file_system", file_system):
        source = Input.of(paths=(pattern,), on_error="skip")
        (shard,) = plan_shards(source, str(tmp_path / "out"), "jsonl")
        for job in jobs(replace(source, paths=("ignored",)))[1:]:
            done = ShardWorker(job).make(shard)
    assert done.tally.records == 1
    assert all("KEY:SE%2FCRET@bucket" in place and "=TOKEN" in place for place in opened)
    made = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())
    ends = [".jsonl", ".jsonl.errors.jsonl", ".jsonl.manifest.json"]
    assert [path.name.removeprefix("a") for path in made] == ends
    for path in made:
        assert not any(word in path.read_text() for word in ("KEY", "CRET", "TOKEN"))
    manifest = json_in(made[-1])
    assert manifest["shard"]["source"]["place"] == "s3://bucket/in/a.jsonl"


def worker_of(cluster):
    """Return the process of a worker, once there is one."""
    for _ in range(600):
        found = subprocess.run(["ps", "ax", "-o", "pid=,args="], capture_output=True, text=True)
        workers = [line for line in found.stdout.splitlines() if "ray::ShardWorker" in line]
        busy = [line for line in workers if "submit" in line or "." in line.split("::")[1]]
        if busy:
            return int(busy[0].split()[0])
        time.sleep(0.05)
    raise AssertionError("no worker came")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_a_worker_that_is_killed_is_replaced(cluster, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(4):
        lines = [f"{number} {i} {TEXTS[i % len(TEXTS)]}" for i in range(3000)]
        (source / f"{number}.txt").write_text("\n".join(lines))
    process = start(
        *("embed", "-m", TINY, "-i", source, "-o", out, "-f", "npy", "--window", 64),
        *("--engine", "ray", "--ray-address", cluster),
        text=True,
    )
    while not list(out.glob("*.run/journal")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    os.kill(worker_of(cluster), signal.SIGKILL)
    said, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, said) == (0, ""), err
    for number in range(4):
        local = tmp_path / f"{number}.npy"
        assert call("embed", "-m", TINY, "-i", source / f"{number}.txt", "-o", local).code == 0
        made = np.load(out / f"{number}.npy")
        assert np.abs(made - np.load(local)).max() < 1e-6
    assert not list(out.glob("*.run"))


@pytest.mark.ray
@pytest.mark.slow
def test_two_runs_into_one_folder(cluster, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text("\n".join(TEXTS * 100))
    argv = ("embed", "-m", TINY, "-i", source, "-o", out, "-f", "npy", "--engine", "ray")
    first = start(*argv, "--ray-address", cluster, text=True)
    while not (out / ".bertcli.lock").exists():
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.02)
    code, err = run(*argv, "--overwrite", "--ray-address", cluster)
    assert (code, err.splitlines()[0]) == (1, f"error: {out}: another bertcli is writing it")
    said, err = first.communicate(timeout=DEADLINE)
    assert (first.returncode, said) == (0, ""), err
    assert [np.load(out / f"{number}.npy").shape[0] for number in range(3)] == [1200] * 3
    assert not (out / ".bertcli.lock").exists()


@pytest.mark.ray
@pytest.mark.slow
def test_tokens_and_records_that_cannot_be_read(cluster, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n{"text": "three"}\n')
    (source / "b.jsonl").write_text('{"text": "four five"}\n')
    common = ("--engine", "ray", "--ray-address", cluster, "-o", out, "-f", "jsonl")
    common += ("--max-length", "3")
    code, err = run("tokenize", "-i", source / "*.jsonl", *common)
    assert code == 1
    assert "a.jsonl:2: the text is 2, not a string" in err
    code, err = run("tokenize", "-i", source / "*.jsonl", *common, "--on-error", "skip")
    assert code == 1
    assert "1 record was skipped" in err and "1 of 3 texts truncated to 3 tokens (1 dropped)" in err
    assert [row["input_ids"] for row in rows_in(out / "a.jsonl")] == call(
        "tokenize", "one", "three"
    ).ids
    (dead,) = rows_in(out / "a.jsonl.errors.jsonl")
    assert "a.jsonl:2" in dead["error"]
    assert not (out / "b.jsonl.errors.jsonl").exists()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("only", ["", '{"text": 2}\n'])
def test_shards_without_a_row(cluster, tmp_path, only):
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(only)
    common = ("--engine", "ray", "--ray-address", cluster, "-o", out, "--on-error", "skip")
    code, err = run("tokenize", "-i", source, *common)
    assert (code, "1 record was skipped" in err) == (bool(only), bool(only)), err
    made = json_in(out / "manifest.json")
    assert made["counts"]["records"] == 0
    assert made["counts"]["skipped"] == bool(only)
    assert made["shards"] == [
        {
            "source": str(source),
            "output": "in.parquet",
            "records": 0,
            "sha256": hashlib.sha256((out / "in.parquet").read_bytes()).hexdigest(),
        }
    ]


def failing(*argv):
    return call("embed", "-m", TINY, "--engine", "ray", *argv)


def test_what_cannot_be_is_said_before_a_cluster_is_asked(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("one\n")
    assert "requires -o FOLDER" in failing("-i", source).error
    assert "reads files" in failing("one", "-o", out).error
    assert "--no-manifest cannot" in failing("-i", source, "-o", out, "--no-manifest").error
    assert "no matching files" in failing("-i", tmp_path / "*.none", "-o", out).error
    (tmp_path / "in2").mkdir()
    (tmp_path / "in2" / "x[1].none").touch()
    assert "no files with a known suffix" in failing("-i", tmp_path / "in2", "-o", out).error
    (tmp_path / "file").touch()
    for file in (tmp_path / "file", f"file://{tmp_path}/file"):
        said = failing("-i", source / "a.txt", "-o", file).error
        assert f"{tmp_path}/file: cannot be written: File exists" in said
    assert "cannot be written" in failing("-i", source / "a.txt", "-o", tmp_path / "file/x").error
    for address in ("ray://127.0.0.1:1", "ray://[::1"):
        gone = failing("-i", source / "a.txt", "-o", out, "--ray-address", address)
        assert f"no Ray cluster at {address}" in gone.error
    assert "s3a" in failing("-i", "s3a://bucket/*.txt", "-o", out).error
    monkeypatch.setattr("bertcli.ray.run.find_spec", lambda name: None)
    missing = failing("-i", source / "a.txt", "-o", out)
    assert (missing.error, missing.hint) == (
        "--engine ray needs Ray",
        install_command("ray"),
    )


def test_names_of_outputs_keep_the_folders(tmp_path):
    for name in ("a/x.txt.gz", "b/x.txt", "_SUCCESS", ".hidden.txt", "b/readme.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = plan_shards(Input.of(paths=(str(tmp_path),)), "out/", "parquet")
    assert [shard.output for shard in found] == ["out/a/x.parquet", "out/b/x.parquet"]
    url = plan_shards(Input.of(paths=(f"file://{tmp_path}/b/*.txt",)), "s3://bucket/out", "npy")
    assert [shard.output for shard in url] == ["s3://bucket/out/x.npy"]
    (tmp_path / "a" / "x.txt").touch()
    with pytest.raises(InputError, match="would both be written to a/x"):
        plan_shards(Input.of(paths=(str(tmp_path),)), "out", "npy")


class Web(AbstractFileSystem):
    """Its files are called by their whole addresses, as those of http are."""

    protocol = "web"

    @classmethod
    def _strip_protocol(cls, path):
        return path

    def exists(self, path, **options):
        return True

    def isdir(self, path):
        return False


def test_addresses_that_differ_in_a_query_are_different_files():
    register_implementation("web", Web, clobber=True)
    paths = ("web://host/get.txt?secret=1", "web://host/get.txt?secret=2")
    with pytest.raises(InputError, match=r"would both be written to get\.txt\?secret=\*\*\*"):
        plan_shards(Input.of(paths=paths), "out", "npy")


@pytest.mark.parametrize(
    ("asked", "nodes", "found"),
    [
        (Pool(), [{"CPU": 2}], Pool(1, 2, 0)),
        (Pool(cpus=1), [{"CPU": 2}], Pool(2, 1, 0)),
        (Pool(), [{}, {"CPU": 16}], Pool(4, 4, 0)),  # a head node without CPUs
        (Pool(), [{"CPU": 16}, {"CPU": 8}], Pool(6, 4, 0)),
        (Pool(), [{"CPU": 64, "GPU": 8}, {"CPU": 8}], Pool(8, 4, 1)),
        (Pool(gpus=0.5), [{"CPU": 4, "GPU": 1}], Pool(2, 2, 0.5)),
        (Pool(workers=3, gpus=0), [{"CPU": 64, "GPU": 8}], Pool(3, 4, 0)),
    ],
)
def test_a_pool_fits_its_cluster(asked, nodes, found):
    assert asked.on(nodes) == found


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Pool(workers=3, cpus=1), "no room for 3 workers of 1 CPUs and 0 GPUs"),
        (Pool(cpus=8), "no room for 1 workers of 8 CPUs"),
        (Pool(gpus=1), "no room for 1 workers of 4 CPUs and 1 GPUs"),
    ],
)
def test_a_pool_that_never_fits_is_refused(asked, said):
    with pytest.raises(UsageError, match=said):
        asked.on([{"CPU": 2}])


def test_an_error_of_a_worker_keeps_its_hint():
    error = pickle.loads(pickle.dumps(OutputError("no room", "x")))
    assert (type(error), str(error), error.hint) == (OutputError, "no room", "x")
