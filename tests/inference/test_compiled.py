"""The CPU engine: the numbers of torch, the same bits in any batch, and a cache that survives."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import zlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from front import DEADLINE, NO_BYTECODE, bad, call, environment, good, process, start
from hostile import REAL
from safetensors.numpy import load_file, save_file

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.hub import DEFAULT_MODEL, find_model
from bertcli.inference import (
    accelerators,
    compiled,
    compiled_cache,
    compiling,
    devices,
    opening,
    openvino,
)
from bertcli.inference.tell import SILENCE

ROOT = Path(__file__).parents[2]
TINY = ROOT / "samples" / "tiny-bert"
OPENVINO = ("--backend", "openvino")
COMPILING = "note: first use of this model on this CPU: compiling it (some seconds)\n"
EMBED = ("embed", "-q", "-m", TINY, "I love NLP!", *OPENVINO)

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that the tests of this file share, where they do no harm to it."""
    return str(tmp_path_factory.mktemp("cache"))


def lines(count, most=30):
    dice = random.Random(15)
    known = " ".join([(ROOT / "README.md").read_text("utf-8"), *REAL]).split()
    return [" ".join(dice.choices(known, k=dice.randint(1, most))) for _ in range(count)]


def vectors(tmp_path, cache, texts, *options):
    file, out = tmp_path / "texts.txt", tmp_path / "out.npy"
    file.write_text("".join(f"{line}\n" for line in texts), "utf-8")
    done = call("embed", "-q", "-i", file, "-o", out, "--overwrite", *options, BERTCLI_CACHE=cache)
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
def test_the_numbers_are_those_of_torch(tmp_path, cache, options):
    texts = [*lines(40), "a", "b c"]
    chosen = ("-m", TINY, "--on-truncate", "ignore", *options)
    ours = vectors(tmp_path, cache, texts, *chosen, *OPENVINO)
    torchs = vectors(tmp_path, cache, texts, *chosen)
    assert ours.shape == torchs.shape
    np.testing.assert_allclose(ours, torchs, atol=1e-5)


@pytest.mark.slow
def test_2000_texts_of_the_default_model_are_those_of_torch(tmp_path, cache):
    texts = lines(2000, most=40)
    ours = vectors(tmp_path, cache, texts, *OPENVINO)
    assert np.abs(ours - vectors(tmp_path, cache, texts)).max() < 1e-6


@pytest.mark.parametrize("model", ["tiny", pytest.param("default", marks=pytest.mark.slow)])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_vector_has_the_same_bits_in_any_batch(tmp_path, cache, model, pooling):
    texts = [*lines(60), "a", "a", "b"]
    where = ("-m", TINY) if model == "tiny" else ()
    chosen = (*where, *OPENVINO, "--pooling", pooling, "--on-truncate", "ignore")
    whole = vectors(tmp_path, cache, texts, *chosen)
    order = random.Random(2).sample(range(len(texts)), len(texts))
    for options in (("--window", 1), ("--batch-tokens", 40), ("--threads", 1), ("--threads", 3)):
        again = vectors(tmp_path, cache, [texts[at] for at in order], *chosen, *options)
        assert np.array_equal(again, whole[order]), options


def test_several_processes_give_the_bits_of_one(tmp_path, cache):
    texts = lines(60)
    alone = vectors(tmp_path, cache, texts, "-m", TINY, *OPENVINO)
    options = ("-m", TINY, *OPENVINO, "--device", "cpu,cpu", "--batch-tokens", 100)
    assert np.array_equal(vectors(tmp_path, cache, texts, *options), alone)


def test_a_process_of_one_thread_may_run_on_any_core(monkeypatch, cache):
    monkeypatch.setenv("BERTCLI_CACHE", cache)
    compute = EmbedOptions(backend="openvino", threads=1)
    runner = Embedder.open(find_model(str(TINY)), compute).runtime.runner
    assert runner.model.get_property("ENABLE_CPU_PINNING") is False  # or all on the first


# --- starting ---


