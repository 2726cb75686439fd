"""The CPU engine: the numbers of torch, the same bits in any batch, and nothing hidden."""

import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from front import (
    DEADLINE,
    TINY,
    bad,
    call,
    environment,
    good,
    json_in,
    process,
)
from hostile import REAL
from safetensors.numpy import load_file, save_file

import bertcli
from bertcli.engines import openvino_engine, runtime, torch_engine
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

ROOT = Path(__file__).parents[2]
OPENVINO = ("--backend", "openvino")
EMBED = ("embed", "-q", "-m", TINY, "I love NLP!", *OPENVINO)

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")


def lines(count, most=30):
    dice = random.Random(15)
    known = " ".join([(ROOT / "README.md").read_text("utf-8"), *REAL]).split()
    return [" ".join(dice.choices(known, k=dice.randint(1, most))) for _ in range(count)]


def vectors(tmp_path, texts, *options):
    file, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    file.write_text("".join(f"{line}\n" for line in texts), "utf-8")
    done = call("embed", "-q", "-i", file, "-o", out, "--overwrite", *options)
    assert done.code == 0, done.err
    return np.load(out)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--pooling", "cls"),
        ("--pooling", "pooler"),
        ("--pooling", "mean+max+weightedmean+lasttoken+mean_sqrt_len"),
        ("--layers", "0,1,-1", "--layer-combine", "stack"),
        ("--layers", "0,-1", "--layer-combine", "concat", "--pooling", "cls"),
        ("--token-vectors",),
        ("--word-vectors", "mean", "--normalize"),
        ("--max-length", "9", "--on-truncate", "window"),
        ("--prompt", "about: ", "--dim", "7"),
    ],
    ids=" ".join,
)
def test_the_numbers_are_those_of_torch(tmp_path, options):
    texts = [*lines(40), "a", "b c"]
    chosen = ("-m", TINY, "--on-truncate", "ignore", *options)
    ours = vectors(tmp_path, texts, *chosen, *OPENVINO)
    torchs = vectors(tmp_path, texts, *chosen)
    assert ours.shape == torchs.shape
    np.testing.assert_allclose(ours, torchs, atol=1e-5)


@pytest.mark.slow
def test_texts_of_the_default_model_are_those_of_torch(tmp_path):
    texts = lines(150, most=40)
    ours = vectors(tmp_path, texts, *OPENVINO)
    assert np.abs(ours - vectors(tmp_path, texts)).max() < 1e-6


def test_several_processes_give_the_bits_of_one(tmp_path):
    texts = lines(60)
    alone = vectors(tmp_path, texts, "-m", TINY, *OPENVINO)
    options = ("-m", TINY, *OPENVINO, "--device", "cpu,cpu", "--batch-tokens", 100)
    assert np.array_equal(vectors(tmp_path, texts, *options), alone)


# --- starting ---


NO_TORCH = """
import os, sys

def audit(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
        raise AssertionError(f"{event} {given}")
    if event == "open" and isinstance(given[0], (str, bytes)) and given[2] & 3:
        path = os.fsdecode(given[0])
        if path != os.devnull:
            written.append(path)

written = []
for name in ("torch", "transformers", "numpy.ma"):  # the last takes 8 ms
    sys.modules[name] = None
sys.dont_write_bytecode = True
sys.addaudithook(audit)
from bertcli.cli.app import main
code = main(sys.argv[1:])
assert sys.modules.get("openvino_telemetry") is None
assert written == [], written
sys.exit(code)
"""


def without_torch(*argv, **env):
    """Run a command that has no torch, may connect to nothing, and write nowhere."""
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, *map(str, argv)],
        env=environment(env),
        capture_output=True,
        timeout=DEADLINE,
    )


def test_a_run_needs_no_torch_and_no_home_and_leaves_nothing(tmp_path):
    """Nor is anything read, changed or removed that lies where others keep their caches."""
    expected = good(*EMBED)
    foreign = tmp_path / ".cache" / "bertcli" / "word2vec.model"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("of others")
    tmp_path.chmod(0o500)
    for backend in (OPENVINO, ("--backend", "auto")):
        home = {"HOME": str(tmp_path), "BERTCLI_CACHE": str(foreign.parent)}
        done = without_torch(*EMBED, *backend, **home)
        assert (done.stdout, done.stderr, done.returncode) == (expected.stdout, b"", 0)
    assert foreign.read_text() == "of others"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [foreign]


def test_weights_that_were_replaced_give_their_own_vectors(tmp_path):
    """Also where the new file has the size, the time and the place of the old one."""
    shutil.copytree(TINY, folder := tmp_path / "model")
    file = folder / "model.safetensors"
    stat, embed = file.stat(), ("embed", "-q", "-m", folder, "a", *OPENVINO)
    before = good(*embed).stdout
    weights = {name: 2 * array for name, array in load_file(file).items()}
    with file.open("r+b") as same:
        save_file(weights, tmp_path / "new.safetensors", {"format": "pt"})
        same.write((tmp_path / "new.safetensors").read_bytes())
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert good(*embed).stdout != before
    with file.open("r+b") as same:
        same.write((TINY / "model.safetensors").read_bytes())
    assert good(*embed).stdout == before


def test_every_thread_gets_the_vectors_of_its_texts():
    embedder = bertcli.Embedder.load(TINY, backend="openvino")
    batches = [lines(3 + at % 5) for at in range(160)]
    expected = [*map(embedder.encode, batches)]
    with ThreadPoolExecutor(8) as pool:
        for ours, right in zip(pool.map(embedder.encode, batches), expected, strict=True):
            np.testing.assert_array_equal(ours, right)


FAILING = """
import sys, bertcli
for turn in range(3):
    try:
        bertcli.Embedder.load(sys.argv[1], backend="openvino")
    except bertcli.BertcliError as failed:
        print(str(failed).partition(": ")[2])
"""


def test_a_tokenizer_that_fails_while_the_graph_is_compiled(tmp_path, default_folder):
    """The memory that is compiled stays as long as OpenVINO is at work on it."""
    shutil.copytree(default_folder, tmp_path / "m", copy_function=os.symlink)
    (tmp_path / "m/tokenizer.json").unlink()
    (tmp_path / "m/tokenizer.json").write_text("{", "utf-8")
    assert "not a tokenizer" in process("embed", "-m", tmp_path / "m", "a").error
    program = [sys.executable, "-c", FAILING, tmp_path / "m"]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[:15] for line in done.stdout.splitlines()] == ["not a tokenizer"] * 3


def test_a_process_that_calls_main_again_keeps_no_model(monkeypatch):
    opened, open_compiled = [], openvino_engine.open_compiled

    def noted(*given):
        device = open_compiled(*given)
        words = device.weights.arrays["bert.embeddings.word_embeddings.weight"]
        opened.extend(map(weakref.ref, (device.model, device.request, words)))
        return device

    monkeypatch.setattr(openvino_engine, "open_compiled", noted)
    for _ in range(3):
        good(*EMBED)
    gc.collect()
    assert len(opened) == 9 and not any(ref() is not None for ref in opened)


EIGHT_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from bertcli import Embedder

barrier = Barrier(8)

def embed(text):
    barrier.wait()
    return Embedder.load(sys.argv[1]).encode(text).tobytes()

with ThreadPoolExecutor(8) as threads:
    assert len({*threads.map(embed, ["a text"] * 8)}) == 1
import openvino
assert openvino.Core().available_devices
"""


def test_threads_may_load_the_first_model_at_the_same_time():
    program = [sys.executable, "-c", EIGHT_THREADS, TINY]
    done = subprocess.run(program, env=environment(), capture_output=True, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, b"")


STARTED = """
import atexit, gc, json, sys
from bertcli.__main__ import run

def passes():
    return sum(some["collections"] for some in gc.get_stats())

def tell():
    print(json.dumps([passes() - before, *sys.modules]), file=sys.stderr, flush=True)