NO_TORCH = """
import os, sys

def audit(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"):
        raise AssertionError(f"{event} {given}")
    if event == "open" and isinstance(given[0], (str, bytes)) and given[2] & 3:
        path = os.fsdecode(given[0])
        if not path.startswith((os.environ["BERTCLI_CACHE"], os.devnull)):
            written.append(path)

written = []
if sys.argv[1] == "no torch":
    for name in ("torch", "transformers", "numpy.ma"):  # the last takes 8 ms
        sys.modules[name] = None
sys.dont_write_bytecode = True
sys.addaudithook(audit)
from bertcli.cli.app import main
code = main(sys.argv[2:])
assert sys.modules.get("openvino_telemetry") is None
assert written == [], written
sys.exit(code)
"""


def audited(torch, *argv, **env):
    """Run a command that may connect to nothing, and write nowhere but in the cache."""
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, torch, *map(str, argv)],
        env=environment(env),
        capture_output=True,
        timeout=DEADLINE,
    )


def without_torch(*argv, **env):
    return audited("no torch", *argv, **env)


def test_once_it_is_compiled_nothing_imports_torch_nor_opens_a_socket(tmp_path, cache):
    expected = good(*EMBED, BERTCLI_CACHE=cache)
    done = without_torch(*EMBED, BERTCLI_CACHE=cache, HOME=str(tmp_path))
    assert (done.stdout, done.stderr, done.returncode) == (expected.stdout, b"", 0)
    assert list(tmp_path.iterdir()) == []


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
cli.options.task cli.commands.tokenize checkpoints.tensors checkpoints.load embedding.sparse_config
embedding.late_interaction embedding.term_weights embedding.character_limit tokenizing.chunks
vectors.run vectors.sink vectors.update inference.compiling inference.pool
""".split()  # noqa: SIM905


def test_a_start_imports_what_it_needs_and_looks_for_no_garbage(cache):
    good(*EMBED, BERTCLI_CACHE=cache)
    env = environment({"BERTCLI_CACHE": cache})
    argv = [sys.executable, "-c", STARTED, *map(str, EMBED)]
    done = subprocess.run(argv, env=env, capture_output=True, check=True, timeout=DEADLINE)
    passes, *imported = json.loads(done.stderr)
    assert (passes, [name for name in NEEDLESS if f"bertcli.{name}" in imported]) == (0, [])


def test_similar_imports_no_torch(tmp_path, cache):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("It is raining.\nI enjoy language technology.\n")
    search = ("similar", "-q", "-m", TINY, "I love NLP!", "--corpus", corpus, "-f", "jsonl")
    expected = good(*search)
    good(*search, *OPENVINO, BERTCLI_CACHE=cache)
    done = without_torch(*search, *OPENVINO, BERTCLI_CACHE=cache)
    assert (done.returncode, done.stderr) == (0, b"")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    hits = [answer["hits"] for answers in (found, expected.rows) for answer in answers]
    assert [hit["row"] for hit in hits[0]] == [hit["row"] for hit in hits[1]]
    scores = [[hit["score"] for hit in some] for some in hits]
    np.testing.assert_allclose(*scores, atol=1e-5)


@pytest.mark.parametrize(
    "argv", [EMBED, ("models", "-q", "prepare", TINY)], ids=["embed", "models"]
)
def test_compiling_opens_no_socket_and_writes_to_the_cache_alone(tmp_path, argv):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "BERTCLI_CACHE": str(tmp_path / "cache")}
    done = audited("torch", *argv, **env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(home.rglob("*")) == []


def test_weights_are_hashed_once(cache, monkeypatch):
    good(*EMBED, BERTCLI_CACHE=cache)
    monkeypatch.setattr(compiled_cache, "sha256", None)
    good(*EMBED, BERTCLI_CACHE=cache)


def test_a_compiled_model_has_short_names(cache, monkeypatch):
    """Every start reads them all; as torch traces the model, each is the path of a module."""
    monkeypatch.setenv("BERTCLI_CACHE", cache)
    embedder = Embedder.open(find_model(str(TINY)), EmbedOptions(backend="openvino"))
    nodes = embedder.runtime.runner.model.get_runtime_model().get_ops()
    names = [node.friendly_name for node in nodes]
    assert names
    assert not [name for name in names if "attention" in name]


def test_equal_shapes_are_one_constant():
    library = openvino.openvino()
    from openvino import opset13 as ops

    given = ops.parameter([4, 6], np.float32)
    shapes = [np.array(shape, np.int64) for shape in ([6, 4], [4, 6], [6, 4])]
    found = given
    for shape in shapes:
        found = ops.add(ops.reshape(found, ops.constant(shape), False), ops.constant(np.float32(1)))
    graph = library.Model([found], [given])
    openvino.tidy(graph)
    kinds = [node.get_element_type().to_string() for node in graph.get_ops() if not node.inputs()]
    assert sorted(kinds) == ["f32"] * 4 + ["i64"] * 2
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    (result,) = library.Core().compile_model(graph, "CPU")([numbers]).values()
    np.testing.assert_array_equal(result, (numbers + 3).reshape(6, 4))


# --- the cache ---


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.suffix == ".model")


@pytest.fixture
def fresh(tmp_path):
    """A cache that has the tiny model, and what embed writes with it."""
    folder = tmp_path / "fresh"
    expected = good(*EMBED, BERTCLI_CACHE=str(folder))
    assert len(files(folder)) == 1
    return folder, expected


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "not JSON"])
def test_a_damaged_file_is_made_anew(fresh, damage):
    folder, expected = fresh
    (path,) = folder.glob("*.model")
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    match damage:
        case "cut":
            content = content[:-1]
        case "empty":
            content = b""
        case "not JSON":
            content = b"[" * 100_000
    path.write_bytes(content)
    again = call("embed", *EMBED[2:], BERTCLI_CACHE=str(folder))
    assert again.stdout == expected.stdout
    assert COMPILING in again.err
    good(*EMBED, BERTCLI_CACHE=str(folder))


def test_a_file_that_openvino_refuses_is_made_anew(fresh):
    """As that of another machine, which is whole."""
    folder, expected = fresh
    (path,) = folder.glob("*.model")
    blob = b"of another machine"
    header = {"size": len(blob), "crc32": zlib.crc32(blob), "same_bits": True}
    path.write_bytes(json.dumps(header).encode() + b"\n" + blob)
    for _ in range(2):
        assert good(*EMBED, BERTCLI_CACHE=str(folder)).stdout == expected.stdout
    assert path.stat().st_size > 1000


def test_two_at_once_make_one(tmp_path):
    env = {"BERTCLI_CACHE": str(tmp_path / "cache")}
    both = [start(*EMBED, env=env) for _ in range(2)]
    outputs = {running.communicate(timeout=DEADLINE) for running in both}
    assert {err for _, err in outputs} == {b""} and len(outputs) == 1
    assert len(files(tmp_path / "cache")) == 1


KILLED = """
import os, signal, sys
from importlib import import_module