before = passes()
atexit.register(tell)
run()
"""
NEEDLESS = """
cli.options.task cli.commands.tokenize checkpoints.load embedding.sparse
embedding.late_interaction embedding.sparse tokenizing.chunks
vectors.run_folder vectors.file_run export.graphs inference.pool
""".split()  # noqa: SIM905


def test_a_start_imports_what_it_needs_and_looks_for_no_garbage():
    env = environment()
    argv = [sys.executable, "-c", STARTED, *map(str, EMBED)]
    done = subprocess.run(argv, env=env, capture_output=True, check=True, timeout=DEADLINE)
    passes, *imported = json.loads(done.stderr)
    assert (passes, [name for name in NEEDLESS if f"bertcli.{name}" in imported]) == (0, [])


def test_similar_imports_no_torch(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("It is raining.\nI enjoy language technology.\n")
    search = ("similar", "-q", "-m", TINY, "I love NLP!", "--corpus", corpus, "-f", "jsonl")
    expected = good(*search)
    done = without_torch(*search, *OPENVINO)
    assert (done.returncode, done.stderr) == (0, b"")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    hits = [answer["hits"] for answers in (found, expected.rows) for answer in answers]
    assert [hit["row"] for hit in hits[0]] == [hit["row"] for hit in hits[1]]
    scores = [[hit["score"] for hit in some] for some in hits]
    np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError,
        RuntimeError("Failed to allocate 9 bytes of memory"),
        RuntimeError("[CPU] Add node with name 'Add_17' can't alloc"),
    ],
)
def test_when_memory_runs_out_batches_are_halved(tmp_path, monkeypatch, failure):
    texts = lines(50)
    expected = vectors(tmp_path, texts, "-m", TINY, *OPENVINO)
    run = openvino_engine.CompiledModel.start

    def small(self, batch, reduction):
        if len(batch) > 1 and len(batch.ids) > 40:
            raise failure
        return run(self, batch, reduction)

    monkeypatch.setattr(openvino_engine.CompiledModel, "start", small)
    monkeypatch.setattr(openvino_engine, "TOKENS_PER_BATCH", 100)
    given, out = tmp_path / "texts.txt", tmp_path / "again.npy"
    argv = ("embed", "-m", TINY, "-i", given, "-o", out, *OPENVINO)
    done = call(*argv)
    assert done.code == 0
    assert "warning: out of memory on cpu: batches of 50 tokens from here on" in done.err
    assert np.array_equal(np.load(out), expected)
    monkeypatch.setattr(openvino_engine.CompiledModel, "start", mock.Mock(side_effect=MemoryError))
    done = bad(*EMBED)
    assert done.error == "out of memory on cpu with a batch of 100 tokens"


def test_models_lists_what_is_installed_and_cached(tmp_path):
    snapshot = tmp_path / "models--some--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (main := tmp_path / "models--some--model" / "refs" / "main").parent.mkdir()
    main.write_text(snapshot.name)
    env = {"HF_HUB_CACHE": str(tmp_path)}
    rows = good("models", "-f", "jsonl", **env).rows
    found = {(row["model"], row["state"]): row["bytes"] for row in rows}
    assert found[DEFAULT_MODEL, "installed"] > 90e6
    assert found["some/model", "cached"] == 42
    facts = {row["model"]: row for row in rows}
    there, broken = facts[DEFAULT_MODEL], facts["some/model"]
    assert (there["family"], there["width"], there["loads"]) == ("BERT", 384, True)
    assert (broken["loads"], broken["problem"].partition(": ")[2]) == (
        False,
        "no weights in this folder",
    )
    (snapshot / "config.json").write_text('{"model_type": "roberta", "hidden_size": 12}')
    (snapshot / "LICENSE.txt").write_text("free")
    rows = good("models", "-f", "jsonl", **env).rows
    (row,) = (row for row in rows if row["model"] == "some/model")
    assert (row["family"], row["width"], row["license"]) == ("RoBERTa", 12, "LICENSE.txt")
    shown = good("models", "-f", "table", **env, COLUMNS="250").out
    assert re.search(rf"{DEFAULT_MODEL} +installed +9[0-9],[0-9]{{3}},[0-9]{{3}} +BERT +384", shown)
    assert re.search(r"some/model +cached +", shown)


# --- what is told ---


def test_another_backend_is_another_run(tmp_path):
    out = tmp_path / "out.npy"
    good(*EMBED, "-o", out)
    manifest = json_in(Path(f"{out}.manifest.json"))
    options = manifest["fingerprint"]["options"]
    assert options["backend"] == "openvino" and options["openvino"] and options["cpu"]
    assert manifest["same_bits"] is True
    done = bad("embed", "-q", "-m", TINY, "I love NLP!", "-o", out, "--resume")
    assert 'options.backend was "openvino", now "torch"' in done.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dtype", "float16"), "--dtype float16 is not possible with --backend openvino"),
        (("--device", "cuda"), "--device cuda is not possible with --backend openvino"),
        (("--layers", "9"), "layer 9 not found (--layers)"),
    ],
)
def test_what_it_cannot_do_is_said(options, message):
    assert bad(*EMBED, *options, code=2).error == message


def test_without_openvino_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = bad(*EMBED)
    assert done.error.startswith("--backend openvino needs the package openvino: ")
    assert '"bertcli[openvino]' in done.hint


# --- auto ---


AUTO = ("embed", "-v", "-m", TINY, "I love NLP!")


def backend(*options, **env):
    """Return the engine that auto takes, and why it is not the other."""
    done = call(*AUTO, *options, BERTCLI_BACKEND="auto", **env)
    assert done.code == 0, done.err
    (line,) = [one for one in done.err.splitlines() if one.startswith("note: backend: ")]
    return line.removeprefix("note: backend: ")


def test_auto_is_openvino_on_a_cpu_and_torch_for_all_else(monkeypatch):
    assert backend() == "openvino"
    assert backend("--device", "cpu") == "openvino"
    assert backend("--device", "cpu,cpu") == "openvino"
    assert backend("--dtype", "float16") == "torch (--dtype float16)"
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert backend() == "torch (OpenVINO is not installed)"


def test_auto_is_torch_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(runtime, "gpu_possible", lambda: True)
    assert backend() == "openvino"  # torch finds none
    monkeypatch.setattr(torch_engine, "available_devices", lambda: ["cuda:0", "cpu"])
    monkeypatch.setattr(runtime, "require_torch", lambda why: pytest.skip(why))
    with pytest.raises(pytest.skip.Exception, match="device cuda:0"):
        backend()


def test_weights_with_nan_are_one_line(tmp_path):
    shutil.copytree(TINY, folder := tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, folder / "model.safetensors")
    argv = ("embed", "-q", "hi", "-m", folder, "--backend", "openvino")
    done = bad(*argv)
    assert done.error == "text 1: its vector contains NaN or infinity"
    assert "inspect --verify" in done.hint