module, _, name = sys.argv[1].rpartition(".")
def kill(*given, **named):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(import_module(module), name, kill)
from bertcli.cli.app import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "place",
    [
        "bertcli.inference.compiling._compare",  # it has the lock, and nothing is written
        "bertcli.files.atomic.sync",  # the file is half there
        "bertcli.files.atomic.move",  # and whole, under another name
    ],
)
def test_killed_while_it_makes_one_the_next_run_makes_it(tmp_path, place):
    folder = tmp_path / "cache"
    env = {"BERTCLI_CACHE": str(folder)}
    expected = good(*EMBED, **env)
    (path,) = folder.glob("*.model")
    path.unlink()  # digests of weights stay: nothing else is written
    argv = [sys.executable, "-c", KILLED, place, *map(str, EMBED)]
    done = subprocess.run(argv, env=environment(env), capture_output=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b""), done.stderr
    assert files(folder) == []
    assert good(*EMBED, **env).stdout == expected.stdout
    assert files(folder) == [path.name] and not list(folder.glob(".*"))


def test_a_full_disk_is_a_warning(tmp_path, cache):
    """The file of the compiled model may not grow beyond 100 KB."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    env = {"BERTCLI_CACHE": str(tmp_path / "cache")} | NO_BYTECODE
    loud = [option for option in EMBED if option != "-q"]
    done = process(*loud, env=env, preexec_fn=limit)
    expected = good(*EMBED, BERTCLI_CACHE=cache)
    assert (done.code, done.stdout) == (0, expected.stdout)
    assert f"warning: the compiled model cannot be kept in {tmp_path / 'cache'}: " in done.err
    assert files(tmp_path / "cache") == [] and not list((tmp_path / "cache").glob(".*"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_home_that_nobody_may_write_to_is_a_warning(cache):
    expected = good(*EMBED, BERTCLI_CACHE=cache)
    home = {"HOME": "/proc/self", "BERTCLI_CACHE": "", "XDG_CACHE_HOME": ""}
    done = call("embed", *EMBED[2:], **home)
    assert (done.code, done.stdout) == (0, expected.stdout)
    assert "warning: the compiled model cannot be kept in /proc/self/.cache/bertcli: " in done.err


def test_where_nothing_can_be_written_it_is_compiled_in_memory(tmp_path, cache):
    (tmp_path / "file").write_text("")
    expected = good(*EMBED, BERTCLI_CACHE=cache)
    for place in (tmp_path / "file" / "cache", tmp_path / "file"):
        done = call("embed", *EMBED[2:], BERTCLI_CACHE=str(place))
        assert done.stdout == expected.stdout
        assert f"warning: the compiled model cannot be kept in {place}: Not a directory" in done.err


def test_a_cache_whose_name_no_system_takes_is_a_warning(cache):
    expected = good(*EMBED, BERTCLI_CACHE=cache)
    done = call("embed", *EMBED[2:], BERTCLI_CACHE="a" * 300)
    assert (done.code, done.stdout) == (0, expected.stdout)
    assert "warning: the compiled model cannot be kept in aaa" in done.err


def test_what_cannot_be_kept_is_not_prepared(tmp_path):
    (tmp_path / "file").write_text("")
    done = call("models", "prepare", TINY, BERTCLI_CACHE=str(tmp_path / "file"))
    assert done.code == 1 and "is prepared" not in done.err
    assert f"error: the compiled model cannot be kept in {tmp_path / 'file'}: Not a" in done.err
    assert "BERTCLI_CACHE" in done.err.splitlines()[-1]


def test_without_a_home_it_is_compiled_in_memory(cache, monkeypatch):
    """HOME is not set, and nobody knows where this user is at home."""
    expected = good(*EMBED, BERTCLI_CACHE=cache)
    monkeypatch.setattr(compiled_cache.os.path, "expanduser", lambda path: path)
    none = dict.fromkeys(("BERTCLI_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"), "")
    done = call("embed", *EMBED[2:], **none)
    assert (done.code, done.stdout) == (0, expected.stdout)
    assert "warning: the compiled model cannot be kept: there is no home folder" in done.err


@pytest.mark.parametrize(
    "failure", [MemoryError, RuntimeError("Failed to allocate 9 bytes of memory")]
)
def test_when_memory_runs_out_batches_are_halved(tmp_path, cache, monkeypatch, failure):
    texts = lines(50)
    expected = vectors(tmp_path, cache, texts, "-m", TINY, *OPENVINO)
    run = compiled.CompiledRunner.vectors

    def small(self, batch, finish):
        if len(batch) > 1 and len(batch.ids) > 40:
            raise failure
        return run(self, batch, finish)

    monkeypatch.setattr(compiled.CompiledRunner, "vectors", small)
    monkeypatch.setattr(compiled, "BUDGET", 100)
    given, out = tmp_path / "texts.txt", tmp_path / "again.npy"
    argv = ("embed", "-m", TINY, "-i", given, "-o", out, *OPENVINO)
    done = call(*argv, BERTCLI_CACHE=cache)
    assert done.code == 0
    assert "warning: out of memory on cpu: batches of 50 tokens from here on" in done.err
    assert np.array_equal(np.load(out), expected)
    monkeypatch.setattr(compiled.CompiledRunner, "vectors", mock.Mock(side_effect=MemoryError))
    done = bad(*EMBED, BERTCLI_CACHE=cache)
    assert done.error == "out of memory on cpu with a batch of 100 tokens"


def test_the_oldest_go_first(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTCLI_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled_cache, "LARGEST", 500)
    blob = compiled_cache.CompiledModel(np.zeros(100, np.uint8), same_bits=True)
    for age, name in enumerate(("c", "a", "b")):
        compiled_cache.cached(name, {}, lambda: blob, SILENCE)
        os.utime(tmp_path / f"{name}.model", (1000 + age, 1000 + age))
    compiled_cache.cached("c", {}, lambda: blob, SILENCE)  # used again: now the newest
    compiled_cache.cached("d", {}, lambda: blob, SILENCE)
    assert files(tmp_path) == ["c.model", "d.model"]


def test_models_lists_prepares_and_cleans(tmp_path):
    env = {"BERTCLI_CACHE": str(tmp_path)}
    told = f"note: {TINY} is prepared for embed\n"
    done = call("models", "prepare", TINY, **env)
    assert (done.code, done.err) == (0, COMPILING + told)
    assert call("models", "prepare", TINY, "--offline", **env).err == told
    assert call("models", "prepare", TINY, "--pooling", "cls", "--layers=-2", **env).code == 0
    rows = [row for row in good("models", **env).rows if row["state"] == "compiled"]
    assert {(row["model"], row["use"]) for row in rows} == {
        (str(TINY), "embed, layers -1, all tokens"),
        (str(TINY), "embed, layers -2, first tokens"),
    }
    assert all(row["bytes"] == Path(row["path"]).stat().st_size for row in rows)
    assert "note: removed 2 models, " in call("models", "clean", **env).err
    assert {path.name for path in tmp_path.iterdir()} == {"making.lock"}
    assert bad("models", "clean", TINY, code=2, **env).error == "models clean takes no MODEL"
    assert "revision" in bad("models", "prepare", TINY, "--revision", "x", code=2, **env).error


def test_the_manifest_says_what_was_found_out_when_it_was_compiled(tmp_path, monkeypatch):
    env, out = {"BERTCLI_CACHE": str(tmp_path / "cache")}, tmp_path / "out.npy"
    monkeypatch.setattr(compiling, "_same_bits", lambda *given: False)
    for _ in range(2):
        done = call("embed", "-v", *EMBED[2:], "-o", out, "--overwrite", **env)
        assert "the last bits of a vector depend on its batch" in done.err
        assert json.loads(Path(f"{out}.manifest.json").read_text())["same_bits"] is False


def test_models_lists_what_another_version_compiled(fresh):
    folder, _ = fresh
    (path,) = folder.glob("*.model")
    path.write_bytes(b'{"model": "old", "size": 1}\n1')
    rows = good("models", BERTCLI_CACHE=str(folder)).rows
    (row,) = (row for row in rows if row["model"] == "old")
    assert row["use"] == "of another version of bertcli"
    assert (row["loads"], row["problem"]) == (False, "old: folder not found")


def test_models_lists_what_is_installed_and_cached(tmp_path):
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    env = {"BERTCLI_CACHE": str(tmp_path / "ours"), "HF_HUB_CACHE": str(tmp_path)}
    rows = good("models", "-f", "jsonl", **env).rows
    found = {(row["model"], row["state"]): row["bytes"] for row in rows}
    assert found[DEFAULT_MODEL, "installed"] > 90e6
    assert found["some/model", "cached"] == 2
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
    lines = good("models", "-f", "table", **env, COLUMNS="40").out.splitlines()
    assert lines[lines.index(DEFAULT_MODEL) + 1].split()[:4] == ["installed", "91.6", "MB", "BERT,"]
    assert lines[lines.index("some/model") + 1].split()[0] == "cached"


def test_a_compiled_model_is_known_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(TINY.parent)
    env = {"BERTCLI_CACHE": str(tmp_path / "cache")}
    assert call("models", "-q", "prepare", TINY.name, **env).code == 0
    monkeypatch.chdir(tmp_path)
    (row,) = (row for row in good("models", **env).rows if row["state"] == "compiled")
    assert (row["model"], row["loads"]) == (str(TINY), True)


# --- what is told ---


def test_another_backend_is_another_run(tmp_path, cache):
    out = tmp_path / "out.npy"
    good(*EMBED, "-o", out, BERTCLI_CACHE=cache)
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
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
def test_what_it_cannot_do_is_said(cache, options, message):
    assert bad(*EMBED, *options, code=2, BERTCLI_CACHE=cache).error == message


def test_without_openvino_one_line_says_what_to_install(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = bad(*EMBED, BERTCLI_CACHE=cache)
    assert done.error == "--backend openvino needs the package openvino"
    assert "pip install 'bertcli[openvino]'" in done.hint


# --- auto ---


AUTO = ("embed", "-v", "-m", TINY, "I love NLP!")


def backend(*options, cache, **env):
    """Return the engine that auto takes, and why it is not the other."""
    done = call(*AUTO, *options, BERTCLI_BACKEND="auto", BERTCLI_CACHE=cache, **env)
    assert done.code == 0, done.err
    (line,) = [one for one in done.err.splitlines() if one.startswith("note: backend: ")]
    return line.removeprefix("note: backend: ")


def test_auto_is_openvino_on_a_cpu_and_torch_for_all_else(cache, monkeypatch):
    assert backend(cache=cache) == "openvino"
    assert backend("--device", "cpu", cache=cache) == "openvino"
    assert backend("--device", "cpu,cpu", cache=cache) == "openvino"
    assert backend("--dtype", "float16", cache=cache) == "torch (--dtype float16)"
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert backend(cache=cache) == "torch (OpenVINO is not installed)"


def test_auto_is_torch_where_there_is_a_gpu(cache, monkeypatch):
    monkeypatch.setattr(opening, "gpu_possible", lambda: True)
    assert backend(cache=cache) == "openvino"  # torch finds none
    monkeypatch.setattr(devices, "available", lambda: ["cuda:0", "cpu"])
    monkeypatch.setattr(opening, "_torch", lambda *given: pytest.skip("reached"))
    with pytest.raises(pytest.skip.Exception, match="reached"):
        backend(cache=cache)


def test_a_torch_for_cpus_alone_is_not_asked_for_gpus(tmp_path, monkeypatch):
    told = tmp_path / "version.py"
    spec = mock.Mock(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(accelerators, "find_spec", lambda name: spec)
    monkeypatch.setattr(accelerators, "glob", lambda pattern: ["/dev/nvidiactl"])
    told.write_text("cuda: Optional[str] = None\nhip: Optional[str] = None\n")
    assert not accelerators.gpu_possible()
    for build in ("cuda: Optional[str] = '13.0'", "hip = '7.1'", "xpu: Optional[str] = '2025'"):
        told.write_text(f"cuda: Optional[str] = None\n{build}\n")
        assert accelerators.gpu_possible()
    monkeypatch.setattr(accelerators, "glob", lambda pattern: [])
    assert not accelerators.gpu_possible()
    monkeypatch.setattr(accelerators, "METAL", str(tmp_path))
    assert accelerators.gpu_possible()


def test_auto_takes_torch_where_openvino_gives_other_numbers(tmp_path, monkeypatch):
    expected = good("embed", "-q", *AUTO[2:])
    monkeypatch.setattr(compiling, "NEAR", 0.0)
    done = call(*AUTO, BERTCLI_BACKEND="auto", BERTCLI_CACHE=str(tmp_path))
    assert done.stdout == expected.stdout
    assert "warning: compiled by OpenVINO, the model is off by " in done.err
    assert "; torch runs the model instead (--backend torch)" in done.err
    assert files(tmp_path) == []
    done = bad(*EMBED, BERTCLI_CACHE=str(tmp_path))
    assert done.error.startswith("compiled by OpenVINO, the model is off by ")


def test_weights_with_nan_are_not_blamed_on_openvino(tmp_path):
    shutil.copytree(TINY, folder := tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, folder / "model.safetensors")
    argv = ("embed", "-q", "hi", "-m", folder, "--backend", "openvino")
    done = bad(*argv, BERTCLI_CACHE=str(tmp_path / "cache"))
    assert "NaN or infinity in its results" in done.error and "inspect --verify" in done.hint


def test_auto_needs_no_torch_once_it_is_compiled(cache):
    """Nor does it look at the state of the cache: the first run gives the same bytes."""
    texts = ("embed", "-q", "-m", TINY, "I love NLP!")
    first = good(*texts, BERTCLI_BACKEND="auto", BERTCLI_CACHE=cache)
    done = without_torch(*texts, BERTCLI_BACKEND="auto", BERTCLI_CACHE=cache)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", first.stdout)
